"""Supervision of a streaming query to its end: counts rows, shows progress, obeys signals. Needs pyspark."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from service.base.stop_signals import stops_received
from service.pipelines.job import JobProgress, ProgressLine
from service.spark.stream.offsets import OWN_KEY

POLL_S: Final = 0.5
OUTDATED_CHECK_S: Final = 60.0
"""Interval of checks whether the query is outdated."""


class Interrupts:
    """Stopping signals recorded while a ``with`` lasts, so that the job ends between two calls to Spark.

    Spark's own handler of SIGINT cancels running jobs, which a query reports as its failure. A second signal
    interrupts at once. Owned by the main thread, the only one that may set handlers; elsewhere it does
    nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._handlers = ExitStack()

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._handlers.enter_context(stops_received(self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _note(self, number: signal.Signals) -> None:
        if self.received is None:
            self.received = number
        elif number is not signal.SIGHUP:  # which kernel and shell both send when a terminal closes
            raise KeyboardInterrupt


class Rows:
    """Counts of a query's rows, and of its batches that had any.

    Spark remembers the last hundred batches and reports a batch that waits for rows again and again. So newer
    batches than the last one counted are added, and only the last one can still change.
    """

    def __init__(self) -> None:
        self._done_rows = 0
        self._done_batches = 0
        self._last = (-1, 0)

    def update(self, progresses: list[Any]) -> None:
        """Count the query's `recentProgress`, oldest first."""
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


class QueryResult(NamedTuple):
    """The result of a query; `signal` is what stopped it, None where it ended by itself or is `outdated`."""

    rows: int
    seconds: float
    signal: signal.Signals | None
    outdated: bool = False


def records_left(progress: Any) -> int | None:
    """Return how many offsets the source reported after this batch; None where it did not report."""
    left, is_reported = 0, False
    for source in progress["sources"] if progress is not None else ():
        latest, end = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        is_reported = is_reported or latest is not None
        for topic, row in (latest or {}).items():
            done = (end or {}).get(topic, {})
            left += sum(max(0, offset - done.get(partition, 0)) for partition, offset in row.items())
    return left if is_reported else None


def _offsets(text: Any) -> Any:
    """Parse offsets by topic, without the source's own fields."""
    found = json.loads(text) if isinstance(text, str) else text
    return {key: row for key, row in found.items() if key != OWN_KEY} if isinstance(found, dict) else None


def follow(spark: Any, query: Any, name: str, is_outdated: Callable[[], bool] = lambda: False) -> QueryResult:
    """Wait until the query ends by itself or a signal arrives. Raises the query's error.

    A stopped query leaves its batch unfinished, and the next run repeats it. Once a minute, between two
    batches, `is_outdated` is called, and if it returns True the query ends.
    """
    rows, job_progress, outdated = Rows(), JobProgress(spark), False

    def status() -> str:
        is_active = query.status["isTriggerActive"]
        left = records_left(query.lastProgress)
        now = f"now {job_progress.words(records_left=left or None)}" if is_active else "waiting for more"
        batches = "1 batch" if rows.batches == 1 else f"{rows.batches:,} batches"
        return f"{name}: {rows.total:,} records in {batches}; {now}"

    with Interrupts() as interrupts, ProgressLine(status) as progress:
        try:
            check_at = time.monotonic() + OUTDATED_CHECK_S
            while interrupts.received is None and not query.awaitTermination(POLL_S):
                rows.update(query.recentProgress)
                if time.monotonic() >= check_at and not query.status["isTriggerActive"]:
                    check_at = time.monotonic() + OUTDATED_CHECK_S
                    if outdated := is_outdated():
                        break
            if interrupts.received is not None:
                # Otherwise Spark logs an error for each task of the unfinished batch that it cancels.
                spark.sparkContext.setLogLevel("OFF")
        finally:
            query.stop()
        rows.update(query.recentProgress)
    return QueryResult(rows.total, progress.seconds, interrupts.received, outdated)
