"""The first record not older than a timestamp, inside one block. [P]"""

from __future__ import annotations

from typing import NamedTuple

from service.records.batch import iter_headers
from service.records.decode import records_of
from service.remote.block_table import Block
from service.remote.chunk import Chunk


class TimestampedOffset(NamedTuple):
    """A record found by time: its offset, its timestamp (ms) and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def search_block(chunk: Chunk, block: Block, timestamp: int, from_offset: int) -> TimestampedOffset | None:
    """The first record of `block`, at or after `from_offset`, with a timestamp not below `timestamp`.

    Only batches whose maximum reaches `timestamp` are inflated. `CorruptionError` when one does not parse.
    """
    start = block.position - chunk.range.position
    for header in iter_headers(chunk.data, start, start + block.length):
        if header.max_timestamp < timestamp or header.last_offset < from_offset:
            continue
        for record in records_of(chunk.data, header):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return TimestampedOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    return None
