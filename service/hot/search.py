"""Search of local records by timestamp: segments by their indexes on the loop, batches on any thread.

Records with equal timestamps have one index entry, so a search may scan a whole segment. It reads headers by
the kernel and decompresses one batch at a time, and holds nothing but the open file: the segment may be
deleted meanwhile.

Source: Kafka `UnifiedLog.fetchOffsetByTimestamp`, `LogSegment.findOffsetByTimestamp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import TimestampedOffset
from service.hot.files import SegmentFile
from service.hot.segment import Segment
from service.hot.segments import Segments
from service.hot.state import LogOffline, LogState
from service.records.batch import HEADER_SIZE, read_header
from service.records.by_time import batch_from, first_in_batch
from service.records.walk import LOOKUP_BYTES

READ_BYTES: Final = 1 << 20


class SegmentSearch(NamedTuple):
    """Search of a part of one segment for the first record at or after both `timestamp` and `offset`."""

    file: SegmentFile
    position: int
    end: int
    timestamp: int
    offset: int

    def run(self) -> TimestampedOffset | None:
        """Find the record; None if there is none. Blocks, and may run on any thread.

        `CorruptionError` for bytes that are no batch, `StorageError` for bytes that cannot be read.
        """
        position, size = self.position, LOOKUP_BYTES
        while position < self.end:
            data = self.file.pread(min(size, self.end - position), position)
            try:
                found, at = batch_from(data, 0, len(data), self.timestamp, self.offset)
            except CorruptionError as e:
                raise CorruptionError(f"{self.file.path}, from position {position} on: {e}") from e
            if at == 0 and not found:
                raise CorruptionError(f"{self.file.path}: no whole batch at position {position}")
            # Large batches are skipped with small reads, small ones are scanned with large reads.
            size = READ_BYTES if at <= len(data) else LOOKUP_BYTES
            position += at
            if found:
                record, position = self._in_batch(position)
                if record is not None:
                    return record
        return None

    def _in_batch(self, position: int) -> tuple[TimestampedOffset | None, int]:
        """Find the record in the batch at `position`; also returns the position behind the batch."""
        header = read_header(self.file.pread(HEADER_SIZE, position))
        size = header.size
        data = self.file.pread(size, position) if position + size <= self.end else b""
        if len(data) != size:
            raise CorruptionError(f"{self.file.path} ends within the batch at {position}")
        try:
            return first_in_batch(data, header, self.timestamp, self.offset), position + size
        except CorruptionError as e:
            raise CorruptionError(f"{self.file.path}, position {position}: {e}") from e


class TimestampSearch:
    """Finds segments to search in one log. Owned by the loop; each `SegmentSearch` runs on any thread."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def by_timestamp(self, timestamp: int, start_offset: int | None = None) -> Iterator[SegmentSearch | None]:
        """Yield the searches that can find the first record at or after both `timestamp` and `start_offset`,
        in order.

        Also yields None for each segment that is skipped, so that a caller can pause in a long log; segments
        may be deleted or compacted in the pause. `StorageError`; pass the `CorruptionError` of a search to
        `corrupt`.
        """
        start = self._state.local_start if start_offset is None else start_offset
        return self._checked(_searches_by_timestamp(self._state.segments, timestamp, start))

    def by_max_timestamp(self) -> Iterator[SegmentSearch | None]:
        """Yield the search for the first record with the greatest timestamp, as `by_timestamp` does; none if
        no record has a timestamp."""
        return self._checked(_search_for_max_timestamp(self._state.segments))

    def _checked(self, searches: Iterator[SegmentSearch | None]) -> Iterator[SegmentSearch | None]:
        try:
            self._state.check()
            for search in searches:
                yield search
                self._state.check()
        except CorruptionError as e:
            raise self.corrupt(e) from e

    def corrupt(self, error: CorruptionError) -> LogOffline:
        """Take the replica offline because of damage that a search found; returns the error to raise."""
        return self._state.corrupt(error)

    def run(self, searches: Iterator[SegmentSearch | None]) -> TimestampedOffset | None:
        """Run the searches on this thread until one finds a record."""
        try:
            for search in searches:
                if search is not None and (found := search.run()) is not None:
                    return found
        except CorruptionError as e:
            raise self.corrupt(e) from e
        return None


def _searches_by_timestamp(
    segments: Segments, timestamp: int, start_offset: int
) -> Iterator[SegmentSearch | None]:
    following: int | None = 0
    while following is not None:
        # Segments may have been deleted or merged since the previous step.
        slot = max(segments.slot_of(following), 0)
        following = segments.bases[slot + 1] if slot + 1 < len(segments) else None
        search = None
        if following is None or following > start_offset:
            search = _search_in(segments.all[slot], timestamp, start_offset)
        yield search


def _search_in(segment: Segment, timestamp: int, start_offset: int) -> SegmentSearch | None:
    if not segment.size or segment.max_timestamp < timestamp:
        return None
    indexes = segment.indexes
    place = indexes.find(max(indexes.least_offset_for(timestamp), start_offset, segment.base_offset))
    return None if place is None else _opened(segment, place.position, timestamp, start_offset)


def _opened(segment: Segment, position: int, timestamp: int, offset: int) -> SegmentSearch:
    file = segment.log.get()
    _ = file.fd  # opened now: the search can run even if the segment is deleted
    return SegmentSearch(file, position, segment.size, timestamp, offset)


def _search_for_max_timestamp(segments: Segments) -> Iterator[SegmentSearch | None]:
    best: Segment | None = None
    is_in_log = False
    while not is_in_log:  # else it was compacted or deleted meanwhile: another segment may be the newest
        best = None
        following: int | None = 0
        while following is not None:
            slot = max(segments.slot_of(following), 0)
            segment = segments.all[slot]
            following = segments.bases[slot + 1] if slot + 1 < len(segments) else None
            if segment.size and (best is None or segment.max_timestamp > best.max_timestamp):
                best = segment
            yield None
        is_in_log = best is None or segments.all[segments.slot_of(best.base_offset)] is best
    if best is None or best.max_timestamp < 0:
        return
    place = best.indexes.find(best.max_timestamp_offset)
    if place is not None:
        yield _opened(best, place.position, best.max_timestamp, place.base_offset)
