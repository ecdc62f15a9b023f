"""Erasure of the records of some keys from batches: which records go, and the copy of what stays. [P]

A key is known by its hash under the order's secret alone (SipHash-2-4 of 128 bits). A record goes if its key
is one of the order's, its offset is below the order's end and, where the order has a time, its timestamp is
earlier. These stay: records without a key, control batches, and under an order with a time the records
without a timestamp. Batches of aborted transactions are judged like others.

Offsets, producers, sequences, codecs and timestamps of what stays do not change. A batch

- that loses nothing is the same bytes;
- that loses some records is written with the rest, and with new counts in its header;
- that loses all is left out, unless it is its producer's last one, or the last one of the copy: then its
  header stays, for its sequence or its offset. The header of each batch stays where the caller says so.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final

from service.base.types import Buffer
from service.records.batch import HEADER_SIZE, BatchHeader, read_header
from service.records.compaction import LastBatches, empty_batch, sealed_batch
from service.records.compaction_kernel import write_records
from service.records.compression import compress
from service.records.copied_batches import CopiedBatches
from service.records.erasure_kernel import (
    JUDGED_FIELDS,
    copy_kept,
    count_erased,
    fill_table,
    has_hash,
    hash_words,
    judge_records,
)
from service.records.filter_kernel import xxhash64
from service.records.kernel_status import MIN_RECORD_SIZE, CopyState, Pause, Status
from service.records.key_kernel import SLOT_WORDS
from service.records.key_map import broken_records, inflated
from service.records.scan import BatchScan

SECRET_BYTES: Final = 16
HASH_BYTES: Final = 16
ANY_TIME: Final = -1
"""`before_ms` of an order that has no time."""
_HASH: Final = struct.Struct("<QQ")
_ROOM_PER_RECORD: Final = 16
_FIRST_MARKS: Final = 4096


def hash_key(secret: bytes, key: Buffer) -> bytes:
    """Return the 16 bytes that stand for a key in an order with this secret.

    The bytes are those of the reference implementation of SipHash-2-4 with 128 bits.
    """
    return _HASH.pack(*hash_words(key, _words(secret, SECRET_BYTES)))


def filter_hash(key: Buffer) -> int:
    """Return the hash by which a `KeyFilter` knows a key: xxHash64 with seed 0."""
    return xxhash64(key)


def _words(data: bytes, size: int) -> array[int]:
    """Return little-endian words; `size` is what `data` must be a multiple of."""
    if len(data) % size:
        raise ValueError(f"{len(data)} bytes are not a multiple of {size}")
    return array("Q", struct.unpack(f"<{len(data) // 8}Q", data))


class ErasureKeys:
    """Keys of one order. Never changes; any thread may use it."""

    def __init__(self, secret: array[int], table: array[int], entries: int, before_ms: int) -> None:
        """Use `of`."""
        self.secret = secret
        self.table = table
        self.entries = entries
        self.before_ms = before_ms

    @classmethod
    def of(cls, secret: bytes, hashes: bytes, before_ms: int = ANY_TIME) -> ErasureKeys:
        """Return the keys with these hashes, 16 bytes each, see `hash_key`.

        With a `before_ms` of 0 or more only records with an earlier timestamp go. `ValueError` for a secret
        or hashes of a wrong size.
        """
        if len(secret) != SECRET_BYTES or len(hashes) % HASH_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes, {len(hashes)} bytes of hashes")
        words = _words(hashes, HASH_BYTES)
        slots = max(4, len(hashes) // HASH_BYTES * 2)
        table = array("Q", bytes(8 * SLOT_WORDS * slots))
        return cls(_words(secret, SECRET_BYTES), table, fill_table(words, table), before_ms)

    def has(self, key: Buffer | None, timestamp: int) -> bool:
        """Return whether a record with this key and timestamp goes, wherever its offset is below the end."""
        if key is None or not self._is_early(timestamp):
            return False
        return has_hash(*hash_words(key, self.secret), self.table)

    def _is_early(self, timestamp: int) -> bool:
        return self.before_ms < 0 or 0 <= timestamp < self.before_ms


class ErasureCopier(CopiedBatches):
    """Copier of what an order leaves of a run of batches. For one thread at a time; the loops release the
    GIL."""

    def __init__(
        self,
        keys: ErasureKeys,
        end_offset: int,
        last_batches: LastBatches | None,
        keep_to: int,
        buffer_bytes: int,
    ) -> None:
        """`end_offset`: records at or beyond it stay. `keep_to`: the batch that ends there (exclusive) keeps
        its header. Without `last_batches` every batch keeps its header."""
        super().__init__(buffer_bytes)
        self._keys = keys
        self._end_offset = end_offset
        self._keeps_all = last_batches is None
        self._last = LastBatches({}) if last_batches is None else last_batches
        self._keep_to = keep_to
        self._marks = _Marks()

    def copy(self, piece: memoryview, batches: BatchScan) -> Iterator[memoryview]:
        """Copy what stays of the `batches` of `piece`; yield the buffer whenever it is full.

        The buffer is reused afterwards. `CorruptionError` for records that do not parse.
        """
        number = 0
        while True:
            status, number = copy_kept(
                piece, batches.positions, batches.sizes, number, self._keys.before_ms, self._end_offset,
                self._keep_to, self._keeps_all, self._keys.secret, self._keys.table, self._last.ids,
                self._last.last_offsets, self._marks.rows, self._out, self._state,
            )  # fmt: skip
            if status == Status.OK:
                return
            start = batches.positions[number]
            if status == Pause.BATCH:
                yield from self._compressed(piece[start : start + batches.sizes[number]])
                number += 1
            elif status == Pause.FULL:
                yield from self.rest()
            elif status == Pause.GROW:
                yield from self._grow(read_header(piece, start))
            else:
                raise broken_records(status, batches.base_offsets[number])

    def _grow(self, header: BatchHeader) -> Iterator[memoryview]:
        """Make room for a batch that is larger than the buffers.

        Its record count is bounded only once its bytes have room.
        """
        yield from self.rest()
        if header.size > len(self._out):
            self._out = bytearray(header.size)
        else:
            self._marks.make_room(header.record_count)

    def _compressed(self, batch: memoryview) -> Iterator[memoryview]:
        header = read_header(batch)
        records = inflated(header, batch)
        kept, newest = _judge(self._keys, header, batch, records, self._end_offset, self._marks)
        self._state[CopyState.READ] += header.record_count
        self._state[CopyState.KEPT] += kept
        if kept == header.record_count:
            yield from self._append(batch)
        elif kept:
            out = bytearray(len(records) + _ROOM_PER_RECORD * header.record_count)
            written = write_records(records, header.record_count, self._marks.rows, 0, out)
            if written < 0:
                raise broken_records(written, header.base_offset)
            packed = compress(header.codec, memoryview(out)[:written])
            yield from self._append(
                sealed_batch(header._replace(max_timestamp=newest, record_count=kept), packed)
            )
        elif self._keeps_all or self._last.has(header) or header.next_offset == self._keep_to:
            yield from self._append(empty_batch(header))


def count_hits(keys: ErasureKeys, piece: memoryview, batches: BatchScan, end_offset: int) -> int:
    """Return how many records of the `batches` of `piece` the order takes. `CorruptionError`."""
    state = array("q", bytes(8 * len(CopyState)))
    marks = _Marks()
    number = 0
    while True:
        status, number = count_erased(
            piece, batches.positions, batches.sizes, number, keys.before_ms, end_offset, keys.secret,
            keys.table, marks.rows, state,
        )  # fmt: skip
        if status == Status.OK:
            return state[CopyState.READ] - state[CopyState.KEPT]
        if status == Pause.BATCH:
            start = batches.positions[number]
            batch = piece[start : start + batches.sizes[number]]
            header = read_header(batch)
            kept, _ = _judge(keys, header, batch, inflated(header, batch), end_offset, marks)
            state[CopyState.READ] += header.record_count
            state[CopyState.KEPT] += kept
            number += 1
        elif status == Pause.GROW:
            marks.make_room(batches.record_counts[number])
        else:
            raise broken_records(status, batches.base_offsets[number])


class _Marks:
    """One byte for each record of a batch: whether it stays."""

    def __init__(self) -> None:
        self.rows = bytearray(_FIRST_MARKS)

    def make_room(self, count: int) -> None:
        """Hold `count` records; the caller has bounded them by the bytes that they lie in."""
        if count > len(self.rows):
            self.rows = bytearray(count)


def _judge(
    keys: ErasureKeys,
    header: BatchHeader,
    batch: memoryview,
    records: Buffer,
    end_offset: int,
    marks: _Marks,
) -> tuple[int, int]:
    """Mark the inflated `records` that stay; return how many they are, and their greatest timestamp."""
    if header.record_count > len(records) // MIN_RECORD_SIZE:
        raise broken_records(Status.TRUNCATED, header.base_offset)
    marks.make_room(header.record_count)
    judged = array("q", bytes(8 * JUDGED_FIELDS))
    status = judge_records(
        records, batch[:HEADER_SIZE], keys.before_ms, end_offset, keys.secret, keys.table, marks.rows, judged
    )
    if status != Status.OK:
        raise broken_records(status, header.base_offset)
    return judged[0], judged[2]
