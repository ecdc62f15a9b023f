"""Estimates between log bytes and offset ranges, for byte limits and lag. [P]

Cuts fall between blocks. No sizes are known past the sealed segments, so each offset of the tail is estimated
at the bytes per offset of the newest sealed segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.remote.format.manifest import Child, Load, Manifest, PageRef, SegmentEntry
from service.remote.reading.time_search import BlocksOf
from service.spark.plan.sizes import UNKNOWN_BYTES_PER_OFFSET, bytes_per_offset
from service.spark.plan.splits import wanted_segments
from service.spark.selection import EVERYTHING
from service.spark.stream.offsets import Backlog, Taken


def bytes_between(manifest: Manifest | None, load: Load | None, begin_offset: int, end_offset: int) -> int:
    """Return about how many bytes the range is; a segment partly in it counts in proportion.

    So does a page of the manifest without `load`.
    """
    if manifest is None:
        return (end_offset - begin_offset) * UNKNOWN_BYTES_PER_OFFSET
    archived = _bytes_in(manifest.children, load, begin_offset, end_offset)
    beyond = end_offset - max(begin_offset, manifest.end_offset)
    return archived + max(0, beyond) * bytes_per_offset(manifest, load)


def _bytes_in(children: Sequence[Child], load: Load | None, begin: int, end: int) -> int:
    total = 0
    for child in children:
        first, last = max(begin, child.base_offset), min(end, child.last_offset + 1)
        if first >= last:
            continue
        span = child.last_offset + 1 - child.base_offset
        if isinstance(child, PageRef) and last - first < span and load is not None:
            total += _bytes_in(load(child).children, load, begin, end)
        else:
            size = child.log_length if isinstance(child, SegmentEntry) else child.size_bytes
            total += -(-size * (last - first) // span)
    return total


def take_bytes(
    manifest: Manifest | None, load: Load, blocks_of: BlocksOf, backlog: Backlog, budget: int
) -> Taken:
    """Return the end after as many blocks, then offsets of the tail, as fit `budget` bytes; at least one."""
    at, spent = backlog.begin_offset, 0
    segments = () if manifest is None else wanted_segments(manifest, load, at, backlog.end_offset, EVERYTHING)
    for entry in segments:
        is_whole = at <= entry.base_offset and backlog.end_offset > entry.last_offset
        if is_whole and spent + entry.log_length <= budget:
            spent, at = spent + entry.log_length, entry.last_offset + 1
            continue
        for block in blocks_of(entry):
            if block.last_offset < at:
                continue
            if block.first_offset >= backlog.end_offset:
                break
            if spent and spent + block.length > budget:
                return Taken(at, spent)
            spent, at = spent + block.length, block.last_offset + 1
        at = entry.last_offset + 1
    if at < backlog.end_offset and (manifest is None or at >= manifest.end_offset):
        each = bytes_per_offset(manifest, load)
        count = min(backlog.end_offset - at, max(0 if spent else 1, (budget - spent) // each))
        spent, at = spent + count * each, at + count
    return Taken(min(at, backlog.end_offset), spent)
