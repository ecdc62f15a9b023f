"""The batch that decisions write into until it is flushed. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from service.base.types import NO_EPOCH, NO_PRODUCER_ID, Buffer
from service.coordinator.shard import Producer, Record
from service.records.batch import HEADER_SIZE, Codec
from service.records.builder import BatchBuilder

RECORD_OVERHEAD: Final = 36
"""What a record is at most beside its key and value: every varint at its longest."""


def size_of(records: Iterable[Record]) -> int:
    """Bytes that the records take in a batch, at most, before compression."""
    size = 0
    for key, value in records:
        size += RECORD_OVERHEAD + len(key) + (0 if value is None else len(value))
    return size


class Block(Protocol):
    """Records of one decision that are written as bytes, and replayed as one, without a `Record` for each."""

    @property
    def count(self) -> int:
        """Records; one or more."""

    @property
    def size(self) -> int:
        """As `size_of` the records."""

    def encode(self, offset: int, delta: int, timestamp_delta: int) -> Buffer:
        """The records as they stand in a batch, the first at `offset`. Called once, before `replay`."""

    def replay(self, offset: int, is_committed: bool) -> None:
        """As the shard's `replay` of each record, the first at `offset`, at which the journal is.

        `is_committed`: all of them are, and the journal is at the last.
        """


class _Encoded(NamedTuple):
    amount: int
    records: Buffer


class OpenBatch:
    """Records of one or more decisions, at the offsets that they will have.

    No decision is cut: what does not fit goes into the next batch, so that a crash leaves all of it or none.
    """

    __slots__ = ("_count", "_first_ms", "_parts", "_size", "base_offset", "since_ms")

    def __init__(self, base_offset: int, now_ms: int) -> None:
        self.base_offset = base_offset
        self.since_ms = now_ms
        self._parts: list[tuple[int, tuple[Record, ...], _Encoded | None]] = []
        self._first_ms = -1
        """time of the first record"""
        self._count = 0
        self._size = HEADER_SIZE

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        return self.base_offset + self._count

    def __len__(self) -> int:
        return self._count

    def has_room(self, size: int, max_bytes: int) -> bool:
        """Whether the batch stays within `max_bytes` with records that take `size` (`size_of`)."""
        return self._size + size <= max_bytes

    def add(self, records: tuple[Record, ...], size: int, now_ms: int) -> None:
        """They were replayed at `next_offset` and after."""
        if not self._parts:
            self._first_ms = now_ms
        self._parts.append((now_ms, records, None))
        self._count += len(records)
        self._size += size

    def takes_encoded(self, now_ms: int) -> bool:
        """Whether a block may be added at this time, which is not before the batch's."""
        return not self._parts or now_ms >= self._first_ms

    def add_block(self, block: Block, now_ms: int) -> None:
        """It will be replayed at `next_offset` and after; there is room for it."""
        if not self._parts:
            self._first_ms = now_ms
        encoded = _Encoded(block.count, block.encode(self.next_offset, self._count, now_ms - self._first_ms))
        self._parts.append((now_ms, (), encoded))
        self._count += encoded.amount
        self._size += block.size

    def build(self, codec: Codec, producer: Producer | None = None) -> bytearray:
        """The batch as it is appended; `producer`: whose transaction all of it belongs to."""
        of = producer or Producer(NO_PRODUCER_ID, NO_EPOCH)
        builder = BatchBuilder(
            self.base_offset,
            codec,
            producer_id=of.producer_id,
            producer_epoch=of.producer_epoch,
            is_transactional=producer is not None,
        )
        for now_ms, records, encoded in self._parts:
            if encoded is None:
                builder.add_all(now_ms, records)
            else:
                builder.add_encoded(now_ms, encoded.amount, encoded.records)
        return builder.build()


def portions(records: tuple[Record, ...], max_bytes: int) -> list[tuple[Record, ...]]:
    """Records that may be cut anywhere, in as few pieces as fit into batches."""
    found: list[tuple[Record, ...]] = []
    start, size = 0, HEADER_SIZE
    for number, record in enumerate(records):
        more = size_of((record,))
        if number > start and size + more > max_bytes:
            found.append(records[start:number])
            start, size = number, HEADER_SIZE
        size += more
    found.append(records[start:])
    return found
