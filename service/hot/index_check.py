"""Plausibility check of a segment's two indexes, by a few reads before their first use."""

from __future__ import annotations

from errno import EIO, ENOENT
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP
from service.hot.indexes import OffsetIndex, TimeIndex
from service.records.walk import Read, find_offset, iter_batches

_MOST_HEADERS: Final = 256
"""Headers of batches that one check reads, as it may run on the loop: a millisecond."""


class IndexedSegment(NamedTuple):
    """A segment's log and indexes; ``size`` in bytes."""

    read: Read
    path: Path
    size: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    interval_bytes: int


def index_problem(segment: IndexedSegment) -> str:
    """Describe what is wrong with the indexes; "" if nothing is found. `CorruptionError`, `DiskError` if they
    or the log cannot be read."""
    for index in (segment.offset_index, segment.time_index):
        if index.handle.size % index.ENTRY.size:
            return f"{index.handle.path.name} has {index.handle.size} bytes"
    return _offset_index_problem(segment) or _time_index_problem(segment)


def _offset_index_problem(segment: IndexedSegment) -> str:
    """Check that the last entry points to a batch, and that no later batch should have an entry."""
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


def _time_index_problem(segment: IndexedSegment) -> str:
    """Check the last entry: closing and sealing add one for the greatest timestamp, so no batch behind it has
    a greater one.

    Reads the first `_MOST_HEADERS` batches behind it, which are all unless timestamps descend for long. An
    empty index is an error, unless records have no timestamps.
    """
    index = segment.time_index
    name = index.handle.path.name
    if not segment.size:
        return f"{name} is not empty" if index.entries else ""
    timestamp, position = NO_TIMESTAMP, 0
    if index.entries:
        timestamp, offset = index.last()
        position, _ = segment.offset_index.lookup(offset)
        place = find_offset(segment.read, offset, position, segment.size)
        if place is None or place.last_offset != offset:
            return f"{name} ends with time {timestamp} at offset {offset}, which no batch ends with"
        position = place.position
    batches = iter_batches(segment.read, position, segment.size, name=segment.path)
    headers = list(islice(batches, _MOST_HEADERS))
    if index.entries and headers[0].max_timestamp != timestamp:
        return f"{name} ends with time {timestamp} at offset {offset}, where the log has another"
    later = max(header.max_timestamp for header in headers)
    return f"{name} lacks time {later}" if later > timestamp else ""


def index_error(error: CorruptionError | DiskError) -> Exception:
    """Return `error` if rebuilding the index helps; else raise it: descriptors, for example, come back."""
    if isinstance(error, DiskError) and error.errno not in (ENOENT, EIO):
        raise error
    return error
