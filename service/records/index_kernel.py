"""Loops over verified batches of a segment; like `kernel`, one source, compiled or interpreted. [P]

A log of single-record batches has millions of them, so these loops release the GIL. They make index entries,
check the two indexes against the batches, and find the batches that the state of idempotent producers depends
on. `segment_indexes` describes the entries; the head of `kernel` has the rules for compiled and interpreted
code. This module does not need the other kernels.

The check walks log and index side by side, batch by batch and entry by entry, each once: every entry must
match the batch that it names, and no stretch of the log may lack one.
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import IndexFault, IndexState

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

COMPILED: Final[bool] = cython.compiled

ENTRY_FIELDS: Final = 4
"""Count of numbers that `index_entries` writes for each entry: last offset, position, greatest timestamp so
far, its offset."""
TABLE_FIELDS: Final = 2
"""Words per slot in the table of `recent_producers`: producer id, 1 + number of its batches; or 0, 0."""

_NONE = cython.declare(cython.longlong, IndexFault.NONE)
_NO_BATCH = cython.declare(cython.longlong, IndexFault.NO_BATCH)
_WRONG_OFFSET = cython.declare(cython.longlong, IndexFault.WRONG_OFFSET)
_GAP = cython.declare(cython.longlong, IndexFault.GAP)
_NO_TIME_BATCH = cython.declare(cython.longlong, IndexFault.NO_TIME_BATCH)
_WRONG_TIME = cython.declare(cython.longlong, IndexFault.WRONG_TIME)
_PLACES = cython.declare(cython.longlong, IndexState.PLACES)
_TIMES = cython.declare(cython.longlong, IndexState.TIMES)
_INDEXED_TO = cython.declare(cython.longlong, IndexState.INDEXED_TO)
_LARGEST = cython.declare(cython.longlong, IndexState.LARGEST)
_NEWEST = cython.declare(cython.longlong, IndexState.NEWEST)
_PROBES = cython.declare(cython.longlong, 16)
_TWO_TO_31 = cython.declare(cython.longlong, 0x80000000)
_TWO_TO_32 = cython.declare(cython.longlong, 0x100000000)


# Copies from `kernel`: C functions are inlined within their module only, and these run once a batch.
@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int32(data: cython.const[cython.uchar][::1], position: cython.longlong) -> cython.longlong:
    value: cython.longlong = data[position]
    value = value * 256 + data[position + 1]
    value = value * 256 + data[position + 2]
    value = value * 256 + data[position + 3]
    return value - _TWO_TO_32 if value >= _TWO_TO_31 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int64(data: cython.const[cython.uchar][::1], position: cython.longlong) -> cython.longlong:
    low: cython.longlong = _int32(data, position + 4)
    return _int32(data, position) * _TWO_TO_32 + (low if low >= 0 else low + _TWO_TO_32)


def index_entries(
    positions: cython.longlong[::1],
    sizes: cython.longlong[::1],
    last_offsets: cython.longlong[::1],
    max_timestamps: cython.longlong[::1],
    start: cython.longlong,
    interval: cython.longlong,
    state: cython.longlong[::1],
    out: cython.longlong[::1],
) -> int:
    """Write the index entries that are due for batches whose positions count from ``start``; return how many.

    ``out`` gets `ENTRY_FIELDS` numbers for each entry and must have room for one entry per batch. ``state``
    has three numbers, kept from call to call: bytes since the last entry, greatest timestamp, its offset.
    """
    count: cython.longlong = len(positions)
    index: cython.longlong
    entries: cython.longlong = 0
    since: cython.longlong
    newest: cython.longlong
    newest_offset: cython.longlong
    if len(sizes) != count or len(last_offsets) != count or len(max_timestamps) != count:
        raise IndexError("columns of different lengths")
    if len(state) < 3 or len(out) < 4 * count:
        raise IndexError(f"{count} batches need more than {len(out)} numbers")
    since = state[0]
    newest = state[1]
    newest_offset = state[2]
    with cython.nogil:
        for index in range(count):
            if max_timestamps[index] > newest:
                newest = max_timestamps[index]
                newest_offset = last_offsets[index]
            if since > interval:
                out[4 * entries] = last_offsets[index]
                out[4 * entries + 1] = start + positions[index]
                out[4 * entries + 2] = newest
                out[4 * entries + 3] = newest_offset
                entries += 1
                since = 0
            since += sizes[index]
    state[0] = since
    state[1] = newest
    state[2] = newest_offset
    return entries


def prove_indexes(
    positions: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    last_offsets: cython.const[cython.longlong][::1],
    max_timestamps: cython.const[cython.longlong][::1],
    start: cython.longlong,
    base_offset: cython.longlong,
    most_bytes: cython.longlong,
    offset_index: cython.const[cython.uchar][::1],
    time_index: cython.const[cython.uchar][::1],
    state: cython.longlong[::1],
) -> int:
    """Check index entries, from those in ``state`` on, against batches whose positions count from ``start``.

    Two entries of the offset index may be ``most_bytes`` plus the size of the largest batch apart. Updates
    ``state``, which has the numbers of `IndexState`, and returns an `IndexFault`.
    """
    batch: cython.longlong
    batches: cython.longlong = len(positions)
    at: cython.longlong
    last: cython.longlong
    entry: cython.longlong
    before: cython.longlong
    fault: cython.longlong = _NONE
    place: cython.longlong = 8 * state[_PLACES]
    places_end: cython.longlong = len(offset_index) - 7
    time: cython.longlong = 12 * state[_TIMES]
    times_end: cython.longlong = len(time_index) - 11
    indexed_to: cython.longlong = state[_INDEXED_TO]
    largest: cython.longlong = state[_LARGEST]
    newest: cython.longlong = state[_NEWEST]
    if not len(sizes) == len(last_offsets) == len(max_timestamps) == batches:
        raise IndexError("columns of different lengths")
    with cython.nogil:
        for batch in range(batches):
            at = start + positions[batch]
            last = last_offsets[batch] - base_offset
            before = newest
            if sizes[batch] > largest:
                largest = sizes[batch]
            if max_timestamps[batch] > newest:
                newest = max_timestamps[batch]
            if at - indexed_to > most_bytes + largest:
                fault = _GAP
                break
            if place < places_end:
                entry = _int32(offset_index, place + 4)
                if entry < at:
                    fault = _NO_BATCH
                    break
                if entry == at:
                    if _int32(offset_index, place) != last:
                        fault = _WRONG_OFFSET
                        break
                    indexed_to = at
                    place += 8
            if time < times_end:
                entry = _int32(time_index, time + 8)
                if entry < last:
                    fault = _NO_TIME_BATCH
                    break
                if entry == last:
                    entry = _int64(time_index, time)
                    # An entry must name the first batch that reached its timestamp.
                    if entry != newest or before >= entry:
                        fault = _WRONG_TIME
                        break
                    time += 12
    state[_PLACES] = place // 8
    state[_TIMES] = time // 12
    state[_INDEXED_TO] = indexed_to
    state[_LARGEST] = largest
    state[_NEWEST] = newest
    return fault


def recent_producers(
    buf: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    most: cython.longlong,
    table: cython.longlong[::1],
    out: cython.longlong[::1],
) -> int:
    """Find the batches of ``buf`` that the state of their producers depends on, last one first.

    These are the last ``most`` batches of each idempotent producer and all batches of transactions. ``table``
    has a power of two of slots of `TABLE_FIELDS` numbers, all 0; if it is too small, the result has more
    batches than necessary. Writes indexes into ``positions`` to ``out``, which must have room for all;
    returns how many.
    """
    count: cython.longlong = len(positions)
    slots: cython.longlong = len(table) // 2
    index: cython.longlong
    found: cython.longlong = 0
    at: cython.longlong
    producer: cython.longlong
    slot: cython.longlong
    wanted: cython.longlong
    if len(out) < count or slots < 1 or slots & (slots - 1):
        raise IndexError(f"{count} batches, {len(out)} numbers and {slots} slots")
    for index in range(count):
        if positions[index] < 0 or positions[index] + 61 > len(buf):
            raise IndexError(f"no header at {positions[index]} of {len(buf)} bytes")
    with cython.nogil:
        index = count - 1
        while index >= 0:
            at = positions[index]
            producer = _int64(buf, at + 43)
            if producer >= 0:
                wanted = 1
                if buf[at + 22] & 0x30 == 0:
                    slot = (producer ^ (producer >> 16)) & (slots - 1)
                    for _ in range(_PROBES):
                        if table[2 * slot + 1] == 0:
                            table[2 * slot] = producer
                            table[2 * slot + 1] = 2
                            break
                        if table[2 * slot] == producer:
                            if table[2 * slot + 1] > most:
                                wanted = 0
                            else:
                                table[2 * slot + 1] += 1
                            break
                        slot = (slot + 1) & (slots - 1)
                if wanted:
                    out[found] = index
                    found += 1
            index -= 1
    return found
