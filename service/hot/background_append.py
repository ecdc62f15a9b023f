"""A run of batches that a thread writes behind the end of a log, while the loop goes on.

A file system that is busy writing back what it was given before holds up the next write of that file for tens
of milliseconds. Whoever catches up brings that about, and everybody else on his loop would wait for it.

Nobody knows of the run until the loop has taken it in, so the log looks as if it were written in one step
then. There is one at a time for each log. Whatever else is about to change the log ends it first
(`LocalLog.settle`): one that no thread has begun is given up, for one that is being written it is waited.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from service.base.disk import DiskError
from service.hot.log_io import LogIo
from service.hot.segment import Segment
from service.records.scan import BatchScan

if TYPE_CHECKING:
    from service.hot.log import LocalLog


class RunAhead:
    """`write` is for any thread, all else for the loop. ``is_taken``: it is part of the log."""

    __slots__ = (
        "_is_over", "_lock", "data", "error", "is_begun", "is_taken", "is_written", "run", "segment",
    )  # fmt: skip

    def __init__(self, log: LocalLog, data: memoryview, run: BatchScan) -> None:
        """`run`: plain, with positions in `data`. `DiskError` where its segment's file is not to be had."""
        self.segment: Segment = log.state.segments.active
        self.data = data
        self.run = run
        self.error: DiskError | None = None
        self.is_begun = self.is_written = self.is_taken = False
        self._is_over = False
        self._lock = log.state.world.threads.lock()
        self.segment.hold_open()

    def write(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self.is_begun = True
            try:
                self.segment.write(self.data[self.run.positions[0] : self.run.end])
            except DiskError as e:
                self.error = e
            else:
                self.is_written = True

    def check(self) -> None:
        """`DiskError` where the disk has refused it."""
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Nothing is written any more when it returns."""
        with self._lock:
            self._is_over = True


async def append_beside(io: LogIo, log: LocalLog, data: memoryview, run: BatchScan) -> bool:
    """As `LocalLog.append_fetched`, but a thread waits for the disk where that is possible. False where
    somebody changed the log before the thread had begun: nothing is appended then."""
    ahead = log.begin_run(data, run)
    if ahead is None:
        log.append_fetched(data, run)
        return True
    writing = io.run(ahead.write)
    writing.add_done_callback(lambda _: log.settle(ahead))  # also where nobody waits for it any more
    await asyncio.shield(writing)
    ahead.check()
    return ahead.is_taken
