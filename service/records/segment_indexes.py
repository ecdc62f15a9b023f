"""Kafka's two sparse indexes of a segment: entries, when one is due, and their verification. [P]

    offset index   i32 last offset of a batch, relative to the base   i32 position of the batch in the log
    time index     i64 greatest timestamp so far   i32 offset of it (its batch's last), relative to the base

Big-endian, entries ascend. An entry is due for a batch if more than the interval's bytes were appended since
the last entry, so the first batch of a segment has none. The time index of a sealed segment ends with the
segment's greatest timestamp.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP, Buffer
from service.records.index_kernel import ENTRY_FIELDS, index_entries, prove_indexes
from service.records.kernel_status import IndexFault, IndexState
from service.records.scan import BatchScan

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
INTERVAL_BYTES: Final = 4096
"""Kafka's default of ``index.interval.bytes``."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def decode_entries(data: Buffer, entry: struct.Struct) -> Iterator[tuple[int, int]]:
    """Yield the fields of each entry; `CorruptionError` for a torn entry or a wrong order.

    >>> list(decode_entries(OFFSET_ENTRY.pack(5, 100), OFFSET_ENTRY))
    [(5, 100)]
    """
    if len(data) % entry.size:
        raise CorruptionError(f"{len(data)} bytes are not whole entries of {entry.size}")
    last: tuple[int, ...] = ()
    for number, fields in enumerate(entry.iter_unpack(data)):
        if number and not any(fields):
            return  # the preallocated rest of an index that Apache Kafka left open
        if last and (fields[0] <= last[0] or fields[1] < last[1]):
            raise CorruptionError(f"entry {number} does not ascend")
        last = fields
        yield fields


Take = Callable[[BatchScan, int], None]
"""Receives a run of batches, and the position in the log that their positions count from."""
Walk = Callable[[Take], None]
"""Verifies the batches of a segment and passes all of them on, in order."""


class IndexBytes(NamedTuple):
    """Both indexes of one segment, as in their files."""

    offset_index: bytes
    time_index: bytes


class ProveIndexes(Protocol):
    """Returns the indexes of one segment, verified against the batches of `walk`; without it, of the log."""

    def __call__(self, walk: Walk | None = None) -> IndexBytes: ...


class IndexEntry(NamedTuple):
    """Entries of both indexes for a batch: its offset and position, and the greatest timestamp so far with
    its batch's last offset."""

    last_offset: int
    position: int
    newest: int
    newest_offset: int


def due_entries(batches: BatchScan, start: int, state: array[int], interval_bytes: int) -> list[IndexEntry]:
    """Return the entries that are due for batches of which the first lies at `start` in the log.

    Updates `state`: bytes since the last entry, greatest timestamp so far and its batch's last offset.
    """
    out = array("q", bytes(8 * ENTRY_FIELDS * batches.batches))
    positions = batches.positions
    count = index_entries(
        positions,
        batches.sizes,
        batches.last_offsets,
        batches.max_timestamps,
        start - positions[0],
        interval_bytes,
        state,
        out,
    )
    fields = out[: count * ENTRY_FIELDS]
    return [IndexEntry(*fields[at : at + ENTRY_FIELDS]) for at in range(0, len(fields), ENTRY_FIELDS)]


class IndexBuilder:
    """Builder of both indexes from the batches of a segment, added in order."""

    def __init__(self, base_offset: int, interval_bytes: int = INTERVAL_BYTES) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._state = array("q", (0, NO_TIMESTAMP, base_offset))
        self._newest_indexed = NO_TIMESTAMP

    @property
    def since(self) -> int:
        """Bytes of batches since the last entry."""
        return self._state[0]

    @property
    def newest(self) -> tuple[int, int]:
        """Greatest timestamp, and the last offset of its batch; -1 and the base offset if there is none."""
        return self._state[1], self._state[2]

    def add(self, batches: BatchScan, start: int) -> None:
        """Add batches whose positions count from `start`."""
        out = array("q", bytes(8 * ENTRY_FIELDS * batches.batches))
        count = index_entries(
            batches.positions,
            batches.sizes,
            batches.last_offsets,
            batches.max_timestamps,
            start,
            self._interval_bytes,
            self._state,
            out,
        )
        base = self._base_offset
        for at in range(0, count * ENTRY_FIELDS, ENTRY_FIELDS):
            last_offset, position, timestamp, offset = out[at : at + ENTRY_FIELDS]
            self._offsets += OFFSET_ENTRY.pack(last_offset - base, position)
            self._index_time(timestamp, offset)

    def _index_time(self, timestamp: int, offset: int) -> None:
        if timestamp > self._newest_indexed:
            self._times += TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._newest_indexed = timestamp

    def finish(self) -> IndexBytes:
        """Return the bytes of both files."""
        self._index_time(*self.newest)
        return IndexBytes(bytes(self._offsets), bytes(self._times))


class IndexProof:
    """Verifier of the indexes of a segment against its batches, added in order: each entry must match.

    No entry may be missing, either, if the batches between two entries take twice the interval. Every upload
    runs this, so `index_kernel` does the work for each batch and each entry.
    """

    def __init__(self, base_offset: int, indexes: IndexBytes, interval_bytes: int = INTERVAL_BYTES) -> None:
        """`CorruptionError` for a torn entry."""
        self._base_offset = base_offset
        self._offsets = _entries(indexes.offset_index, OFFSET_ENTRY)
        self._times = _entries(indexes.time_index, TIME_ENTRY)
        self._most_bytes = 2 * interval_bytes
        self._state = array("q", bytes(8 * len(IndexState)))
        self._state[IndexState.NEWEST] = NO_TIMESTAMP

    def add(self, batches: BatchScan, start: int) -> None:
        """Check batches whose positions count from `start`; `CorruptionError` if an entry does not match."""
        fault = prove_indexes(
            batches.positions,
            batches.sizes,
            batches.last_offsets,
            batches.max_timestamps,
            start,
            self._base_offset,
            self._most_bytes,
            self._offsets,
            self._times,
            self._state,
        )
        if fault != IndexFault.NONE:
            place = self._state[IndexState.INDEXED_TO]
            raise CorruptionError(f"{IndexFault(fault).reason} (after position {place})")

    def finish(self) -> None:
        """Check what is left after the last batch; `CorruptionError` for entries of missing batches."""
        places = self._state[IndexState.PLACES] * OFFSET_ENTRY.size
        times = self._state[IndexState.TIMES] * TIME_ENTRY.size
        if places < len(self._offsets) or times < len(self._times):
            raise CorruptionError("the indexes have entries for batches that the log lacks")
        last, newest = NO_TIMESTAMP, self._state[IndexState.NEWEST]
        if self._times:
            last, _ = TIME_ENTRY.unpack(self._times[-TIME_ENTRY.size :])
        if newest > last:
            raise CorruptionError(f"the time index ends with {last}, the log has {newest}")


def _entries(data: bytes, entry: struct.Struct) -> bytes:
    """Return the entries without the zeros that Apache Kafka preallocates after the last one."""
    if len(data) % entry.size:
        raise CorruptionError(f"{len(data)} bytes are not whole entries of {entry.size}")
    used = -(-len(data.rstrip(b"\0")) // entry.size) * entry.size
    return data[: max(used, entry.size)]
