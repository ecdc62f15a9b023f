"""A client that reads a topic all the while."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tests.support.clients import Confluent, Row, by_partition
from tests.support.processes import wait_until


class Reader:
    """Reads all of a topic's rows again and again on a thread of its own, each time with a new consumer, and
    looks whether they are right. For a `with`, which fails where one reading did."""

    def __init__(self, bootstrap: str, topic: str, rows: Sequence[Row]) -> None:
        self._bootstrap, self._topic, self._rows = bootstrap, topic, by_partition(rows)
        self.readings: list[tuple[float, float]] = []
        """when each began and ended, on the monotonic clock, in seconds"""
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        assert self._failure is None, repr(self._failure)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.2):
                began = time.monotonic()
                for partition, rows in self._rows.items():
                    found = Confluent().read(self._bootstrap, self._topic, partition, 0, len(rows))
                    assert [one.value for one in found] == [one.value for one in rows]
                self.readings.append((began, time.monotonic()))
        except BaseException as e:  # a thread's failure is the test's
            self._failure = e

    def wait_for_next(self, seconds: float = 60) -> None:
        """Wait until everything written up to now was read."""
        moment = time.monotonic()

        def is_there() -> bool:
            assert self._failure is None, repr(self._failure)
            return any(began > moment for began, _ in self.readings)

        wait_until("the topic to be read", is_there, seconds)
