"""Finding local records by time.

Source: Kafka `UnifiedLog.fetchOffsetByTimestamp`, `LogSegment.findOffsetByTimestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.base.errors import CorruptionError
from service.base.types import TimestampedOffset
from service.hot.files import SegmentFile
from service.hot.segment import Segment
from service.records.batch import BatchHeader
from service.records.decode import Record, iter_records
from service.records.walk import iter_batches


def offset_for_timestamp(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> TimestampedOffset | None:
    """First record at or after both `timestamp` and `start_offset`; None if there is none."""
    for slot, segment in enumerate(segments):
        following = segments[slot + 1].base_offset if slot + 1 < len(segments) else None
        if following is not None and following <= start_offset:
            continue
        if not segment.size or segment.max_timestamp < timestamp:
            continue
        found = _in_segment(segment, timestamp, start_offset)
        if found is not None:
            return found
    return None


def _in_segment(segment: Segment, timestamp: int, start_offset: int) -> TimestampedOffset | None:
    place = segment.find(max(segment.least_offset_for(timestamp), start_offset, segment.base_offset))
    if place is None:
        return None
    file = segment.log.get()
    for header in iter_batches(file.pread, place.position, segment.size, name=file.path):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in _records(file, header):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampedOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    return None


def max_timestamp_offset(segments: Sequence[Segment]) -> TimestampedOffset | None:
    """The first record with the greatest timestamp; None if no record has one."""
    best = max((s for s in segments if s.size), key=lambda s: s.max_timestamp, default=None)
    if best is None or best.max_timestamp < 0:
        return None
    place = best.find(best.max_timestamp_offset)
    if place is None:
        return None
    file = best.log.get()
    header = next(iter_batches(file.pread, place.position, best.size, name=file.path))
    for record in _records(file, header):
        if record.timestamp == header.max_timestamp:
            return TimestampedOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    return None


def _records(file: SegmentFile, header: BatchHeader) -> list[Record]:
    data = file.pread(header.size, header.position)
    if len(data) != header.size:
        raise CorruptionError(f"{file.path} ends within the batch at {header.position}")
    return list(iter_records(data, include_control=True))
