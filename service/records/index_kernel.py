"""The loop that holds a segment's two indexes against its batches: one source for two lives, as `kernel`. [P]

It goes through batches and entries side by side, each once: every entry must be that of the batch that it
names, and no stretch of the log may lack one. What the entries mean stands in `segment_indexes`; the rules of
both lives are at the head of `kernel`. Nothing here needs the other kernels, compiled or not.
"""

# mypy: disable-error-code="untyped-decorator, valid-type, no-untyped-call, no-any-return"
# (Cython's annotations are C types and its decorators have none.)

from __future__ import annotations

from typing import Final

from service.records.kernel_status import IndexFault, IndexState

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

COMPILED: Final[bool] = cython.compiled

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
_TWO_TO_31 = cython.declare(cython.longlong, 0x80000000)
_TWO_TO_32 = cython.declare(cython.longlong, 0x100000000)


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
    """Hold the entries from where ``state`` says on against these batches, which count from ``start``.

    Between two entries of the offset index lie at most ``most_bytes`` and the size of the largest batch.
    ``state`` has the numbers of `IndexState` and is brought up to date; the answer is an `IndexFault`.
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
                    # An entry names the batch that was the first to reach its timestamp.
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
