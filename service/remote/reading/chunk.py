"""Chunk: neighbouring blocks of one segment, downloaded together, verified once, served many times. [P]

Chunks begin and end at block borders, so a chunk is whole batches. Slices are views of the bytes that the
store's client holds: record bytes are never copied on their way to a socket.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import LAST_OFFSET_DELTA_AT, LOG_OVERHEAD
from service.records.kernel_status import Status
from service.records.scan import scan_batches
from service.remote.format.block_table import BlockTable, LogBlock

_HEAD: Final = struct.Struct(">qi")
_DELTA: Final = struct.Struct(">i")
_INDEX_INTERVAL: Final = 4096
_NO_END: Final = 1 << 63


class ChunkRange(NamedTuple):
    """Blocks of a chunk, `first_block` to `last_block`, exclusive, and their bytes."""

    first_block: int
    last_block: int
    position: int
    length: int


def split_chunks(table: BlockTable, chunk_bytes: int) -> tuple[ChunkRange, ...]:
    """Group blocks into chunks of at most `chunk_bytes`; a larger block is a chunk by itself.

    The result depends on the table alone, so that every read of an object requests the same ranges.
    """
    chunks = []
    first, position, length = 0, 0, 0
    for number, block in enumerate(table):
        if length and length + block.length > chunk_bytes:
            chunks.append(ChunkRange(first, number, position, length))
            first, position, length = number, block.position, 0
        length += block.length
    if length:
        chunks.append(ChunkRange(first, len(table), position, length))
    return tuple(chunks)


def cut_range(
    table: BlockTable, block: int, max_bytes: int, taken: Callable[[int], bool] | None = None
) -> ChunkRange:
    """Return the chunk that begins with `block`: at least that block, else at most `max_bytes`.

    It ends before the first later block that is `taken`.
    """
    first = table[block]
    length, last = first.length, block + 1
    while last < len(table) and length < max_bytes and not (taken and taken(last)):
        length += table[last].length
        if length > max_bytes:
            length -= table[last].length
            break
        last += 1
    return ChunkRange(block, last, first.position, length)


class ChunkSlice(NamedTuple):
    """Whole batches of one chunk. `at_end`: the chunk has nothing after them."""

    data: memoryview
    next_offset: int
    at_end: bool


class Chunk:
    """Verified bytes and a sparse index over their batches. Immutable; any thread may read it."""

    __slots__ = ("_offsets", "_positions", "data", "last_offset", "range")

    def __init__(
        self,
        data: memoryview,
        chunk: ChunkRange,
        last_offset: int,
        positions: array[int],
        offsets: array[int],
    ) -> None:
        self.data = data
        self.range = chunk
        self.last_offset = last_offset
        self._positions = positions
        self._offsets = offsets

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, end_offset: int = _NO_END
    ) -> ChunkSlice | None:
        """Return whole batches from the one that holds `offset` (or the first after it), up to `max_bytes`;
        they end before `end_offset`.

        None when the chunk ends before `offset`, when there is no such batch, or when the first one is too
        large and not `at_least_one`.
        """
        if offset > self.last_offset:
            return None
        start = self._batch_at(offset)
        if end_offset <= self.last_offset:
            border = self._batch_at(end_offset)
            if border <= start:
                return None
            max_bytes = min(max_bytes, border - start)
        end = self._border_before(start, start + max_bytes)
        if end == start:
            if not at_least_one:
                return None
            end = start + self._size_at(start)
        if end == len(self.data):
            return ChunkSlice(self.data[start:], self.last_offset + 1, at_end=True)
        return ChunkSlice(self.data[start:end], self._base_at(end), at_end=False)

    def _batch_at(self, offset: int) -> int:
        sample = max(bisect_right(self._offsets, offset) - 1, 0)
        position = self._positions[sample]
        while self._last_at(position) < offset:
            position += self._size_at(position)
        return position

    def _border_before(self, start: int, limit: int) -> int:
        """Return the last batch border at or before `limit`, not before `start`."""
        if limit >= len(self.data):
            return len(self.data)
        sample = bisect_right(self._positions, limit) - 1
        position = max(self._positions[sample], start)
        while (after := position + self._size_at(position)) <= limit:
            position = after
        return position

    def _base_at(self, position: int) -> int:
        return int(_HEAD.unpack_from(self.data, position)[0])

    def _size_at(self, position: int) -> int:
        return int(_HEAD.unpack_from(self.data, position)[1]) + LOG_OVERHEAD

    def _last_at(self, position: int) -> int:
        return self._base_at(position) + int(
            _DELTA.unpack_from(self.data, position + LAST_OFFSET_DELTA_AT)[0]
        )


def verify_chunk(data: Buffer, chunk: ChunkRange, table: BlockTable) -> Chunk:
    """Verify every block's checksum and the order of its batches, and index the batches.

    A block's checksum covers its batches', which were verified before it was made, so those are not computed
    again. Raises `CorruptionError` that names the position in the log and the offsets. The walk runs in the
    kernel.
    """
    view = memoryview(data).toreadonly()
    if len(view) != chunk.length:
        raise CorruptionError(f"{len(view)} bytes at {chunk.position}, {chunk.length} expected")
    blocks = [table[number] for number in range(chunk.first_block, chunk.last_block)]
    for block in blocks:
        start = block.position - chunk.position
        if crc32c(view[start : start + block.length]) != block.crc32c:
            raise CorruptionError(_where(block, "wrong checksum"))
    scan = scan_batches(view, next_offset=blocks[0].first_offset, with_checksums=False)
    if scan.status != Status.OK or scan.end != len(view):
        bad = next(b for b in reversed(blocks) if b.position - chunk.position <= scan.end)
        raise CorruptionError(_where(bad, f"bad batch at {chunk.position + scan.end}: {scan.status.name}"))
    _check_offsets(blocks, scan.base_offsets[0], scan.last_offsets[-1])
    stride = max(1, scan.batches * _INDEX_INTERVAL // max(len(view), 1))
    return Chunk(view, chunk, blocks[-1].last_offset, scan.positions[::stride], scan.base_offsets[::stride])


def _check_offsets(blocks: list[LogBlock], first: int, last: int) -> None:
    if first != blocks[0].first_offset or last != blocks[-1].last_offset:
        raise CorruptionError(_where(blocks[0], f"batches hold offsets {first} to {last}"))


def _where(block: LogBlock, problem: str) -> str:
    return (
        f"block at {block.position} of {block.length} bytes, "
        f"offsets {block.first_offset} to {block.last_offset}: {problem}"
    )
