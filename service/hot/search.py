"""Finding local records by time: segments on the loop, by their indexes; batches and records on any thread.

Records with equal timestamps have one index entry, so a look may go through a whole segment. It reads headers
by the kernel and inflates one batch at a time, and holds nothing but the open file: the segment may go
meanwhile.

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


class Look(NamedTuple):
    """A part of one segment in which the first record at or after `timestamp` and `offset` is looked for."""

    file: SegmentFile
    position: int
    end: int
    timestamp: int
    offset: int

    def run(self) -> TimestampedOffset | None:
        """The record; None where there is none. Blocks, and may run on any thread.

        `CorruptionError` for what is no batch, `StorageError` for what cannot be read.
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
            # Large batches are stepped over with small reads, small ones are walked with large reads.
            size = READ_BYTES if at <= len(data) else LOOKUP_BYTES
            position += at
            if found:
                record, position = self._in_batch(position)
                if record is not None:
                    return record
        return None

    def _in_batch(self, position: int) -> tuple[TimestampedOffset | None, int]:
        """The record in the batch at `position`, if there is one, and the position behind the batch."""
        header = read_header(self.file.pread(HEADER_SIZE, position))
        size = header.size
        data = self.file.pread(size, position) if position + size <= self.end else b""
        if len(data) != size:
            raise CorruptionError(f"{self.file.path} ends within the batch at {position}")
        try:
            return first_in_batch(data, header, self.timestamp, self.offset), position + size
        except CorruptionError as e:
            raise CorruptionError(f"{self.file.path}, position {position}: {e}") from e


class TimeSearch:
    """The searches of one log. Owned by the loop, but for the looks."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def looks(self, timestamp: int, start_offset: int | None = None) -> Iterator[Look | None]:
        """Where the first record at or after both `timestamp` and `start_offset` can be, in that order.

        Also None for each segment that is passed over, so that whoever walks a long log can pause: what is
        removed or compacted meanwhile is taken as it is then. `StorageError`; a `CorruptionError` of a look
        belongs to `corrupt`.
        """
        start = self._state.local_start if start_offset is None else start_offset
        return self._judged(_looks_by_time(self._state.segments, timestamp, start))

    def looks_for_newest(self) -> Iterator[Look | None]:
        """Where the first record with the greatest timestamp is, if one has a timestamp; as `looks`."""
        return self._judged(_looks_for_newest(self._state.segments))

    def _judged(self, looks: Iterator[Look | None]) -> Iterator[Look | None]:
        try:
            self._state.check()
            for look in looks:
                yield look
                self._state.check()
        except CorruptionError as e:
            raise self.corrupt(e) from e

    def corrupt(self, error: CorruptionError) -> LogOffline:
        """Take the replica offline for what a look has found; the error to raise."""
        return self._state.corrupt(error)

    def find(self, looks: Iterator[Look | None]) -> TimestampedOffset | None:
        """What the first look finds that finds anything, at once on this thread."""
        try:
            for look in looks:
                if look is not None and (found := look.run()) is not None:
                    return found
        except CorruptionError as e:
            raise self.corrupt(e) from e
        return None


def _looks_by_time(segments: Segments, timestamp: int, start_offset: int) -> Iterator[Look | None]:
    following: int | None = 0
    while following is not None:
        # Whatever is there now: segments may have gone, or become one, since the one before.
        slot = max(segments.slot_of(following), 0)
        following = segments.bases[slot + 1] if slot + 1 < len(segments) else None
        look = None
        if following is None or following > start_offset:
            look = _look(segments.all[slot], timestamp, start_offset)
        yield look


def _look(segment: Segment, timestamp: int, start_offset: int) -> Look | None:
    if not segment.size or segment.max_timestamp < timestamp:
        return None
    place = segment.find(max(segment.least_offset_for(timestamp), start_offset, segment.base_offset))
    return None if place is None else _held(segment, place.position, timestamp, start_offset)


def _held(segment: Segment, position: int, timestamp: int, offset: int) -> Look:
    file = segment.log.get()
    _ = file.fd  # opened now: the look can be made even if the segment is deleted
    return Look(file, position, segment.size, timestamp, offset)


def _looks_for_newest(segments: Segments) -> Iterator[Look | None]:
    best: Segment | None = None
    is_there = False
    while not is_there:  # else it was compacted or removed meanwhile, so another may be the one
        best = None
        following: int | None = 0
        while following is not None:
            slot = max(segments.slot_of(following), 0)
            segment = segments.all[slot]
            following = segments.bases[slot + 1] if slot + 1 < len(segments) else None
            if segment.size and (best is None or segment.max_timestamp > best.max_timestamp):
                best = segment
            yield None
        is_there = best is None or segments.all[segments.slot_of(best.base_offset)] is best
    if best is None or best.max_timestamp < 0:
        return
    place = best.find(best.max_timestamp_offset)
    if place is not None:
        yield _held(best, place.position, best.max_timestamp, place.base_offset)
