"""Kafka's two sparse indexes of a segment: their entries, when one is due, and whether they are true. [P]

    offset index   i32 last offset of a batch, relative to the base   i32 position of the batch in the log
    time index     i64 greatest timestamp so far   i32 offset of it (its batch's last), relative to the base

Big-endian, entries ascend. An entry is due for the batch before which more than the interval's bytes have
gone into the log since the last one, so the first batch of a segment has none; a sealed segment's time index
ends with the greatest timestamp of all.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP, Buffer
from service.records.scan import BatchScan

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
INTERVAL_BYTES: Final = 4096
"""``index.interval.bytes``, as Kafka has it unless told otherwise."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def decode_entries(data: Buffer, entry: struct.Struct) -> Iterator[tuple[int, int]]:
    """The fields of each entry; `CorruptionError` where they are not whole or do not ascend.

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


class IndexBytes(NamedTuple):
    """Both indexes of one segment as their files are."""

    offset_index: bytes
    time_index: bytes


class IndexBuilder:
    """Makes both indexes from the batches of a segment, given in order."""

    def __init__(self, base_offset: int, interval_bytes: int = INTERVAL_BYTES) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._since = 0
        self._newest = (NO_TIMESTAMP, base_offset)
        self._newest_indexed = NO_TIMESTAMP

    def add(self, batches: BatchScan, start: int) -> None:
        """Batches whose positions count from `start`."""
        rows = zip(
            batches.positions, batches.sizes, batches.last_offsets, batches.max_timestamps, strict=True
        )
        for at, size, last_offset, timestamp in rows:
            if timestamp > self._newest[0]:
                self._newest = (timestamp, last_offset)
            if self._since > self._interval_bytes:
                self._offsets += OFFSET_ENTRY.pack(last_offset - self._base_offset, start + at)
                self._index_time()
                self._since = 0
            self._since += size

    def _index_time(self) -> None:
        timestamp, offset = self._newest
        if timestamp > self._newest_indexed:
            self._times += TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._newest_indexed = timestamp

    def finish(self) -> IndexBytes:
        """The files' bytes."""
        self._index_time()
        return IndexBytes(bytes(self._offsets), bytes(self._times))


class IndexProof:
    """Holds the indexes of a segment against its batches, given in order: each entry must be true of them.

    None may be missing either, where the batches between two entries take twice the interval.
    """

    def __init__(self, base_offset: int, indexes: IndexBytes, interval_bytes: int = INTERVAL_BYTES) -> None:
        """`CorruptionError` for entries that are not whole or do not ascend."""
        self._base_offset = base_offset
        self._places = list(decode_entries(indexes.offset_index, OFFSET_ENTRY))
        self._times = list(decode_entries(indexes.time_index, TIME_ENTRY))
        self._most_bytes = 2 * interval_bytes
        self._next_place = self._next_time = 0
        self._indexed_to = 0
        self._newest = NO_TIMESTAMP

    def add(self, batches: BatchScan, start: int) -> None:
        """Batches with positions from `start` on; `CorruptionError` where an entry is not true of them."""
        most_bytes = self._most_bytes + max(batches.sizes)
        end = start + batches.end
        while self._next_place < len(self._places) and self._places[self._next_place][1] < end:
            relative, position = self._places[self._next_place]
            slot = bisect_left(batches.positions, position - start)
            offset = self._base_offset + relative
            if position < start or not _holds(batches.positions, slot, position - start, batches, offset):
                raise CorruptionError(f"the offset index has an entry for {offset} that is not true")
            if position - self._indexed_to > most_bytes:
                raise CorruptionError(f"the offset index lacks entries before {offset}")
            self._indexed_to = position
            self._next_place += 1
        if start + batches.positions[-1] - self._indexed_to > most_bytes:
            raise CorruptionError(f"the offset index lacks entries after position {self._indexed_to}")
        self._add_times(batches)

    def _add_times(self, batches: BatchScan) -> None:
        last = batches.last_offsets[-1] - self._base_offset
        if self._next_time == len(self._times) or self._times[self._next_time][1] > last:
            self._newest = max(self._newest, max(batches.max_timestamps))
            return
        greatest = list(accumulate(batches.max_timestamps, max, initial=self._newest))
        while self._next_time < len(self._times) and self._times[self._next_time][1] <= last:
            timestamp, relative = self._times[self._next_time]
            offset = self._base_offset + relative
            slot = bisect_left(batches.last_offsets, offset)
            known = batches.last_offsets[slot] == offset
            if not known or not greatest[slot] < timestamp == greatest[slot + 1]:
                raise CorruptionError(f"the time index has an entry for {offset} that is not true")
            self._next_time += 1
        self._newest = greatest[-1]

    def finish(self) -> None:
        """After the last batch; `CorruptionError` for entries of batches that there are not."""
        if self._next_place < len(self._places) or self._next_time < len(self._times):
            raise CorruptionError("the indexes have entries for batches that there are not")
        last = self._times[-1][0] if self._times else NO_TIMESTAMP
        if self._newest > last:
            raise CorruptionError(f"the time index ends with {last}, the log has {self._newest}")


def _holds(positions: Sequence[int], slot: int, position: int, batches: BatchScan, offset: int) -> bool:
    """Whether the batch of that number lies at `position` and ends with `offset`."""
    return slot < len(positions) and positions[slot] == position and batches.last_offsets[slot] == offset
