"""Copy of the retained batches of a compacted log. [P]

Offsets, producers, sequences, codecs and timestamps stay. A batch

- whose records are all kept is copied unchanged;
- some of whose records are removed is written with the rest, and with new counts in its header;
- all of whose records are removed is removed, unless it is its producer's last one, or the last one below the
  end of the copy: then its header is kept, for its sequence or its offset.

A tombstone that is met for the first time gives its batch a delete horizon, the time after which it may be
removed (KIP-534): the base timestamp becomes that time, and the records' deltas count from it. So does a
marker whose transaction is gone. A batch with an unreasonable timestamp gets no horizon.

Source: Kafka `Cleaner.cleanInto`, `MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from service.base.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, Buffer
from service.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_AT,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    compute_crc,
    read_header,
)
from service.records.compaction_kernel import (
    JUDGED_FIELDS,
    copy_batches,
    judge_records,
    later_by,
    write_records,
)
from service.records.compression import compress
from service.records.copied_batches import CopiedBatches
from service.records.kernel_status import MIN_RECORD_SIZE, CopyState, Judging, Pause, Status
from service.records.key_map import KeyMap, TransactionOutcomes, broken_records, inflated
from service.records.scan import BatchScan

_ONE: Final = 1
_ENDED: Final = 2
_STAYS: Final = 4
_ROOM_PER_RECORD: Final = 16
_LAST_HORIZON_MS: Final = 2**61
"""Upper limit of horizons: retention may be any 64-bit number, and deltas count from the horizon."""
_KEPT_OF_EMPTY: Final = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_CRC: Final = struct.Struct(">I")


class LastBatches:
    """Ends of the last batches of active producers, which are kept even if empty."""

    def __init__(self, producers: Mapping[int, tuple[int, int]]) -> None:
        """`producers`: id to (last offset, -1 for no data batch; epoch)."""
        self.ids = array("q", sorted(producers))
        self.last_offsets = array("q", (producers[one][0] for one in self.ids))
        self._epochs = array("h", (producers[one][1] for one in self.ids))

    def has(self, header: BatchHeader) -> bool:
        """Return whether the batch is its producer's last; without data batches, a marker of its epoch is."""
        at = bisect_left(self.ids, header.producer_id)
        if header.producer_id < 0 or at == len(self.ids) or self.ids[at] != header.producer_id:
            return False
        if self.last_offsets[at] >= 0:
            return self.last_offsets[at] == header.last_offset
        return header.is_control and header.producer_epoch == self._epochs[at]


class CopyRules(NamedTuple):
    """Times in ms. ``end_offset``: a batch that ends there is kept, even if empty."""

    now_ms: int
    delete_retention_ms: int
    end_offset: int


class CompactionCopier(CopiedBatches):
    """Copier of one group of segments. For one thread at a time; the loops release the GIL."""

    def __init__(
        self,
        keys: KeyMap,
        fates: TransactionOutcomes,
        rules: CopyRules,
        last_batches: LastBatches,
        buffer_bytes: int,
    ) -> None:
        super().__init__(buffer_bytes)
        self._keys = keys
        self._fates = fates
        self._rules = rules
        self._last = last_batches
        horizon_ms = min(rules.now_ms + rules.delete_retention_ms, _LAST_HORIZON_MS)
        self._times = array("q", (rules.now_ms, horizon_ms))
        self._marks = bytearray(4096)

    def copy(self, piece: memoryview, batches: BatchScan) -> Iterator[memoryview]:
        """Copy the retained part of the `batches` of `piece`; yield the buffer whenever it is full.

        The buffer is reused afterwards. `CorruptionError` for records that do not parse.
        """
        number = 0
        while True:
            status, number = self._batches(piece, batches.positions, batches.sizes, number, Judging.BY_KEY, 0)
            if status == Status.OK:
                return
            if status == Pause.BATCH:
                start = batches.positions[number]
                yield from self._one(piece[start : start + batches.sizes[number]])
                number += 1
            elif status == Pause.FULL:
                yield from self.rest()
            elif status == Pause.GROW:
                yield from self._grow(read_header(piece, batches.positions[number]))
            else:
                raise broken_records(status, batches.base_offsets[number])

    def _batches(
        self,
        piece: memoryview,
        positions: array[int],
        sizes: array[int],
        number: int,
        judging: int,
        flags: int,
    ) -> tuple[int, int]:
        return copy_batches(
            piece, positions, sizes, number, judging, flags, self._times, self._rules.end_offset,
            self._keys.secret, self._keys.table, self._keys.latest, self._last.ids, self._last.last_offsets,
            self._marks, self._out, self._state,
        )  # fmt: skip

    def _grow(self, header: BatchHeader) -> Iterator[memoryview]:
        """Make room for an uncompressed batch that is larger than the buffers. `CorruptionError` if its bytes
        cannot hold as many records as it claims."""
        if header.record_count > (header.size - HEADER_SIZE) // MIN_RECORD_SIZE:
            raise broken_records(Status.TRUNCATED, header.base_offset)
        yield from self.rest()
        room = header.size + _ROOM_PER_RECORD * header.record_count
        if room > len(self._out):
            self._out = bytearray(room)
        if header.record_count > len(self._marks):
            self._marks = bytearray(header.record_count)

    def _one(self, batch: memoryview) -> Iterator[memoryview]:
        """Copy a batch that is compressed or belongs to a transaction, or a marker."""
        header = read_header(batch)
        judging, flags = self._fate(header, batch)
        if header.attributes & CODEC_MASK and header.record_count:
            yield from self._compressed(header, batch, judging, flags)
            return
        while True:
            positions, sizes = array("q", (0,)), array("q", (len(batch),))
            status, _ = self._batches(batch, positions, sizes, 0, judging, flags | _ONE)
            if status == Status.OK:
                return
            if status == Pause.FULL:
                yield from self.rest()
            elif status == Pause.GROW:
                yield from self._grow(header)
            else:
                raise broken_records(status, header.base_offset)

    def _fate(self, header: BatchHeader, batch: memoryview) -> tuple[int, int]:
        """Return the rule for the batch's records, and the kernel's flags."""
        flags = _STAYS if self._last.has(header) or header.next_offset == self._rules.end_offset else 0
        if header.is_control:
            if not self._fates.has_ended(header, batch):
                return Judging.ALL, flags
            horizon = header.delete_horizon_ms
            gone = horizon is not None and horizon <= self._rules.now_ms
            return (Judging.NONE if gone else Judging.ALL), flags | _ENDED
        if header.is_transactional and self._fates.is_aborted(header):
            return Judging.NONE, flags
        return Judging.BY_KEY, flags

    def _compressed(
        self, header: BatchHeader, batch: memoryview, judging: int, flags: int
    ) -> Iterator[memoryview]:
        records = inflated(header, batch)
        count = header.record_count
        if count > len(records) // MIN_RECORD_SIZE:
            raise broken_records(Status.TRUNCATED, header.base_offset)
        if count > len(self._marks):
            self._marks = bytearray(count)
        judged = array("q", bytes(8 * JUDGED_FIELDS))
        status = judge_records(
            records, batch[:HEADER_SIZE], judging, self._rules.now_ms, self._keys.secret, self._keys.table,
            self._keys.latest, self._marks, judged,
        )  # fmt: skip
        if status != Status.OK:
            raise broken_records(status, header.base_offset)
        kept, tombstones, newest = judged
        self._state[CopyState.READ] += count
        self._state[CopyState.KEPT] += kept
        later_ms = 0
        if kept and header.delete_horizon_ms is None and (tombstones or flags & _ENDED):
            later_ms = later_by(self._times[1], header.base_timestamp)
        written = 0
        if kept and (kept < count or later_ms):
            out = bytearray(len(records) + _ROOM_PER_RECORD * count)
            written = write_records(records, count, self._marks, later_ms, out)
            if written == Status.TIMESTAMP_OVERFLOW:  # written without a horizon: its tombstones stay
                later_ms = 0
                written = write_records(records, count, self._marks, 0, out) if kept < count else 0
            if written < 0:
                raise broken_records(written, header.base_offset)
        if written:
            packed = compress(header.codec, memoryview(out)[:written])
            header = header._replace(
                attributes=header.attributes | (DELETE_HORIZON_FLAG if later_ms else 0),
                base_timestamp=header.base_timestamp + later_ms,
                max_timestamp=newest,
                record_count=kept,
            )
            yield from self._append(sealed_batch(header, packed))
        elif kept:
            yield from self._append(batch)
        elif flags & _STAYS:
            yield from self._append(empty_batch(header))


def sealed_batch(header: BatchHeader, records: Buffer) -> bytearray:
    """Return a batch of these records, with length and checksum set."""
    batch = bytearray(HEADER_SIZE)
    batch += records
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD)[1:])
    _CRC.pack_into(batch, CRC_AT, compute_crc(batch, 0, len(batch)))
    return batch


def empty_batch(header: BatchHeader) -> bytearray:
    """Return a batch without records that keeps offsets, producer, sequence and greatest timestamp."""
    attributes = header.attributes & _KEPT_OF_EMPTY
    return sealed_batch(
        header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""
    )


def filling_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
    """Return an empty batch for offsets of which no batch is left."""
    return sealed_batch(
        BatchHeader(
            0, base_offset, 0, leader_epoch, MAGIC, 0, 0, last_offset - base_offset, NO_TIMESTAMP,
            NO_TIMESTAMP, NO_PRODUCER_ID, NO_EPOCH, NO_SEQUENCE, 0,
        ),
        b"",
    )  # fmt: skip
