"""A run of batches that a thread writes behind the end of a log, while the event loop continues.

A file system that is busy with write-back can block the next write to the same file for tens of
milliseconds. A lagging follower causes that write-back, and every other client of its loop would wait.

Readers see nothing of the run until the loop has accounted for it: the log then looks as if it were written
in one step. Each log has at most one background append. Every other change of the log finishes it first
(`LogAppender.finish`): a run that no thread has begun is dropped, for one that is being written it waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.base.disk import DiskError
from service.hot.segment import Segment
from service.hot.state import LogState
from service.records.markers import EndMarker
from service.records.scan import BatchScan


class BackgroundAppend:
    """One run. `write` is for any thread, all else for the loop. ``is_appended``: it is part of the log."""

    __slots__ = (
        "_is_over", "_lock", "data", "error", "is_appended", "is_begun", "is_written", "markers", "run",
        "segment",
    )  # fmt: skip

    def __init__(
        self, state: LogState, data: memoryview, run: BatchScan, markers: Mapping[int, EndMarker]
    ) -> None:
        """`run`: plain, with positions in `data`; `markers`: its transaction markers, by position.

        `DiskError` if the segment's file cannot be opened.
        """
        self.segment: Segment = state.segments.active
        self.data = data
        self.run = run
        self.markers = markers
        self.error: DiskError | None = None
        self.is_begun = self.is_written = self.is_appended = False
        self._is_over = False
        self._lock = state.world.threads.lock()
        self.segment.hold_open()

    def write(self) -> None:
        """Write the run, unless `end` came first; an error is kept for `check`."""
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
        """Raise the `DiskError` of the write, if it failed."""
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Return once nothing is being written, and nothing will be."""
        with self._lock:
            self._is_over = True
