"""Search for the first record not older than a timestamp: segments, then blocks, then batches. [P]

The caller provides block tables and blocks: the broker takes them from a cache (and calls again when a
download is complete), a planner reads them from the store.
"""

from __future__ import annotations

from collections.abc import Callable

from service.base.types import TimestampedOffset
from service.records.by_time import first_in_batches
from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.manifest import Load, Manifest, SegmentEntry
from service.remote.reading.chunk import Chunk
from service.remote.stores.errors import naming

BlocksOf = Callable[[SegmentEntry], BlockTable]
ChunkOf = Callable[[SegmentEntry, BlockTable, int], Chunk]
"""(segment, its blocks, index of one of them) -> a verified chunk that holds the block."""


def search_log(
    manifest: Manifest,
    load: Load,
    blocks_of: BlocksOf,
    chunk_of: ChunkOf,
    timestamp: int,
    from_offset: int = 0,
) -> TimestampedOffset | None:
    """Return the first live record at or after `from_offset` with a timestamp not below `timestamp`, if any.

    Only blocks whose maximum reaches `timestamp` are read. Raises `CorruptionError` when a batch does not
    parse, and what the callables raise. Source of the behaviour: Kafka's
    `RemoteLogManager.findOffsetByTimestamp`.
    """
    offset = max(from_offset, manifest.start_offset)
    while (entry := manifest.find_by_timestamp(timestamp, load, offset)) is not None:
        blocks = blocks_of(entry)
        index = blocks.index_of_timestamp(timestamp, blocks.index_of(offset))
        while index < len(blocks):
            chunk = chunk_of(entry, blocks, index)
            with naming(entry.key):
                found = search_block(chunk, blocks[index], timestamp, offset)
            if found is not None:
                return found
            index = blocks.index_of_timestamp(timestamp, index + 1)
        offset = entry.last_offset + 1
    return None


def newest_record(search: Callable[[int], TimestampedOffset | None], high: int) -> TimestampedOffset | None:
    """Return the first record with the greatest timestamp, which is `high` at most.

    `search` returns the first record at or after a timestamp. An erasure may have taken the record with
    `high` out of its batch, which keeps the timestamp; then the range of timestamps is halved until one is
    found.
    """
    found = search(high) if high >= 0 else None
    if found is not None:
        return found
    low, high = 0, high - 1
    while low <= high:
        middle = (low + high + 1) // 2
        one = search(middle)
        if one is None:
            high = middle - 1
        else:
            found, low = one, one.timestamp + 1
    return found


def search_block(chunk: Chunk, block: LogBlock, timestamp: int, from_offset: int) -> TimestampedOffset | None:
    """Return the first record of `block`, at or after `from_offset`, with a timestamp not below `timestamp`.

    Only batches whose maximum reaches `timestamp` are inflated. Raises `CorruptionError` when one does not
    parse.
    """
    start = block.position - chunk.range.position
    return first_in_batches(chunk.data, start, start + block.length, timestamp, from_offset)
