"""Replacement of segments by their compacted copy; safe against errors and a kill at any time (invariant L8).

The files' names show the progress; each step is durable before the next one:

    1  x.log.cleaned ...            the copy is written, and not used yet
    2  x.log.swap ...               the log file last: from here on the copy counts
    3  x.log.deleted y.log.deleted  the old files are renamed
    4  x.log                        the copy has its final name
    5  x.index ...                  and so have its side files

A start undoes 1, and 2 if any file still ends with ``.cleaned``; it finishes the rest (`interrupted`). The
copy ends where the last segment that it replaces ends, so its own content shows what it replaces.

From just before step 2 on reads use the copy, through files that are held open; slices of the old segments
keep theirs open.

Source: Kafka `LocalLog.replaceSegments`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from service.base.disk import Disk, DiskError
from service.base.errors import StorageError
from service.base.files import fsync_dir
from service.hot import names
from service.hot.cleaning.interrupted import SIDE_FILES, clear, marked, rename, take_names
from service.hot.deletion_queue import DeletionQueue
from service.hot.reading import LogReader
from service.hot.segment import Segment
from service.hot.state import LogState

_log = logging.getLogger(__name__)


class Swap:
    """One replacement on disk. `run` may be called on any thread; it runs once, and later callers wait for
    it.

    ``is_committed``: whether a start would finish it.
    """

    def __init__(self, state: LogState, old: Sequence[Segment], new: Segment) -> None:
        self.old = tuple(old)
        self.new = new
        self.is_committed = False
        self._state = state
        self._lock = state.world.threads.lock()
        self._is_over = False
        self._error: StorageError | None = None

    def run(self) -> None:
        """Do steps 2 to 5. `StorageError`; if nothing was committed, the copy is deleted then."""
        with self._lock:
            if not self._is_over:
                try:
                    self._run()
                except StorageError as e:
                    self._error = e
                self._is_over = True
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        disk, directory = self._state.disk, self._state.dir
        log = directory / names.offset_file(self.new.base_offset, names.LOG)
        sides = [log.with_suffix(suffix) for suffix in SIDE_FILES]
        try:
            for path in (*sides, log):
                rename(disk, marked(path, names.CLEANED), marked(path, names.SWAP), must_be=path == log)
        except DiskError:
            discard(disk, log)
            raise
        self.is_committed = True  # perhaps: it is unknown if the next line fails
        fsync_dir(disk, directory)
        for segment in self.old:
            for suffix in names.SEGMENT_SUFFIXES:
                path = directory / names.offset_file(segment.base_offset, suffix)
                rename(disk, path, marked(path, names.DELETED), must_be=False)
        fsync_dir(disk, directory)
        take_names(disk, log)


def discard(disk: Disk, log: Path) -> None:
    """Delete an unused copy as `clear` does; the next start deletes files that stay."""
    try:
        clear(disk, log)
    except DiskError as e:
        _log.warning("the next start deletes an unused copy: %s", e)


class Swapping:
    """Replaces segments of one log in memory. Owned by the loop.

    ``current``: the replacement that is under way, None if there is none.
    """

    __slots__ = ("_queue", "_reader", "_state", "current")

    def __init__(self, state: LogState, reader: LogReader, queue: DeletionQueue) -> None:
        self.current: Swap | None = None
        self._state = state
        self._reader = reader
        self._queue = queue

    def begin(self, old: Sequence[Segment], new: Segment, *, leaves_gaps: bool = True) -> Swap | None:
        """Let reads use `new`, whose files are open. Returns None if the log has changed meanwhile.

        `leaves_gaps`: offsets that `old` has are missing in `new`.
        """
        state = self._state
        first = state.segments.slot_of(old[0].base_offset)
        there = state.segments.all[first : first + len(old)]
        same = len(there) == len(old) and all(one is other for one, other in zip(there, old, strict=True))
        if state.failure is not None or self.current is not None or not same or first < 0:
            return None
        if old[-1] is state.segments.active:
            return None
        with state.lock:
            state.segments.replace(old, [new])
        self._reader.forget()
        if leaves_gaps:
            state.gaps_below = max(state.gaps_below, state.segments.bases[first + 1])
        self.current = Swap(state, old, new)
        return self.current

    def end(self, swap: Swap) -> None:
        """Apply the outcome of `swap` in memory. `StorageError` if it failed; the replica is offline then if
        the swap was committed."""
        state = self._state
        if self.current is not swap:
            return
        self.current = None
        try:
            swap.run()
        except StorageError as e:
            if swap.is_committed:
                raise state.fail(f"a compacted segment could not replace the old ones: {e}") from e
            with state.lock:
                state.segments.replace([swap.new], list(swap.old))
            self._reader.forget()
            swap.new.close()
            raise
        for handle in swap.new.handles:
            handle.moved(handle.path.with_suffix(""))
            handle.unpin()
        self._queue.add_replaced(swap.old)

    def finish(self) -> None:
        """Finish the swap that is under way, before the log's segments change in another way. Blocks."""
        if self.current is not None:
            self.end(self.current)
