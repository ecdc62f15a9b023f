"""Open batch that collects the records of decisions until it is flushed. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from service.base.types import NO_EPOCH, NO_PRODUCER_ID, Buffer
from service.coordinator.shard import CoordinatorRecord, Producer
from service.records.batch import HEADER_SIZE, CompressionType
from service.records.builder import BatchBuilder

RECORD_OVERHEAD: Final = 36
"""Most bytes of a record besides its key and value: every varint at its longest."""


def size_of(records: Iterable[CoordinatorRecord]) -> int:
    """Return the most bytes that the records take in a batch, before compression."""
    size = 0
    for key, value in records:
        size += RECORD_OVERHEAD + len(key) + (0 if value is None else len(value))
    return size


class RecordBlock(Protocol):
    """Records of one decision that are encoded once and replayed at once, without a `CoordinatorRecord` for
    each."""

    @property
    def count(self) -> int:
        """Number of records, at least one."""

    @property
    def size(self) -> int:
        """`size_of` the records."""

    def encode(self, offset: int, delta: int, timestamp_delta: int) -> Buffer:
        """Return the records as they stand in a batch, the first at `offset`. Called once, before
        `replay`."""

    def replay(self, offset: int, is_committed: bool) -> None:
        """Do what the shard's `replay` of each record would, the first at `offset`, where the journal is.

        `is_committed`: all of them are committed, and the journal is at the last.
        """


class WholeBatch(Protocol):
    """Records of one decision as a batch of their own."""

    @property
    def count(self) -> int:
        """Number of records, at least one."""

    @property
    def size(self) -> int:
        """Size of the batch in bytes."""

    def build(self, offset: int, leader_epoch: int, now_ms: int) -> bytearray:
        """Return the batch, at its offset and with all its times `now_ms`. The next call may change it."""

    def replay(self, offset: int) -> None:
        """Do what the shard's `replay` of each record would: all of them are committed, the first is at
        `offset`, and the journal is at the last."""


class _Encoded(NamedTuple):
    amount: int
    records: Buffer


class OpenBatch:
    """Records of one or more decisions, at the offsets that they will have.

    A decision is not split: if it does not fit, it goes into the next batch, so a crash leaves all of it or
    none.
    """

    __slots__ = ("_count", "_first_ms", "_parts", "_size", "base_offset", "since_ms")

    def __init__(self, base_offset: int, now_ms: int) -> None:
        self.base_offset = base_offset
        self.since_ms = now_ms
        self._parts: list[tuple[int, tuple[CoordinatorRecord, ...], _Encoded | None]] = []
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
        """Return whether the batch stays within `max_bytes` with records of `size` (`size_of`)."""
        return self._size + size <= max_bytes

    def add(self, records: tuple[CoordinatorRecord, ...], size: int, now_ms: int) -> None:
        """Add records, which the shard has replayed from `next_offset` on."""
        if not self._parts:
            self._first_ms = now_ms
        self._parts.append((now_ms, records, None))
        self._count += len(records)
        self._size += size

    def takes_encoded(self, now_ms: int) -> bool:
        """Return whether a block may be added at this time: not before the time of the batch's first
        record."""
        return not self._parts or now_ms >= self._first_ms

    def add_block(self, block: RecordBlock, now_ms: int) -> None:
        """Add a block that fits; it is replayed later, from `next_offset` on."""
        if not self._parts:
            self._first_ms = now_ms
        encoded = _Encoded(block.count, block.encode(self.next_offset, self._count, now_ms - self._first_ms))
        self._parts.append((now_ms, (), encoded))
        self._count += encoded.amount
        self._size += block.size

    def build(self, codec: CompressionType, producer: Producer | None = None) -> bytearray:
        """Return the encoded batch. `producer`: the transactional producer of all its records."""
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


def split_records(
    records: tuple[CoordinatorRecord, ...], max_bytes: int
) -> list[tuple[CoordinatorRecord, ...]]:
    """Split records that may be cut anywhere into as few pieces as fit into batches."""
    found: list[tuple[CoordinatorRecord, ...]] = []
    start, size = 0, HEADER_SIZE
    for number, record in enumerate(records):
        more = size_of((record,))
        if number > start and size + more > max_bytes:
            found.append(records[start:number])
            start, size = number, HEADER_SIZE
        size += more
    found.append(records[start:])
    return found
