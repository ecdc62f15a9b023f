"""Whether a segment's two indexes can be true: a few looks, before anything rests on them."""

from __future__ import annotations

from errno import EIO, ENOENT
from pathlib import Path
from typing import NamedTuple

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.hot.indexes import OffsetIndex, TimeIndex
from service.records.walk import Read, find_offset, iter_batches


class Looked(NamedTuple):
    """A segment's log and indexes; ``size`` in bytes."""

    read: Read
    path: Path
    size: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    interval_bytes: int


def index_problem(segment: Looked) -> str:
    """What is wrong with the indexes; "" where nothing is seen. `CorruptionError`, `DiskError` where they or
    the log cannot be read."""
    for index in (segment.offset_index, segment.time_index):
        if index.handle.size % index.ENTRY.size:
            return f"{index.handle.path.name} has {index.handle.size} bytes"
    return _offset_index_problem(segment) or _time_index_problem(segment)


def _offset_index_problem(segment: Looked) -> str:
    """The last entry is of a batch, and no later batch should have had one."""
    index = segment.offset_index
    last = index.last()
    name = index.handle.path.name
    if last is not None:
        if not 0 < last[1] < segment.size:
            return f"{name} points beyond the log"
        place = find_offset(segment.read, index.base_offset, last[1], segment.size)
        if place is None or place.last_offset != last[0]:
            return f"{name} points to no batch that ends with offset {last[0]}"
    if index.is_full:
        return ""
    since = 0
    for header in iter_batches(segment.read, last[1] if last else 0, segment.size, name=segment.path):
        if since > 2 * segment.interval_bytes:
            return f"{name} lacks entries"
        since += header.size
    return ""


def _time_index_problem(segment: Looked) -> str:
    """Closing and sealing leave an entry: an empty index is a loss, unless records have no timestamps."""
    index = segment.time_index
    name = index.handle.path.name
    if not segment.size:
        return f"{name} is not empty" if index.entries else ""
    if not index.entries:
        first = next(iter_batches(segment.read, 0, segment.size, name=segment.path))
        return f"{name} is empty" if first.max_timestamp >= 0 else ""
    timestamp, offset = index.last()
    position, _ = segment.offset_index.lookup(offset)
    place = find_offset(segment.read, offset, position, segment.size)
    if place is not None and place.last_offset == offset:
        header = next(iter_batches(segment.read, place.position, segment.size, name=segment.path))
        if header.max_timestamp == timestamp:
            return ""
    return f"{name} ends with time {timestamp} at offset {offset}, where the log has another"


def of_the_index(error: CorruptionError | DiskError) -> Exception:
    """`error` where an index can be made anew because of it; else raised: descriptors, say, come back."""
    if isinstance(error, DiskError) and error.errno not in (ENOENT, EIO):
        raise error
    return error
