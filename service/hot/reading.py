"""Reads of one log: the segment and the bytes for an offset (Kafka `LocalLog.read`, `LogSegment.read`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.hot.files import FileSlice
from service.hot.lookup_prefetch import find_if_resident
from service.hot.segment import Segment
from service.hot.segments import Segments
from service.hot.state import LogState
from service.records.batch import LOG_OVERHEAD, size_at

_MAX_PLACES: Final = 64
_MOST_MORE: Final = 15
"""Further segments of one read; each holds a descriptor until its bytes are sent."""


class ReadResult(NamedTuple):
    """``slice``: bytes of one segment that begin with a whole batch and may end within one; None for none.

    ``start_offset``: base offset of the first batch if it was looked up, else the requested offset. ``more``:
    slices of the following segments, if ``slice`` reaches to the end of its own.
    """

    slice: FileSlice | None
    start_offset: int
    more: tuple[FileSlice, ...] = ()


class LogReader:
    """Reader of slices of a log's files. It caches where the last slices ended, as the next reads of those
    consumers begin there."""

    __slots__ = ("_places", "_segments", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._segments: Segments = state.segments
        self._places: dict[int, tuple[Segment, int]] = {}

    def forget(self) -> None:
        """Clear the cache: segments were truncated or deleted."""
        self._places.clear()

    def missing_pages(self, offset: int) -> Sequence[FileSlice]:
        """Return the pages that `read` needs to look up `offset` and that are not in the page cache, or the
        first of them. Nothing on an error, which `read` will raise."""
        if offset in self._places:
            return ()
        segment = self._segments.all[self._segments.slot_of(offset)]
        try:
            place, missing = find_if_resident(segment, offset)
        except (CorruptionError, DiskError):
            return ()
        if place is not None and place.base_offset == offset:
            self._remember(offset, segment, place.position)
        return missing

    def read(
        self, offset: int, max_bytes: int, end_offset: int, log_end_offset: int, min_one: bool
    ) -> ReadResult:
        """Read as `LocalLog.read` does, for an `offset` in the log and an `end_offset` not beyond its end."""
        segments = self._segments
        slot = segments.slot_of(offset)
        segment = segments.all[slot]
        start, position, first = self._locate(segment, offset)
        while position >= segment.size:  # more than once behind segments of which compaction left nothing
            slot += 1
            if slot == len(segments.all):
                if offset < log_end_offset:
                    self._missing(offset, f"{segment.log.path} ends before it")
                return ReadResult(None, offset)
            segment = segments.all[slot]
            start, position, first = segment.base_offset, 0, 0
            if start > offset:
                self._missing(offset, f"{segment.log.path} begins at {start}")
        limit = self._limit(slot, segment, end_offset, log_end_offset)
        if limit <= position:
            return ReadResult(None, offset)
        file = segment.log.get()
        size = limit - position
        if size > max_bytes:
            first = first or size_at(file.pread(LOG_OVERHEAD, position))
            if first > max_bytes and not min_one:
                return ReadResult(None, offset)
            size = min(size, max(first, max_bytes))
        _ = file.fd  # opened now: from here on the slice can be served even if the segment is deleted
        found = FileSlice(file, position, size)
        if position + size == segment.size and slot + 1 < len(segments.all) and size < max_bytes:
            return ReadResult(
                found, start, self._go_on(slot + 1, max_bytes - size, end_offset, log_end_offset)
            )
        return ReadResult(found, start)

    def end_of(self, offset: int, parts: Sequence[FileSlice], end_offset: int) -> int:
        """Return an offset that no batch in `parts`, of a read from `offset` to `end_offset` that was made in
        this turn, has or exceeds: near to their end, for what is to be found beside them."""
        segments, last = self._segments, parts[-1]
        slot = segments.slot_of(offset)
        while segments.all[slot].log.peek() is not parts[0].file:
            slot += 1
        slot += len(parts) - 1
        segment, position = segments.all[slot], last.position + last.size
        behind = segment.indexes.offset_behind(position) if position < segment.size else None
        if behind is None and slot + 1 < len(segments.bases):
            behind = segments.bases[slot + 1]
        return end_offset if behind is None else min(behind, end_offset)

    def _go_on(
        self, slot: int, max_bytes: int, end_offset: int, log_end_offset: int
    ) -> tuple[FileSlice, ...]:
        """Return slices of `max_bytes` at most, of a segment from its beginning and of those behind it."""
        found = []
        for at in range(slot, min(slot + _MOST_MORE, len(self._segments.all))):
            segment = self._segments.all[at]
            size = min(self._limit(at, segment, end_offset, log_end_offset), max_bytes)
            if size < LOG_OVERHEAD:
                break
            file = segment.log.get()
            if size < segment.size:
                head = file.pread_nowait(LOG_OVERHEAD, 0)
                if head is None or size_at(head) > size:
                    break  # not resident, or less than the first batch: a later read returns that whole
            _ = file.fd
            found.append(FileSlice(file, 0, size))
            max_bytes -= size
            if size < segment.size:
                break
        return tuple(found)

    def _locate(self, segment: Segment, offset: int) -> tuple[int, int, int]:
        """Return (base offset, position, size) of the first batch that ends at or after `offset`; the
        segment's end if there is none. The size is 0 if it was not read.
        """
        known = self._places.get(offset)
        if known is not None and known[0] is segment:
            return offset, known[1], 0
        place = segment.indexes.find(offset)
        if place is None:
            return offset, segment.size, 0
        if place.base_offset > offset:  # no checksum covers a batch's base offset
            self._missing(
                offset, f"{segment.log.path} goes on with {place.base_offset} at position {place.position}"
            )
        return place.base_offset, place.position, place.size

    def _missing(self, offset: int, why: str) -> None:
        """Raise `CorruptionError`, unless compaction may have removed `offset`."""
        if offset >= self._state.gaps_below:
            raise CorruptionError(f"offset {offset} is nowhere: {why}")

    def _limit(self, slot: int, segment: Segment, end_offset: int, log_end_offset: int) -> int:
        """Return the position up to which a segment may be read; cached as the position of `end_offset`."""
        bases = self._segments.bases
        if slot + 1 < len(bases) and bases[slot + 1] <= end_offset:
            return segment.size
        at_end = end_offset == log_end_offset
        position = segment.size if at_end else self._locate(segment, end_offset)[1]
        self._remember(end_offset, segment, position)
        return position

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        if offset not in self._places and len(self._places) >= _MAX_PLACES:
            del self._places[next(iter(self._places))]
        self._places[offset] = (segment, position)
