"""Flushes of one log: files that are not durable yet, and the recovery point.

A flush is one ``fdatasync`` of the active segment's log. All else that must be durable before the recovery
point moves was noted when it was written, and is flushed once: sealed segments with their indexes, side
files, names. The active segment's indexes are not among it: recovery rebuilds the indexes of the segment that
contains the recovery point.

A failed fsync ends all that for the log's directory (`fsync_failure`).
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Final

from service.base.disk import DiskError, MissingFile
from service.base.files import fsync_dir, fsync_file
from service.hot.fsync_failure import Latch
from service.hot.producer_snapshot import LateSnapshot
from service.hot.segment import Segment
from service.hot.state import LogState

_log = logging.getLogger(__name__)

_WRITTEN_AT_ONCE: Final = 500
"""Producers whose snapshot the loop writes, within a millisecond; more are left to the flush after a roll."""


class Durability:
    """Flushes one log. `flush` runs on a `log-io` thread, all else on the loop."""

    def __init__(self, state: LogState, latch: Latch) -> None:
        self._state = state
        self._latch = latch
        self._flushing = state.world.threads.lock()
        self._unsynced: deque[Path | Segment | LateSnapshot] = deque()
        self._names: dict[Path, None] = {}
        self._cuts = 0
        self._durable_cuts = 0
        self._closed = False
        self.is_settled = True
        """whether the active segment's indexes were durable when the log was opened"""
        self.last_flush_ms = state.world.clock.monotonic_ms()

    @property
    def has_unsynced_files(self) -> bool:
        """Return whether side files wait for a flush; for records see `LogState`."""
        return bool(self._unsynced or self._names)

    def note(self, path: Path) -> None:
        """Note that a side file was written: the next flush makes it and its name durable, before the
        recovery point moves."""
        self._unsynced.append(path)
        self._names[path.parent] = None

    def note_created(self, *side_files: Path) -> None:
        """Note that the log's directory may be new: the next flush makes it and `side_files` durable, with
        their names."""
        for path in side_files:
            self.note(path)
        for path in (self._state.dir, self._state.dir.parent):
            self.note_dir(path)

    def note_dir(self, path: Path) -> None:
        """Note that a directory has new names."""
        self._names[path] = None

    def note_sealed(self, segment: Segment) -> None:
        """Note that a segment was sealed: the next flush makes it durable with its indexes, and releases its
        files."""
        self._unsynced.append(segment)

    def note_cut(self, segment: Segment) -> None:
        """Note that the active segment was truncated, or may have been by a process that was killed: the next
        flush makes its size durable."""
        self._cuts += 1
        self._unsynced.append(segment)

    @property
    def is_cut(self) -> bool:
        """Return whether a power loss may bring back what was cut from the active segment."""
        return self._cuts != self._durable_cuts

    def settle_cut(self, segment: Segment) -> None:
        """Make the size of a truncated active segment durable before another segment begins where it ends: a
        tail that a power loss brings back would overlap that (invariant L2). Blocks, unless a flush has done
        it since."""
        if not self.is_cut:
            return
        self._latch.check()
        try:
            segment.flush()
        except DiskError as e:
            self._latch.note(e)
            raise
        self._durable_cuts = self._cuts

    def close(self) -> None:
        """Ignore errors of a running flush from now on, as the files may be deleted at any time."""
        self._closed = True

    def take_snapshot(self) -> None:
        """Take a producer snapshot at the border between two segments; skip it if the disk refuses."""
        state = self._state
        if len(state.producers) > _WRITTEN_AT_ONCE:
            late = state.snapshots.take_late(state.producers, state.world.threads)
            if late is not None:
                self._unsynced.append(late)
                self._names[late.path.parent] = None
            return
        try:
            snapshot = state.snapshots.take(state.producers)
        except DiskError as e:
            _log.warning("no producer snapshot at %d of %s: %s", state.producers.end_offset, state.tip, e)
        else:
            if snapshot is not None:
                self.note(snapshot)

    def settle(self) -> None:
        """Flush everything, with the active segment's indexes and the producers, for a clean shutdown. Does
        nothing if nothing was written."""
        snapshot = self._state.snapshots.take(self._state.producers)
        if snapshot is not None:
            self.note(snapshot)
        active = self._state.segments.active
        if active.is_written or not self.is_settled:
            active.indexes.finish()
            self.flush(with_indexes=True)
        elif self.has_unsynced_files or self._state.recovery_point < self._state.end_offset:
            self.flush()

    def flush(self, up_to: int | None = None, *, with_indexes: bool = False) -> int:
        """Make everything below `up_to` (default: the log's end) durable; returns the new recovery point.

        `with_indexes`: the active segment's indexes, too. Blocks on the device: for a `log-io` thread, while
        the loop continues to append. `FsyncFailed` if the device refuses, after which the log directory is
        not to be relied on; `StorageError` for any other failure, to be retried.
        """
        with self._flushing:
            self._state.check()
            self._latch.check()
            try:
                reached = self._flush(up_to)
                if with_indexes:
                    self._state.segments.active.indexes.flush()
                return reached
            except DiskError as e:
                if self._closed:
                    return self._state.recovery_point
                self._latch.note(e)
                raise

    def _flush(self, up_to: int | None) -> int:
        state = self._state
        with state.lock:
            generation, cuts = state.truncations, self._cuts
            end = state.end_offset if up_to is None else min(up_to, state.end_offset)
            segments = state.segments.between(state.recovery_point, end)
            if end == state.end_offset:
                self.last_flush_ms = state.world.clock.monotonic_ms()
        # All that belongs to records below `end` was noted before they were appended.
        flushed = set[object]()
        while self._unsynced:
            self._sync(self._unsynced[0])
            flushed.add(self._unsynced.popleft())
        for segment in segments:
            if segment not in flushed:
                self._flush_segment(segment)
        self._sync_names()
        self._durable_cuts = max(self._durable_cuts, cuts)
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

    def _sync(self, one: Path | Segment | LateSnapshot) -> None:
        """Make a file durable that may have been replaced or deleted since it was written."""
        if isinstance(one, Segment):
            self._flush_segment(one)
            return
        if isinstance(one, LateSnapshot):
            one.write()
            one = one.path
        disk = self._state.disk
        try:
            fd = disk.open(one)
        except MissingFile:
            return
        try:
            fsync_file(disk, fd)
        finally:
            disk.close(fd)

    def _sync_names(self) -> None:
        """Fsync each directory with new names once; names made meanwhile are noted again."""
        for path in tuple(self._names):
            self._names.pop(path, None)
            try:
                fsync_dir(self._state.disk, path)
            except MissingFile:
                continue
            except DiskError:
                self._names[path] = None
                raise
