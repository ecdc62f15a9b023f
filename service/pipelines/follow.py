"""A streaming query followed to its end: rows counted, progress shown, signals obeyed. Needs pyspark."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple

from service.pipelines.job import Progress, Watch
from service.spark.stream.offsets import OWN_KEY

POLL_S: Final = 0.5
LOOK_S: Final = 60.0
"""Between two looks for what has changed outside of the query."""


class Interrupts:
    """SIGINT and SIGTERM noted while a ``with`` lasts, so that the job ends between two calls to Spark.

    Spark's own handler of SIGINT cancels what runs, which a query reports as its failure. A second signal
    interrupts at once. Owned by the main thread, the only one that may set handlers; on others nothing is.
    """

    def __init__(self) -> None:
        self.seen: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.seen is not None:
            raise KeyboardInterrupt
        self.seen = signal.Signals(number)


class Rows:
    """How many rows a query's batches had, and how many batches had any.

    Spark remembers the last hundred batches and reports a batch that waits for rows again and again, so what
    is newer than the last one looked at is added, and only the last one can still change.
    """

    def __init__(self) -> None:
        self._done_rows = 0
        self._done_batches = 0
        self._last = (-1, 0)

    def look(self, progresses: list[Any]) -> None:
        """`recentProgress` of the query, oldest first."""
        for progress in progresses:
            number, rows = progress["batchId"], progress["numInputRows"]
            if number > self._last[0]:
                self._done_rows, self._done_batches = self.total, self.batches
                self._last = (number, rows)
            elif number == self._last[0]:
                self._last = (number, max(rows, self._last[1]))

    @property
    def total(self) -> int:
        return self._done_rows + self._last[1]

    @property
    def batches(self) -> int:
        return self._done_batches + (self._last[1] > 0)


class Followed(NamedTuple):
    """How a query went; `signal` is what stopped it, None where it ended by itself or is `outdated`."""

    rows: int
    seconds: float
    signal: signal.Signals | None
    outdated: bool = False


def records_left(progress: Any) -> int | None:
    """How many offsets the batch after this one finds, as the source reported them; None where it did not."""
    left, is_told = 0, False
    for source in progress["sources"] if progress is not None else ():
        latest, end = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        is_told = is_told or latest is not None
        for topic, row in (latest or {}).items():
            done = (end or {}).get(topic, {})
            left += sum(max(0, offset - done.get(partition, 0)) for partition, offset in row.items())
    return left if is_told else None


def _offsets(text: Any) -> Any:
    """By topic, without what the source says of itself beside them."""
    found = json.loads(text) if isinstance(text, str) else text
    return {key: row for key, row in found.items() if key != OWN_KEY} if isinstance(found, dict) else None


def follow(spark: Any, query: Any, name: str, is_outdated: Callable[[], bool] = lambda: False) -> Followed:
    """Until the query ends by itself or a signal asks it to. What it fails with is raised.

    A query that is stopped leaves its batch unfinished, and the next run repeats it. Once a minute, between
    two batches, somebody is asked whether the query `is_outdated`, and if so it ends.
    """
    rows, watch, outdated = Rows(), Watch(spark), False

    def look() -> str:
        is_active = query.status["isTriggerActive"]
        left = records_left(query.lastProgress)
        now = f"now {watch.words(records_left=left or None)}" if is_active else "waiting for more"
        batches = "1 batch" if rows.batches == 1 else f"{rows.batches:,} batches"
        return f"{name}: {rows.total:,} records in {batches}; {now}"

    with Interrupts() as interrupts, Progress(look) as progress:
        try:
            look_at = time.monotonic() + LOOK_S
            while interrupts.seen is None and not query.awaitTermination(POLL_S):
                rows.look(query.recentProgress)
                if time.monotonic() >= look_at and not query.status["isTriggerActive"]:
                    look_at = time.monotonic() + LOOK_S
                    if outdated := is_outdated():
                        break
            if interrupts.seen is not None:
                # Spark would tell of each part of the unfinished batch that it has to give up.
                spark.sparkContext.setLogLevel("OFF")
        finally:
            query.stop()
        rows.look(query.recentProgress)
    return Followed(rows.total, progress.seconds, interrupts.seen, outdated)
