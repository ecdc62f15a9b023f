"""The sealed segments of one log, for tiering."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from service.base.disk import MissingFile
from service.base.errors import StorageError
from service.base.files import read_file
from service.base.types import Buffer
from service.hot import names
from service.hot.files import FileHandle, SegmentFile
from service.hot.index_proof import prove_indexes
from service.hot.state import LogState
from service.hot.txn_index import TxnIndex
from service.records.segment_indexes import ProveIndexes


class SealedSegment(NamedTuple):
    """A segment that does not change any more. Offsets inclusive, size in bytes, times in ms.

    ``producer_snapshot_path``: the state at its end, that is before the next segment; ``base_snapshot_path``:
    before itself. ``txn_index_path``: the file may not exist. ``log``: its file; a segment that waits to be
    copied holds no descriptor. ``prove_indexes``: see `index_proof`.
    """

    base_offset: int
    last_offset: int
    size: int
    sealed_at_ms: int
    txn_index_path: Path | None
    producer_snapshot_path: Path | None
    log: FileHandle
    prove_indexes: ProveIndexes
    base_snapshot_path: Path | None = None

    @property
    def log_file(self) -> SegmentFile:
        """The log's file, which is opened at the first use and stays open while it is referenced, even if the
        segment is deleted meanwhile. For any thread."""
        return self.log.peek()

    def side_file(self, path: Path | None, most_bytes: int) -> bytes:
        """Read a file beside the log; empty if it does not exist, or was deleted meanwhile.

        `CorruptionError` if it is larger than `most_bytes`, `DiskError`.
        """
        if path is None:
            return b""
        try:
            return read_file(self.log.disk, path, most_bytes)
        except MissingFile:
            return b""


class SealedSpan(NamedTuple):
    """Range and size of a sealed segment, for an offload plan. Offsets inclusive, size in bytes."""

    base_offset: int
    last_offset: int
    size: int


class SealedSegments:
    """Lists the sealed segments of one log. Owned by the loop.

    The list ends before the first segment whose producer snapshot, or a row of whose transaction index, is
    not written yet, by the flush that it waits for. It is empty unless ``may_copy``. No method reads a file,
    except `sealed_at_ms`, once for a segment that an earlier process sealed. Each method raises `LogOffline`
    if the replica is offline.
    """

    __slots__ = ("_is_held_back", "_news", "_state", "may_copy")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._news: Callable[[], None] | None = None
        self._is_held_back = False
        self.may_copy: Callable[[], bool] = lambda: True

    def watch(self, news: Callable[[], None] | None) -> None:
        """Call `news` when a segment was sealed, the log's start moves or settings change; one callback at a
        time."""
        self._news = news

    def _notify(self) -> None:
        if self._news is not None:
            self._news()

    # `LogListener`

    def needs_flush(self, _: object) -> None:
        """Notify: a segment was sealed."""
        self._notify()

    def start_moved(self, _: object) -> None:
        """Notify: the log as a whole begins later."""
        self._notify()

    def files_queued(self, _: object, due_ms: int) -> None:
        """Do nothing: an upload holds the file of its segment open."""

    def configured(self, _: object) -> None:
        """Notify: the settings have changed."""
        self._notify()

    def flushed(self) -> None:
        """Notify after a flush, if a producer snapshot was missing before."""
        self.look_again()

    def look_again(self) -> None:
        """Notify, if segments were held back and may be copied now."""
        if self._is_held_back and self.may_copy():
            self._is_held_back = False
            self._notify()

    def spans(self, from_offset: int, most: int) -> list[SealedSpan]:
        """Return up to `most` segments that end beyond `from_offset` and are not empty, oldest first."""
        self._state.check()
        segments = self._state.segments
        found: list[SealedSpan] = []
        if not self.may_copy():
            self._is_held_back = True
            return found
        for slot in range(self._first_beyond(from_offset), len(segments) - 1):
            if len(found) == most:
                break
            segment = segments.all[slot]
            has_late_rows = segment.txn_index is not None and segment.txn_index.is_late
            if has_late_rows or self._state.snapshots.is_late(segments.bases[slot + 1]):
                self._is_held_back = True
                break
            if segment.size:
                found.append(SealedSpan(segment.base_offset, segments.bases[slot + 1] - 1, segment.size))
        return found

    def totals(self, from_offset: int, end_offset: int) -> tuple[int, int]:
        """Return number and bytes of the segments that end beyond `from_offset` and not beyond
        `end_offset`."""
        segments = self._state.segments
        begin = self._first_beyond(from_offset)
        end = max(begin, bisect_right(segments.bases, end_offset, lo=1) - 1)
        return end - begin, segments.positions[end] - segments.positions[begin]

    def bytes_beyond(self, offset: int) -> int:
        """Return the bytes of all segments that end beyond `offset`, including the active one."""
        segments = self._state.segments
        return segments.positions[-1] + segments.active.size - segments.positions[self._first_beyond(offset)]

    def sealed_at_ms(self, base_offset: int) -> int:
        """Return when the segment at `base_offset` was sealed. `DiskError`."""
        segments = self._state.segments
        return segments.all[segments.slot_of(base_offset)].sealed_at_ms

    def describe(self, base_offset: int) -> SealedSegment:
        """Describe the segment at `base_offset` for an offload thread; `StorageError` if it was deleted."""
        self._state.check()
        segments = self._state.segments
        slot = segments.slot_of(base_offset)
        if slot < 0 or segments.bases[slot] != base_offset:
            raise StorageError(f"{self._state.tip}: the segment at {base_offset} has been deleted")
        segment, end_offset = segments.all[slot], segments.bases[slot + 1]
        return SealedSegment(
            base_offset=segment.base_offset,
            last_offset=end_offset - 1,
            size=segment.size,
            sealed_at_ms=segment.sealed_at_ms,
            txn_index_path=self._state.dir / names.offset_file(base_offset, names.TXN_INDEX),
            producer_snapshot_path=self._state.snapshots.path(end_offset),
            log=segment.log,
            prove_indexes=partial(prove_indexes, segment),
            base_snapshot_path=self._state.snapshots.path(base_offset),
        )

    def replace_rows(self, base_offset: int, rows: Buffer) -> None:
        """Replace the transaction index of a segment, as it was found not to be that of its log.

        `StorageError` if the segment was deleted, or where the disk fails.
        """
        self._state.check()
        segments = self._state.segments
        slot = segments.slot_of(base_offset)
        if slot < 0 or segments.bases[slot] != base_offset:
            raise StorageError(f"{self._state.tip}: the segment at {base_offset} has been deleted")
        segment = segments.all[slot]
        if segment.txn_index is None:
            handle = self._state.txn_index_of(segment)
            segment.txn_index = TxnIndex(handle, self._state.world.threads.lock())
        segment.txn_index.replace(rows)
        segments.note_rows()

    def describe_all(self, from_offset: int = 0) -> list[SealedSegment]:
        """Describe all segments that end beyond `from_offset`, oldest first."""
        spans = self.spans(from_offset, len(self._state.segments))
        return [self.describe(span.base_offset) for span in spans]

    def _first_beyond(self, offset: int) -> int:
        """Return the index of the first segment that ends beyond `offset`: the active one if no sealed one
        does."""
        return bisect_right(self._state.segments.bases, offset, lo=1) - 1
