"""Finding local records by time.

Source: Kafka `UnifiedLog.fetchOffsetByTimestamp`, `LogSegment.findOffsetByTimestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.base.errors import CorruptionError
from service.hot.files import SegmentFile
from service.hot.segment import Segment
from service.hot.walk import iter_batches
from service.records.batch import BatchHeader
from service.records.decode import Record, iter_records

Found = tuple[int, int, int]
"""(offset, timestamp ms, leader epoch)"""


def offset_for_timestamp(segments: Sequence[Segment], timestamp: int, start_offset: int) -> Found | None:
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


def _in_segment(segment: Segment, timestamp: int, start_offset: int) -> Found | None:
    place = segment.find(max(segment.time_index.lookup(timestamp), start_offset, segment.base_offset))
    if place is None:
        return None
    file = segment.log.get()
    for header in iter_batches(file, place.position, segment.size):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in _records(file, header):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.offset, record.timestamp, header.partition_leader_epoch
    return None


def max_timestamp_offset(segments: Sequence[Segment]) -> Found | None:
    """The first record with the greatest timestamp; None if no record has one."""
    best = max((s for s in segments if s.size), key=lambda s: s.max_timestamp, default=None)
    if best is None or best.max_timestamp < 0:
        return None
    place = best.find(best.max_timestamp_offset)
    if place is None:
        return None
    file = best.log.get()
    header = next(iter_batches(file, place.position, best.size))
    for record in _records(file, header):
        if record.timestamp == header.max_timestamp:
            return record.offset, record.timestamp, header.partition_leader_epoch
    return None


def _records(file: SegmentFile, header: BatchHeader) -> list[Record]:
    data = file.pread(header.size, header.position)
    if len(data) != header.size:
        raise CorruptionError(f"{file.path} ends within the batch at {header.position}")
    return list(iter_records(data, include_control=True))
