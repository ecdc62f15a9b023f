"""What of a log is not on the device yet, and how it gets there.

A failed fsync latches the whole log directory: the kernel has thrown the pages away and says so once, so a
later fsync that succeeds proves nothing. Nothing there is flushed, checkpointed or marked clean any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from service.base.disk import DiskError, MissingFile
from service.base.files import FsyncFailed, fsync_dir, fsync_file
from service.hot.segment import Segment
from service.hot.state import LogOffline, LogState


class Latch:
    """Whether a log directory still keeps what it is told to. Set from any thread, never taken back.

    `on_failure` is called at once, by the thread that found out.
    """

    def __init__(self, on_failure: Callable[[], None] | None = None) -> None:
        self.failure: DiskError | None = None
        self._on_failure = on_failure

    def fail(self, error: DiskError) -> None:
        self.failure = self.failure or error
        if self._on_failure is not None:
            self._on_failure()

    def check(self) -> None:
        """`LogOffline` once the directory has failed."""
        if self.failure is not None:
            raise LogOffline(f"its log directory failed: {self.failure}")


class _Unsynced(NamedTuple):
    path: Path
    is_dir: bool


class Durability:
    """Flushes one log. `flush` runs on a `log-io` thread, all else on the loop."""

    def __init__(self, state: LogState, latch: Latch) -> None:
        self._state = state
        self._latch = latch
        self._flushing = state.world.threads.lock()
        self._unsynced: deque[_Unsynced] = deque()
        self._closed = False
        self.last_flush_ms = state.world.clock.now_ms()

    @property
    def has_unsynced_files(self) -> bool:
        """Whether side files wait for a flush; records are `LogState`'s to tell."""
        return bool(self._unsynced)

    def note(self, path: Path) -> None:
        """A side file was written: the next flush makes it durable before the recovery point moves."""
        self._unsynced.append(_Unsynced(path, False))

    def note_dir(self, path: Path) -> None:
        """A directory has new names."""
        self._unsynced.append(_Unsynced(path, True))

    def close(self) -> None:
        """The files may go at any time from now on: a flush that runs just then fails for nobody."""
        self._closed = True

    def flush(self, up_to: int | None = None) -> int:
        """As `LocalLog.flush`."""
        with self._flushing:
            self._state.check()
            self._latch.check()
            try:
                return self._flush(up_to)
            except DiskError as e:
                if self._closed:
                    return self._state.recovery_point
                if isinstance(e, FsyncFailed):
                    self._latch.fail(e)
                raise

    def _flush(self, up_to: int | None) -> int:
        state = self._state
        with state.lock:
            generation = state.truncations
            end = state.end_offset if up_to is None else min(up_to, state.end_offset)
            segments = state.segments.between(state.recovery_point, end)
            flushed = state.segments.before(state.recovery_point)
            if end == state.end_offset:
                self.last_flush_ms = state.world.clock.now_ms()
        # Whatever belongs to records below `end` was put here before they were appended.
        while self._unsynced:
            self._sync(self._unsynced[0])
            self._unsynced.popleft()
        if flushed is not None:
            flushed.let_go()  # all of it was flushed while it was still written to
        for segment in segments:
            self._flush_segment(segment)
        if segments:
            fsync_dir(state.disk, state.dir)
        with state.lock:
            if generation == state.truncations and end > state.recovery_point:
                state.recovery_point = end
            return state.recovery_point

    def _flush_segment(self, segment: Segment) -> None:
        try:
            segment.flush()
        except MissingFile:
            if segment in self._state.segments.all:
                raise

    def _sync(self, one: _Unsynced) -> None:
        """Make a file durable that may have been replaced or removed since it was written."""
        disk = self._state.disk
        try:
            if one.is_dir:
                fsync_dir(disk, one.path)
                return
            fd = disk.open(one.path)
        except MissingFile:
            return
        try:
            fsync_file(disk, fd)
        finally:
            disk.close(fd)
