"""Records that flow while members of a group come and go, and who owns which partition meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import confluent_kafka

Place = tuple[str, int]


class Flow:
    """Numbered records, one after the other over all partitions of some topics, until `stop`."""

    def __init__(self, bootstrap: str, places: Sequence[Place], every_s: float = 0.01) -> None:
        self._places, self._every_s = places, every_s
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 2}
        )
        self._over = threading.Event()
        self.acked: set[bytes] = set()
        self._failed: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(self._every_s):
            topic, partition = self._places[number % len(self._places)]
            self._producer.produce(topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acked.add(message.value())
        else:
            self._failed.append(error)

    def stop(self) -> set[bytes]:
        """The values of all records: none of them may fail."""
        self._over.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        assert not self._failed, self._failed[:3]
        return self.acked


class Owners:
    """Owners of partitions, from the members' rebalance listeners."""

    def __init__(self) -> None:
        self.now: dict[Place, str] = {}
        self.doubled: list[str] = []
        """partitions that somebody took while another had them: empty where all is well"""
        self._lock = threading.Lock()

    def takes(self, member: str, places: Iterable[Place]) -> None:
        with self._lock:
            for place in places:
                owner = self.now.setdefault(place, member)
                if owner != member:
                    self.doubled.append(f"{place}: {owner} has it, {member} takes it")
                    self.now[place] = member

    def gives(self, member: str, places: Iterable[Place]) -> None:
        with self._lock:
            for place in places:
                if self.now.get(place) == member:
                    del self.now[place]
