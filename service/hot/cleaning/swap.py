"""What was cleaned takes the place of what it was copied from, whatever fails and whenever it is killed.

The files' names say how far it has come; every step is on the device before the next one:

    1  x.log.cleaned ...            written: of no use yet
    2  x.log.swap ...               the log's file last: from here on what is new counts
    3  x.log.deleted y.log.deleted  what is old is out of the way
    4  x.log                        what is new has its name
    5  x.index ...                  and so have the files beside it

A start undoes 1, and 2 where anything is still called ``.cleaned``; it finishes the rest (`interrupted`).
What is new ends where the last of what it replaces ends, so it tells by itself what it replaces.

Whoever reads meanwhile reads what is new, through files that are held open, from just before step 2 on;
slices of what is old keep theirs open.

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
    """One replacement: what is done on disk. From any thread, once; whoever comes later waits for it.

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
        """Steps 2 to 5. `StorageError`; where nothing was committed then, nothing is left of what is new."""
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
        self.is_committed = True  # perhaps: nobody knows once the next line has failed
        fsync_dir(disk, directory)
        for segment in self.old:
            for suffix in names.SEGMENT_SUFFIXES:
                path = directory / names.offset_file(segment.base_offset, suffix)
                rename(disk, path, marked(path, names.DELETED), must_be=False)
        fsync_dir(disk, directory)
        take_names(disk, log)


def discard(disk: Disk, log: Path) -> None:
    """As `clear`; what stays is removed by the next start."""
    try:
        clear(disk, log)
    except DiskError as e:
        _log.warning("left for the next start: %s", e)


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

    def begin(self, old: Sequence[Segment], new: Segment) -> Swap | None:
        """Let reads use `new`, whose files are open. Returns None if the log has changed meanwhile."""
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
