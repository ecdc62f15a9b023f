"""Loops over records for keys and least timestamps; like `kernel`, one source, compiled or interpreted. [P]

A log is walked once for both. Keys go into a filter (`filter_kernel`). Of a compressed batch of one record
only the first bytes are inflated (`prefix_kernel`); all others are left to the caller.
"""

from __future__ import annotations

from typing import Final

from service.records.filter_kernel import MOST_KEYS
from service.records.kernel_status import COMPRESSED, KeyWalk
from service.records.prefix_kernel import NOTHING

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.filter_kernel import insert_keys
    from cython.cimports.service.records.kernel import int32, int64, varint
    from cython.cimports.service.records.prefix_kernel import first_bytes
else:
    from service.records.filter_kernel import insert_keys
    from service.records.kernel import int32, int64, varint
    from service.records.prefix_kernel import first_bytes

COMPILED: Final[bool] = cython.compiled

_FIRST_LOOK = cython.declare(cython.longlong, 64)
_LAST_LOOK = cython.declare(cython.longlong, 1024)
"""Bytes of a compressed record that are inflated for its key, at first and at most."""
_MOST_KEYS = cython.declare(cython.longlong, MOST_KEYS)
_NOTHING = cython.declare(cython.longlong, NOTHING)
_COMPRESSED = cython.declare(cython.longlong, COMPRESSED)
_KEYED = cython.declare(cython.longlong, KeyWalk.KEYED)
_BROKEN = cython.declare(cython.longlong, KeyWalk.BROKEN)
_LEFT = cython.declare(cython.longlong, KeyWalk.LEFT)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(
    data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong, last_shift: cython.longlong
) -> cython.longlong:
    """Read a varint as `varint` does, which is a call; most have one byte or two."""
    position: cython.longlong = at[0]
    value: cython.longlong
    if position < end and data[position] < 0x80:
        value = data[position]
        at[0] = position + 1
    elif end - position >= 2 and data[position + 1] < 0x80:
        value = (data[position] & 0x7F) | data[position + 1] << 7
        at[0] = position + 2
    else:
        return varint(data, at, end, last_shift)
    return (value >> 1) ^ -(value & 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    words: cython.p_ulonglong,
    blocks: cython.ulonglong,
    seen: cython.p_longlong,
) -> cython.longlong:
    """Do the work of `add_records`."""
    least: cython.longlong = _INT64_MAX if count > 0 else -1
    at: cython.longlong[1]
    spans: cython.longlong[64]
    waiting: cython.longlong = 0
    keyed: cython.longlong = 0
    edge: cython.longlong
    size: cython.longlong
    delta: cython.longlong
    if not cython.compiled:
        at, spans = [0], [0] * 64
    while count > 0:
        at[0] = position
        size = _number(data, at, end, 28)
        position = at[0]
        if position < 0 or size < 1 or size > end - position:
            position = -1
            break
        edge = position + size
        at[0] += 1  # attributes
        delta = _number(data, at, edge, 63)
        if at[0] < 0:
            position = -1
            break
        if least >= 0:
            if (
                delta > _INT64_MAX - base_timestamp
                if base_timestamp > 0
                else delta < _INT64_MIN - base_timestamp
            ):
                least = -1
            else:
                least = min(least, base_timestamp + delta)
        _number(data, at, edge, 28)  # the offset's delta
        size = _number(data, at, edge, 28) if at[0] >= 0 else 0
        if at[0] < 0 or size > edge - at[0]:
            seen[_BROKEN] = 1
        elif size >= 0:
            keyed += 1
            if blocks > 0:
                spans[2 * waiting] = at[0]
                spans[2 * waiting + 1] = size
                waiting += 1
                if waiting == _MOST_KEYS:
                    insert_keys(words, blocks, data, spans, waiting)
                    waiting = 0
        position = edge
        count -= 1
    if waiting > 0:
        insert_keys(words, blocks, data, spans, waiting)
    seen[_KEYED] += keyed
    if position != end:
        seen[_BROKEN] = 1
        return -1
    return max(least, -1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_start(
    data: cython.p_const_uchar,
    end: cython.longlong,
    words: cython.p_ulonglong,
    blocks: cython.ulonglong,
    seen: cython.p_longlong,
) -> cython.longlong:
    """Do the work of `add_start`."""
    at: cython.longlong[1]
    span: cython.longlong[2]
    size: cython.longlong
    edge: cython.longlong
    if not cython.compiled:
        at, span = [0], [0, 0]
    at[0] = 0
    size = _number(data, at, end, 28)
    if at[0] < 0 or size < 1:
        return 0
    edge = at[0] + size
    end = min(end, edge)
    at[0] += 1  # attributes
    _number(data, at, end, 63)  # the timestamp's delta
    if at[0] >= 0:
        _number(data, at, end, 28)  # the offset's delta
    size = _number(data, at, end, 28) if at[0] >= 0 else 0
    if at[0] < 0 or size > end - at[0]:
        return 0
    if size >= 0:
        seen[_KEYED] += 1
        if blocks > 0:
            span[0], span[1] = at[0], size
            insert_keys(words, blocks, data, span, 1)
    return 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_single(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    words: cython.p_ulonglong,
    blocks: cython.ulonglong,
    seen: cython.p_longlong,
) -> cython.longlong:
    """Put the key of the one record of a compressed batch into the filter; return 0 where that takes more
    than the first bytes of its records."""
    start: cython.uchar[1024]
    room: cython.longlong = _FIRST_LOOK
    got: cython.longlong
    codec: cython.longlong = data[position + 22] & 7
    if not cython.compiled:
        start = bytearray(_LAST_LOOK)
    while True:
        got = first_bytes(codec, data, position + 61, end, start, room)
        if got == _NOTHING:
            return 0
        if _add_start(start, got, words, blocks, seen):
            return 1
        if got < room or room == _LAST_LOOK:
            return 0
        room = _LAST_LOOK


def add_records(
    buf: cython.const[cython.uchar][::1],
    count: cython.longlong,
    base_timestamp: cython.longlong,
    words: cython.ulonglong[::1],
    seen: cython.longlong[::1],
) -> int:
    """Put the keys of the ``count`` records that fill ``buf`` into the filter; return the least timestamp.

    That is -1 if a record does not parse, has no timestamp or a negative one. ``words`` is the filter;
    without any, keys are counted alone. ``seen`` has the numbers of `KeyWalk`: of records that do not parse,
    it says so.
    """
    least: cython.longlong
    _check_filter(len(words), len(seen))
    if len(buf) == 0:
        if count > 0:
            seen[1] = 1
        return -1
    if not cython.compiled:
        least = _walk(buf, 0, len(buf), count, base_timestamp, words, len(words) // 4, seen)
    elif len(words) == 0:
        with cython.nogil:
            least = _walk(
                cython.address(buf[0]), 0, len(buf), count, base_timestamp, cython.NULL, 0,
                cython.address(seen[0]),
            )  # fmt: skip
    else:
        with cython.nogil:
            least = _walk(
                cython.address(buf[0]), 0, len(buf), count, base_timestamp, cython.address(words[0]),
                len(words) // 4, cython.address(seen[0]),
            )  # fmt: skip
    return least


def add_start(
    buf: cython.const[cython.uchar][::1], words: cython.ulonglong[::1], seen: cython.longlong[::1]
) -> bool:
    """Put the key of the record that ``buf`` begins with into the filter; ``buf`` may end after the key.

    Returns False, and does nothing, where it ends before, or the record does not parse up to there.
    """
    done: cython.longlong
    _check_filter(len(words), len(seen))
    if len(buf) == 0:
        return False
    if not cython.compiled:
        done = _add_start(buf, len(buf), words, len(words) // 4, seen)
    elif len(words) == 0:
        done = _add_start(cython.address(buf[0]), len(buf), cython.NULL, 0, cython.address(seen[0]))
    else:
        done = _add_start(
            cython.address(buf[0]),
            len(buf),
            cython.address(words[0]),
            len(words) // 4,
            cython.address(seen[0]),
        )
    return done == 1


def _check_filter(words: int, fields: int) -> None:
    if words % 4 or fields < 3:
        raise IndexError(f"a filter of {words} words")


def add_batches(
    buf: cython.const[cython.uchar][::1],
    position: cython.longlong,
    end: cython.longlong,
    words: cython.ulonglong[::1],
    seen: cython.longlong[::1],
    out: cython.longlong[::1],
    left: cython.longlong[::1],
) -> int:
    """Put the keys of the batches in ``buf[position:end]``, verified by `scan_batches`, into the filter.

    Control batches have no keys of clients. Stops when ``out`` is full, and returns how many batches it has:
    the least timestamp of each, -1 if it is unknown (see `add_records`) or above the header's maximum, or
    `COMPRESSED`. The header alone decides for batches stamped by the broker, for empty ones, and for a single
    compressed record.

    ``left`` has room for as many batches. It gets the indexes of those that have to be inflated, and
    `KeyWalk.LEFT` their number: compressed ones of unknown least timestamp or, while all keys are known, with
    keys that are not in their first bytes.
    """
    data: cython.p_const_uchar
    rows: cython.p_longlong
    others: cython.p_longlong
    bits: cython.p_ulonglong
    noted: cython.p_longlong
    unnoted: cython.longlong[2]  # keys of control batches
    blocks: cython.ulonglong = len(words) // 4
    batches: cython.longlong = 0
    room: cython.longlong = len(out)
    compressed: cython.longlong = 0
    size: cython.longlong
    count: cython.longlong
    attributes: cython.longlong
    newest: cython.longlong
    least: cython.longlong
    base: cython.longlong
    _check_filter(len(words), len(seen))
    if position < 0 or position > end or end > len(buf):
        raise IndexError(f"[{position}, {end}) is not inside {len(buf)} bytes")
    if len(left) < room:
        raise IndexError(f"room for {len(left)} of {room} batches")
    seen[_LEFT] = 0
    if position == end or room == 0:
        return 0
    if cython.compiled:
        data, rows, noted = cython.address(buf[0]), cython.address(out[0]), cython.address(seen[0])
        others = cython.address(left[0])
        bits = cython.address(words[0]) if blocks > 0 else cython.NULL
    else:
        data, rows, noted, others, bits, unnoted = buf, out, seen, left, words, [0, 0]
    with cython.nogil:
        while batches < room and end - position >= 61:
            size = int32(data, position + 8) + 12
            if size < 61 or size > end - position:
                break
            newest = int64(data, position + 35)
            count = int32(data, position + 57)
            attributes = data[position + 22]
            base = int64(data, position + 27)
            least = _COMPRESSED
            if attributes & 7 == 0:
                if attributes & 0x20:
                    least = _walk(data, position + 61, position + size, count, base, bits, 0, unnoted)
                else:
                    least = _walk(data, position + 61, position + size, count, base, bits, blocks, noted)
                if least > newest:
                    least = -1
            if attributes & 8 or count == 0 or (count == 1 and attributes & 7 != 0):
                least = max(newest, -1)
            if (
                attributes & 7 != 0
                and count > 0
                and (least == _COMPRESSED or noted[_BROKEN] == 0)
                and not (
                    count == 1
                    and attributes & 0x20 == 0
                    and _add_single(data, position, position + size, bits, blocks, noted)
                )
            ):
                others[compressed] = batches
                compressed += 1
            rows[batches] = least
            position += size
            batches += 1
    seen[_LEFT] = compressed
    return batches
