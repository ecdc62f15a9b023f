"""Map of the last offset of each key in a stretch of a log, in memory of a fixed size. [P]

A slot has 24 bytes; a hash stands for the key. Keys that do not fit wait for another cleaning: the map has
all keys up to offset ``latest``, and none beyond.

Source: Kafka `SkimpyOffsetMap`, `Cleaner.buildOffsetMap`.
"""

from __future__ import annotations

from array import array
from typing import Final, Protocol

from service.base.errors import CorruptionError
from service.base.types import MAX_INFLATED_BATCH_BYTES, Buffer
from service.records.batch import CODEC_MASK, HEADER_SIZE, BatchHeader, read_header
from service.records.compression import decompress
from service.records.kernel_status import MapState, Pause, Status
from service.records.key_kernel import SLOT_WORDS, map_batches, map_records
from service.records.scan import BatchScan

SLOT_BYTES: Final = 8 * SLOT_WORDS
_LEAST_SLOTS: Final = 2


class TransactionOutcomes(Protocol):
    """Outcomes of transactions, asked in the order of the log; an implementation keeps state between
    batches."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the transaction of a data batch was aborted."""

    def has_ended(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether a marker may be removed: no batch of its transaction came before it."""


def memory_for(keys: int, most_bytes: int, load_factor: float) -> int:
    """Return the size of the memory for a map of `keys` keys, at most `most_bytes`.

    >>> memory_for(9, 1 << 20, 0.9), memory_for(1 << 40, 240, 0.9)
    (264, 240)
    """
    wanted = (int(keys / load_factor) + 1) * SLOT_BYTES
    return min(most_bytes, max(wanted, _LEAST_SLOTS * SLOT_BYTES)) // SLOT_BYTES * SLOT_BYTES


class KeyMap:
    """A map in `memory`, which must be all zeros. For one thread at a time; the loops release the GIL."""

    def __init__(self, memory: Buffer, secret: bytes, load_factor: float) -> None:
        """`secret`: 16 random bytes. `ValueError` if `memory` has no room for a key."""
        slots = len(memory) // SLOT_BYTES
        limit = min(int(slots * load_factor), slots - 1)
        if limit < 1:
            raise ValueError(f"{len(memory)} bytes hold no key")
        self.table = memoryview(memory).cast("B")[: slots * SLOT_BYTES].cast("Q")
        self.secret = array("Q", secret)
        self._state = array("q", (0, limit, -1, 0))
        self.is_full = False

    @property
    def entries(self) -> int:
        """Number of keys in the map."""
        return self._state[MapState.ENTRIES]

    @property
    def latest(self) -> int:
        """Offset up to which, inclusive, all keys are in the map; -1 for none."""
        return self._state[MapState.LATEST]

    @property
    def records(self) -> int:
        """Number of records read."""
        return self._state[MapState.RECORDS]

    @property
    def utilization(self) -> float:
        """Share of the slots in use."""
        return self.entries * SLOT_WORDS / len(self.table)

    def add(
        self, piece: memoryview, batches: BatchScan, from_offset: int, fates: TransactionOutcomes
    ) -> bool:
        """Put the keys of the `batches` of `piece`, from `from_offset` on, into the map.

        Returns False if the map is full; it must then get no more. `CorruptionError` for records that do not
        parse.
        """
        number = 0
        while True:
            status, number = map_batches(
                piece, batches.positions, batches.sizes, number, from_offset, self.secret, self.table,
                self._state,
            )  # fmt: skip
            if status == Status.OK:
                return True
            if status == Pause.BATCH:
                start = batches.positions[number]
                status = self._add_one(piece[start : start + batches.sizes[number]], from_offset, fates)
                number += 1
            if status == Pause.FULL:
                self.is_full = True
                return False
            if status < 0:
                raise broken_records(status, batches.base_offsets[number])

    def _add_one(self, batch: memoryview, from_offset: int, fates: TransactionOutcomes) -> int:
        """Add a batch that is compressed or belongs to a transaction."""
        header = read_header(batch)
        if header.is_control:
            fates.has_ended(header, batch)
        elif not (header.is_transactional and fates.is_aborted(header)):
            records = inflated(header, batch)
            return map_records(
                records, header.record_count, header.base_offset, header.last_offset, from_offset,
                self.secret, self.table, self._state,
            )  # fmt: skip
        self._state[MapState.LATEST] = header.last_offset
        return 0

    def release(self) -> None:
        """Release the memory; the map is unusable afterwards."""
        self.table.release()

    def reached(self, end_offset: int) -> None:
        """Note that all records below `end_offset` have been added."""
        self._state[MapState.LATEST] = max(self.latest, end_offset - 1)


def inflated(header: BatchHeader, batch: memoryview) -> Buffer:
    """Return the records of a batch, inflated. `CorruptionError`."""
    if not header.attributes & CODEC_MASK or not header.record_count:
        return batch[HEADER_SIZE:]
    return decompress(header.codec, batch[HEADER_SIZE:], MAX_INFLATED_BATCH_BYTES)


def broken_records(status: int, base_offset: int) -> CorruptionError:
    """Return the error for a status of the kernel."""
    return CorruptionError(f"batch at offset {base_offset}: {Status(status).reason}")
