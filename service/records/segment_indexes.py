"""Kafka's two sparse indexes of a segment: their entries, when one is due, and whether they are true. [P]

    offset index   i32 last offset of a batch, relative to the base   i32 position of the batch in the log
    time index     i64 greatest timestamp so far   i32 offset of it (its batch's last), relative to the base

Big-endian, entries ascend. An entry is due for the batch before which more than the interval's bytes have
gone into the log since the last one, so the first batch of a segment has none; a sealed segment's time index
ends with the greatest timestamp of all.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from operator import le, lt, sub
from typing import Final, NamedTuple, Protocol

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP, Buffer
from service.records.recovery_kernel import ENTRY_FIELDS, index_entries
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


Take = Callable[[BatchScan, int], None]
"""Is given a run of batches, and the position in the log that their positions count from."""
Walk = Callable[[Take], None]
"""Proves the batches of a segment and gives all of them away, in order."""


class IndexBytes(NamedTuple):
    """Both indexes of one segment as their files are."""

    offset_index: bytes
    time_index: bytes


class ProveIndexes(Protocol):
    """The indexes of one segment, held against what `walk` finds; without it the log is read for that."""

    def __call__(self, walk: Walk | None = None) -> IndexBytes: ...


class IndexBuilder:
    """Makes both indexes from the batches of a segment, given in order."""

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
        """The greatest timestamp, and the last offset of its batch; -1 and the base while there is none."""
        return self._state[1], self._state[2]

    def add(self, batches: BatchScan, start: int) -> None:
        """Batches whose positions count from `start`."""
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
        """The files' bytes."""
        self._index_time(*self.newest)
        return IndexBytes(bytes(self._offsets), bytes(self._times))


class IndexProof:
    """Holds the indexes of a segment against its batches, given in order: each entry must be true of them.

    None may be missing either, where the batches between two entries take twice the interval. This runs
    beside every upload: what is done for each batch and each entry is done by C, as far as it goes.
    """

    def __init__(self, base_offset: int, indexes: IndexBytes, interval_bytes: int = INTERVAL_BYTES) -> None:
        """`CorruptionError` for entries that are not whole or do not ascend."""
        self._base_offset = base_offset
        self._place_offsets, self._places = _columns(indexes.offset_index, OFFSET_ENTRY)
        self._times, self._time_offsets = _columns(indexes.time_index, TIME_ENTRY)
        self._most_bytes = 2 * interval_bytes
        self._largest = 0
        self._next_place = self._next_time = 0
        self._indexed_to = 0
        self._newest = NO_TIMESTAMP

    def add(self, batches: BatchScan, start: int) -> None:
        """Batches with positions from `start` on; `CorruptionError` where an entry is not true of them."""
        first, self._next_place = self._next_place, bisect_left(self._places, start + batches.end)
        places = self._places[first : self._next_place]
        self._largest = max(self._largest, max(batches.sizes))
        most_bytes = self._most_bytes + self._largest
        gaps = map(sub, places, (self._indexed_to, *places))
        if max(gaps, default=0) > most_bytes:
            raise CorruptionError(f"the offset index lacks entries after position {self._indexed_to}")
        slots = _slots(batches.positions, places, start)
        found = [batches.last_offsets[slot] - self._base_offset for slot in slots]
        _same(found, self._place_offsets[first : self._next_place], "offset", self._base_offset)
        self._indexed_to = places[-1] if places else self._indexed_to
        if start + batches.positions[-1] - self._indexed_to > most_bytes:
            raise CorruptionError(f"the offset index lacks entries after position {self._indexed_to}")
        self._add_times(batches, found, slots)

    def _add_times(self, batches: BatchScan, indexed: list[int], slots: Sequence[int]) -> None:
        """`indexed`: offsets of the batches in `slots`, which the other index has and this one often, too."""
        last = batches.last_offsets[-1] - self._base_offset
        first, self._next_time = self._next_time, bisect_right(self._time_offsets, last)
        if first == self._next_time:
            self._newest = max(self._newest, max(batches.max_timestamps))
            return
        offsets, times = self._time_offsets[first : self._next_time], self._times[first : self._next_time]
        if offsets != indexed:
            slots = _slots(batches.last_offsets, offsets, -self._base_offset)
        # An entry names the batch that was the first to reach its timestamp.
        greatest = [self._newest, *batches.max_timestamps]
        if greatest != sorted(greatest):
            greatest = list(accumulate(greatest, max))
        _same([greatest[slot + 1] for slot in slots], times, "time", 0)
        if not all(map(lt, [greatest[slot] for slot in slots], times)):
            raise CorruptionError("the time index has an entry for a batch that was not the first")
        self._newest = greatest[-1]

    def finish(self) -> None:
        """After the last batch; `CorruptionError` for entries of batches that there are not."""
        if self._next_place < len(self._places) or self._next_time < len(self._times):
            raise CorruptionError("the indexes have entries for batches that there are not")
        last = self._times[-1] if self._times else NO_TIMESTAMP
        if self._newest > last:
            raise CorruptionError(f"the time index ends with {last}, the log has {self._newest}")


def _columns(data: Buffer, entry: struct.Struct) -> tuple[list[int], list[int]]:
    """The first fields of all entries, and the second ones. Raises as `decode_entries`."""
    if len(data) % entry.size:
        raise CorruptionError(f"{len(data)} bytes are not whole entries of {entry.size}")
    fields = list(chain.from_iterable(entry.iter_unpack(data)))
    firsts, seconds = fields[::2], fields[1::2]
    ascends = all(map(lt, firsts, firsts[1:])) and all(map(le, seconds, seconds[1:]))
    if ascends and (not firsts or (seconds[0] >= 0 and firsts[0] >= 0)):
        return firsts, seconds
    entries = list(decode_entries(data, entry))  # says what is wrong, or leaves out what is preallocated
    return [first for first, _ in entries], [second for _, second in entries]


def _slots(values: array[int], wanted: list[int], start: int) -> Sequence[int]:
    """Which of `values` those in `wanted` are, that count from `start`. `CorruptionError` if one is none."""
    count = len(values) - len(wanted)
    # Batches that are larger than the interval have an entry each, but for the first one of all.
    if count >= 0 and [start + value for value in values[count:]] == wanted:
        return range(count, len(values))
    known = dict(zip(values, range(len(values)), strict=True))
    slots = [known.get(value - start, -1) for value in wanted]
    if -1 in slots:
        raise CorruptionError(f"an index has an entry for {wanted[slots.index(-1)]}, where no batch is")
    return slots


def _same(found: list[int], said: list[int], which: str, base: int) -> None:
    if found != said:
        wrong = next(entry for true, entry in zip(found, said, strict=True) if true != entry)
        raise CorruptionError(f"the {which} index has an entry for {base + wrong} that is not true")
