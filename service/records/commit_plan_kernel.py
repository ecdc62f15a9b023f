"""Commits that are like the last of their connection: bytes in, a batch and rows out, without a parse. [P]

A consumer commits the same partitions again and again: its requests differ in 12 bytes of each partition,
offset and leader epoch. `is_same` compares a request with the last one around these *holes*; `fill_batch`
copies them into the batch that the last one was written as, and `fill_rows` from there into the state.

`groups/commit_plans` has the plan: *marks* of three positions a record, each in two bytes: of its hole,
counted from behind the request's correlation id, and of offset and commit time in the batch. Like `kernel`,
compiled or not.
"""

from __future__ import annotations

from typing import Any, Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.kernel import int32, int64
else:
    from service.records.kernel import int32, int64

COMPILED: Final[bool] = cython.compiled

MARK_BYTES: Final = 6
"""Bytes of the marks of one record."""
HOLE_BYTES: Final = 12
"""Offset and leader epoch."""
MOST_BYTES: Final = 0xFFFF
"""Longest request and longest batch of a plan."""
ROW_HEAD_BYTES: Final = 36
"""Bytes of a row before the topic's id and the metadata."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mark(marks: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return marks[at] * 256 + marks[at + 1]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write an integer of ``size`` bytes, big-endian; return the position after it."""
    shift: cython.Py_ssize_t = 8 * size
    while shift > 0:
        shift -= 8
        out[at] = (value >> shift) & 0xFF
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    while size > 0:
        out[at] = data[position]
        at += 1
        position += 1
        size -= 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


def find_marks(
    buf: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    version: cython.longlong,
    rows: cython.longlong[::1],
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    prefix_size: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
) -> bytes | None:
    """Return the marks of ``count`` rows of one topic, as `commit_kernel.read_commit` has found them in the
    request from ``position`` on, and whose first record, number ``first`` of the batch, begins at ``at``.

    None if a position takes more than two bytes, or if a request has sizes in more bytes than they need.
    """
    found = bytearray(6 * count)
    data: cython.p_const_uchar
    number: cython.Py_ssize_t
    hole: cython.Py_ssize_t
    metadata: cython.longlong
    value: cython.longlong
    key: cython.longlong = prefix_size + 4
    size: cython.Py_ssize_t
    if first < 0 or count < 1 or (first + count) * 5 > len(rows) or prefix_size < 1 or at < 0 or position < 0:
        raise IndexError(f"rows {first} to {first + count} of {len(rows) // 5}")
    if len(buf) == 0:
        return None
    data = cython.address(buf[0]) if cython.compiled else buf
    for number in range(count):
        metadata = rows[(first + number) * 5 + 4]
        hole = rows[(first + number) * 5 + 3] - 12 - (2 if version < 8 else _varint_size(metadata + 1))
        value = 41 + _varint_size(metadata + 1) + metadata
        size = 2 + key + value + _varint_size(2 * key) + _varint_size(2 * value)
        size += _varint_size(2 * (first + number)) + 1
        # The value follows its size, and a count of headers follows the value.
        at += _varint_size(2 * size) + size
        if hole < position + 4 or hole > len(buf) - 12 or hole - position > 0xFFFF or at > 0xFFFF:
            return None
        # A size in two bytes where one does moves the hole by one. The partition before it tells: it is not
        # negative, and a row of bytes that is the same one further on would be.
        if int32(data, hole - 4) != rows[(first + number) * 5]:
            return None
        if int64(data, hole) != rows[(first + number) * 5 + 1]:
            return None
        if int32(data, hole + 8) != rows[(first + number) * 5 + 2]:
            return None
        _put_mark(found, number * 6, hole - position)
        _put_mark(found, number * 6 + 2, at - 1 - value + 2)
        _put_mark(found, number * 6 + 4, at - 1 - 27)
    return bytes(found)


@cython.cfunc
def _put_mark(found: bytearray, at: cython.Py_ssize_t, position: cython.Py_ssize_t) -> None:
    found[at] = position // 256
    found[at + 1] = position % 256


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_same(
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    last: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    marks: cython.p_const_uchar,
    end: cython.Py_ssize_t,
) -> cython.bint:
    at: cython.Py_ssize_t = 0
    mark: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    while True:
        stop = _mark(marks, mark) if mark < end else size
        while at < stop:
            if data[position + at] != last[at]:
                return False
            at += 1
        if mark >= end:
            return True
        at = stop + 12
        mark += 6


def is_same(
    buf: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, last: bytes, marks: bytes
) -> bool:
    """Return whether the request from ``position`` on is ``last`` but for its holes. Those of ``marks`` are
    in ``last``, in their order."""
    size: cython.Py_ssize_t = len(last)
    end: cython.Py_ssize_t = len(marks)
    if position < 0 or len(buf) - position != size or size == 0:
        return False
    if cython.compiled:
        return _is_same(cython.address(buf[0]), position, last, size, marks, end)
    return _is_same(buf, position, last, size, marks, end)


def fill_batch(
    buf: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    marks: bytes,
    batch: bytearray,
    base_offset: cython.longlong,
    leader_epoch: cython.longlong,
    now_ms: cython.longlong,
) -> None:
    """Write the holes of a request that `is_same` into its batch, with offset, epoch and times, all of them
    ``now_ms``; the checksum is left to the caller."""
    out: cython.p_uchar
    data: cython.p_const_uchar
    places: cython.p_const_uchar
    mark: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(batch)
    if size < 61:
        raise IndexError("no batch")
    if cython.compiled:
        out, data, places = batch, cython.address(buf[0]), marks
    else:
        out, data, places = batch, buf, marks
    for mark in range(0, len(marks) - 5, 6):
        if (
            position + _mark(places, mark) > len(buf) - 12
            or position < 0
            or _mark(places, mark + 2) > size - 12
            or _mark(places, mark + 4) > size - 8
        ):
            raise IndexError("a mark beyond request or batch")
    _put(out, 0, base_offset, 8)
    _put(out, 12, leader_epoch, 4)
    _put(out, 27, now_ms, 8)
    _put(out, 35, now_ms, 8)
    for mark in range(0, len(marks) - 5, 6):
        _copy(out, _mark(places, mark + 2), data, position + _mark(places, mark), 12)
        _put(out, _mark(places, mark + 4), now_ms, 8)


@cython.cfunc
def _piece(out: cython.p_uchar, size: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return out[:size]
    return bytes(out[:size])


def fill_rows(
    batch: bytearray,
    marks: bytes,
    places: list[Any],
    tails: list[bytes],
    record_offset: cython.longlong,
    out: bytearray,
    rows: dict[Any, bytes],
) -> None:
    """Set the row of each record of a filled batch, the first at ``record_offset``, in ``rows``.

    ``places``: the key of each; ``tails``: its topic's id and metadata; ``out``: room for any one of them.
    """
    source: cython.p_const_uchar
    target: cython.p_uchar
    positions: cython.p_const_uchar
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(marks) // 6
    size: cython.Py_ssize_t = len(batch)
    at: cython.Py_ssize_t
    tail: bytes
    if len(places) != count or len(tails) != count:
        raise IndexError(f"{len(places)} places and {len(tails)} tails of {count} records")
    source, target, positions = batch, out, marks
    for number in range(count):
        tail = tails[number]
        if (
            len(tail) > len(out) - 36
            or _mark(positions, number * 6 + 2) > size - 12
            or _mark(positions, number * 6 + 4) > size - 8
        ):
            raise IndexError("a mark beyond the batch, or no room for a row")
        at = _copy(target, 0, source, _mark(positions, number * 6 + 2), 12)
        at = _copy(target, at, source, _mark(positions, number * 6 + 4), 8)
        at = _put(target, at, -1, 8)
        at = _put(target, at, record_offset + number, 8)
        at = _copy(target, at, tail, 0, len(tail))
        rows[places[number]] = _piece(target, at)
