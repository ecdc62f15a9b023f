"""Block table: position, contents and checksum of each ~1 MiB of a log. [P]

A block is a run of whole batches. One row is 56 bytes, big-endian::

    i64 position        u32 length        u32 crc32c of the block's bytes
    i64 first offset    i64 last offset   i64 min timestamp   i64 max timestamp
    u32 records         u32 batches

Rows are in log order and cover the log without a gap. `min_timestamp` is -1 when it is not known (or when a
record has no timestamp): such a block must not be skipped by its lower bound. `max_timestamp` is the largest
timestamp of any record, -1 when none has one. A later writer may append fields to a row.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer

ROW: Final = struct.Struct(">qIIqqqqII")
MAX_ROW_BYTES: Final = 4096
DEFAULT_BLOCK_BYTES: Final = 1 << 20


class LogBlock(NamedTuple):
    """One row. `first_offset` is the base offset of the first batch, `last_offset` the last batch's last."""

    position: int
    length: int
    crc32c: int
    first_offset: int
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    record_count: int
    batch_count: int

    @property
    def end(self) -> int:
        return self.position + self.length


class BatchFacts(NamedTuple):
    """Facts of one batch that the block table sums up; `position` and `size` are bytes within the log.

    `min_timestamp` is -1 when the caller did not read the records.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    record_count: int


class BlockTotals(NamedTuple):
    record_count: int
    batch_count: int
    max_timestamp: int


class BlockTable(Sequence[LogBlock]):
    """Rows, kept encoded: a cached footer of a 1 GiB segment costs 56 KiB and no object per row."""

    __slots__ = ("_firsts", "encoded")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._firsts = [row[3] for row in ROW.iter_unpack(encoded)]

    @classmethod
    def of(cls, blocks: Iterable[LogBlock]) -> BlockTable:
        return cls(b"".join(ROW.pack(*block) for block in blocks))

    @classmethod
    def decode(cls, data: Buffer, row_bytes: int = ROW.size) -> BlockTable:
        """Return the table in `data`, not verified yet; unknown fields of longer rows are ignored.

        Raises `CorruptionError` when `data` is not whole rows.
        """
        if row_bytes < ROW.size or len(data) % row_bytes:
            raise CorruptionError(f"block table: {len(data)} bytes are not whole rows of {row_bytes}")
        if row_bytes > ROW.size:
            return cls(b"".join(data[at : at + ROW.size] for at in range(0, len(data), row_bytes)))
        return cls(bytes(data))

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, index: int) -> LogBlock:  # type: ignore[override]  # slices are not needed
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return LogBlock._make(ROW.unpack_from(self.encoded, index * ROW.size))

    def __iter__(self) -> Iterator[LogBlock]:
        return map(LogBlock._make, ROW.iter_unpack(self.encoded))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockTable) and other.encoded == self.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def verify(self, log_length: int, base_offset: int, last_offset: int) -> None:
        """Raise `CorruptionError` unless the rows cover the log without a gap, with rising offsets in its
        range.

        The first block may begin above `base_offset` and the last may end below `last_offset`: compaction
        removes records, but not the segment's offset range.
        """
        position, offset = 0, base_offset - 1
        for number, block in enumerate(self):
            if block.position != position or block.length == 0:
                raise CorruptionError(
                    f"block {number}: {block.length} bytes at {block.position}, expected {position}"
                )
            if not offset < block.first_offset <= block.last_offset:
                raise CorruptionError(
                    f"block {number}: offsets {block.first_offset} to {block.last_offset} after {offset}"
                )
            if (
                block.batch_count == 0
                or block.min_timestamp < -1
                or block.max_timestamp < block.min_timestamp
            ):
                raise CorruptionError(
                    f"block {number}: {block.batch_count} batches, "
                    f"timestamps {block.min_timestamp} to {block.max_timestamp}"
                )
            position, offset = block.end, block.last_offset
        if position != log_length:
            raise CorruptionError(f"block table covers {position} bytes of a log of {log_length}")
        if offset > last_offset:
            raise CorruptionError(f"block table ends at offset {offset}, the segment at {last_offset}")

    def totals(self) -> BlockTotals:
        records, batches, newest = 0, 0, -1
        for block in self:
            records += block.record_count
            batches += block.batch_count
            newest = max(newest, block.max_timestamp)
        return BlockTotals(records, batches, newest)

    def index_of(self, offset: int) -> int:
        """Return the index of the block that holds `offset`, or of the next one where compaction left a hole.

        ``len(self)`` when every record lies below `offset`.
        """
        index = bisect_right(self._firsts, offset) - 1
        if index < 0:
            return 0
        return index if self[index].last_offset >= offset else index + 1

    def index_of_timestamp(self, timestamp: int, start: int = 0) -> int:
        """Return the index of the first block from `start` on with a record not older than `timestamp`.

        ``len(self)`` if there is none.
        """
        for index in range(start, len(self)):
            if self[index].max_timestamp >= timestamp:
                return index
        return len(self)


class BlockTableBuilder:
    """Builds the rows from batches in log order.

    >>> builder = BlockTableBuilder(target_bytes=100)
    >>> builder.add(BatchFacts(0, 4, 10, 11, 5, 7, 2), b"abcd")
    >>> [(block.first_offset, block.last_offset, block.length) for block in builder.finish()]
    [(10, 11, 4)]
    """

    def __init__(self, target_bytes: int = DEFAULT_BLOCK_BYTES) -> None:
        self._target_bytes = target_bytes
        self._blocks: list[LogBlock] = []
        self._open: LogBlock | None = None

    def add(self, batch: BatchFacts, data: Buffer) -> None:
        """Add the next batch and its bytes. A block ends before the batch that would exceed the target.

        A caller that has summed up consecutive batches adds them with `add_run`.
        """
        self.add_run(batch, 1, data)

    def add_run(self, batches: BatchFacts, batch_count: int, data: Buffer) -> None:
        """Add several consecutive batches at once, as a kernel has summed them up."""
        if len(data) != batches.size:
            raise ValueError(f"{len(data)} bytes for batches of {batches.size}")
        last = self._open
        if last is not None and last.length + batches.size > self._target_bytes:
            self._blocks.append(last)
            last = None
        if last is None:
            self._open = LogBlock(
                batches.position,
                batches.size,
                crc32c(data),
                batches.base_offset,
                batches.last_offset,
                batches.min_timestamp,
                batches.max_timestamp,
                batches.record_count,
                batch_count,
            )
        else:
            self._open = LogBlock(
                last.position,
                last.length + batches.size,
                crc32c(data, last.crc32c),
                last.first_offset,
                batches.last_offset,
                min(last.min_timestamp, batches.min_timestamp),
                max(last.max_timestamp, batches.max_timestamp),
                last.record_count + batches.record_count,
                last.batch_count + batch_count,
            )

    def finish(self) -> tuple[LogBlock, ...]:
        """Return the rows of everything added so far."""
        return (*self._blocks, self._open) if self._open is not None else tuple(self._blocks)
