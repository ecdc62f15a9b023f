"""Loops that search for records by timestamp; like `kernel`, one source, compiled or interpreted. [P]

They make no object for a batch or a record; compiled, they release the GIL. The head of `kernel` describes
the record layout and the rules for compiled and interpreted code.
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import Status

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.kernel import int32, int64, parse_record
else:
    from service.records.kernel import int32, int64, parse_record

COMPILED: Final[bool] = cython.compiled

_OK = cython.declare(cython.longlong, Status.OK)
_TRUNCATED = cython.declare(cython.longlong, Status.TRUNCATED)
_TRAILING = cython.declare(cython.longlong, Status.TRAILING)
_TIMESTAMP_OVERFLOW = cython.declare(cython.longlong, Status.TIMESTAMP_OVERFLOW)
_BAD_LENGTH = cython.declare(cython.longlong, Status.BAD_LENGTH)
_BAD_MAGIC = cython.declare(cython.longlong, Status.BAD_MAGIC)
_BAD_RANGE = cython.declare(cython.longlong, Status.BAD_RANGE)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)


def find_batch(
    buf: cython.const[cython.uchar][::1],
    position: cython.longlong,
    end: cython.longlong,
    timestamp: cython.longlong,
    offset: cython.longlong,
) -> tuple[int, int, int]:
    """Find the first batch from ``position`` on that reaches both ``offset`` and ``timestamp``.

    Reads headers alone: of the last batch in ``buf[position:end]`` only the header must be present. Returns
    (status, 1 if found, its position). If none is found, the position is that of the first batch without a
    complete header, which may lie beyond ``end``.
    """
    data: cython.p_const_uchar
    status: cython.longlong = _OK
    found: cython.longlong = 0
    size: cython.longlong
    base_offset: cython.longlong
    delta: cython.longlong
    if position < 0 or position > end or end > len(buf):
        raise IndexError(f"[{position}, {end}) is not inside {len(buf)} bytes")
    if end - position < 61:
        return _OK, 0, position
    if cython.compiled:  # noqa: SIM108  # only one of them is C
        data = cython.address(buf[0])
    else:
        data = buf
    with cython.nogil:
        while end - position >= 61:
            size = int32(data, position + 8) + 12
            if size < 61:
                status = _BAD_LENGTH
                break
            if data[position + 16] != 2:
                status = _BAD_MAGIC
                break
            base_offset = int64(data, position)
            delta = int32(data, position + 23)
            if delta < 0 or base_offset > _INT64_MAX - delta:
                status = _BAD_RANGE
                break
            if int64(data, position + 35) >= timestamp and base_offset + delta >= offset:
                found = 1
                break
            position += size
    return status, found, position


def find_record(
    buf: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    has_deltas: cython.longlong,
    timestamp: cython.longlong,
    least_delta: cython.longlong,
) -> tuple[int, int, int]:
    """Find the first of the ``count`` records in ``buf[start:end]`` that is not older than ``timestamp``,
    from the offset delta ``least_delta`` on.

    ``has_deltas`` is 0 if all records have ``base_timestamp`` (LogAppendTime). Returns (status, offset delta,
    timestamp); the delta is -1 if there is none, and the record's index for a bad record.
    """
    data: cython.p_const_uchar
    row: cython.longlong[10]
    position: cython.longlong = start
    status: cython.longlong = _OK
    index: cython.longlong = 0
    at: cython.longlong = base_timestamp
    delta: cython.longlong = -1
    if start < 0 or start > end or end > len(buf):
        raise IndexError(f"[{start}, {end}) is not inside {len(buf)} bytes")
    if start == end:
        return (_TRUNCATED if count > 0 else _OK), (0 if count > 0 else -1), base_timestamp
    if cython.compiled:
        data = cython.address(buf[0])
    else:
        data, row = buf, [0] * 10
    with cython.nogil:
        while index < count:
            position = parse_record(data, position, end, row)
            if position < 0:
                status = position
                break
            if has_deltas != 0:
                if (
                    row[0] > _INT64_MAX - base_timestamp
                    if base_timestamp > 0
                    else (row[0] < _INT64_MIN - base_timestamp)
                ):
                    status = _TIMESTAMP_OVERFLOW
                    break
                at = base_timestamp + row[0]
            if at >= timestamp and row[1] >= least_delta:
                delta = row[1]
                break
            index += 1
        if status == _OK and index == count and position != end:
            status = _TRAILING
    return status, (delta if status == _OK else index), at


def find_refused(
    buf: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    oldest: cython.longlong,
    newest: cython.longlong,
    needs_keys: cython.longlong,
    out: cython.longlong[::1],
) -> tuple[int, int]:
    """Find the records that a topic refuses, among ``count`` records that `check_records` has found sound.

    These are records without a key if ``needs_keys`` is not 0, and of the others those outside ``[oldest,
    newest]``; a record without a timestamp (-1) is outside only if ``oldest`` > ``newest``, which refuses
    all. Writes index, timestamp, and 1 or 0 for a missing key, to ``out`` until it is full. Returns the
    number of refused records, and how many of them are outside.
    """
    data: cython.p_const_uchar
    rows: cython.p_longlong
    row: cython.longlong[10]
    position: cython.longlong = start
    index: cython.longlong = 0
    found: cython.longlong = 0
    outside: cython.longlong = 0
    room: cython.longlong = len(out) // 3
    timestamp: cython.longlong
    keyless: cython.longlong
    none_inside: cython.bint = oldest > newest
    if start < 0 or start > end or end > len(buf):
        raise IndexError(f"[{start}, {end}) is not inside {len(buf)} bytes")
    if start == end or room == 0:
        return 0, 0
    if cython.compiled:
        data, rows = cython.address(buf[0]), cython.address(out[0])
    else:
        data, rows, row = buf, out, [0] * 10
    with cython.nogil:
        while index < count:
            position = parse_record(data, position, end, row)
            if position < 0:
                break
            if (
                row[0] > _INT64_MAX - base_timestamp
                if base_timestamp > 0
                else (row[0] < _INT64_MIN - base_timestamp)
            ):
                break
            timestamp = base_timestamp + row[0]
            keyless = 1 if needs_keys != 0 and row[3] < 0 else 0
            if (
                keyless == 0
                and (timestamp < oldest or timestamp > newest)
                and (timestamp != -1 or none_inside)
            ):
                outside += 1
            elif keyless == 0:
                index += 1
                continue
            if found < room:
                rows[3 * found] = index
                rows[3 * found + 1] = timestamp
                rows[3 * found + 2] = keyless
            found += 1
            index += 1
    return found, outside
