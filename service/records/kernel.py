"""Loops over records and batches; one source, compiled or interpreted. [P]

Compiled by Cython (pure-Python mode) the loops run as C with the GIL released. Without a compiler or Cython
the same file runs as plain Python. Both give the same results: a parity test loads this source beside the
compiled module and compares them. So no value may exceed 64 bits unmasked, pointers are only indexed, and bad
data are a status, never an exception.

Record, format v2 (Kafka `DefaultRecord`; varints are zigzag):

    length varint | attributes i8 | timestamp delta varlong | offset delta varint
    | key length varint, key | value length varint, value | header count varint, headers

    header: key length varint, key | value length varint, value        (a negative length means null)
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import BATCH_FIELDS, RECORD_FIELDS, Status

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

COMPILED: Final[bool] = cython.compiled

# C integers when compiled: an attribute of an enum cannot be looked up without the GIL.
_OK = cython.declare(cython.longlong, Status.OK)
_TRUNCATED = cython.declare(cython.longlong, Status.TRUNCATED)
_BAD_VARINT = cython.declare(cython.longlong, Status.BAD_VARINT)
_BAD_SIZE = cython.declare(cython.longlong, Status.BAD_SIZE)
_BAD_OFFSET = cython.declare(cython.longlong, Status.BAD_OFFSET)
_BAD_HEADERS = cython.declare(cython.longlong, Status.BAD_HEADERS)
_TRAILING = cython.declare(cython.longlong, Status.TRAILING)
_TIMESTAMP_OVERFLOW = cython.declare(cython.longlong, Status.TIMESTAMP_OVERFLOW)
_BAD_LENGTH = cython.declare(cython.longlong, Status.BAD_LENGTH)
_BAD_MAGIC = cython.declare(cython.longlong, Status.BAD_MAGIC)
_BAD_CRC = cython.declare(cython.longlong, Status.BAD_CRC)
_BAD_RANGE = cython.declare(cython.longlong, Status.BAD_RANGE)
_BAD_COUNT = cython.declare(cython.longlong, Status.BAD_COUNT)
_RECORD_FIELDS = cython.declare(cython.longlong, RECORD_FIELDS)
_BATCH_FIELDS = cython.declare(cython.longlong, BATCH_FIELDS)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
# Integers beyond 31 bits are declared too: as literals they would be Python objects.
_TWO_TO_31 = cython.declare(cython.longlong, 0x80000000)
_TWO_TO_32 = cython.declare(cython.longlong, 0x100000000)
_UINT32_MAX = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)
_CRC32C_POLYNOMIAL = cython.declare(cython.uint, 0x82F63B78)
_crc_table = cython.declare(cython.uint[2048])
if not cython.compiled:
    _crc_table = [0] * 2048


def _fill_crc_table() -> None:
    """Fill eight tables of 256: entry n of table k is the checksum of byte n followed by k zero bytes."""
    index: cython.int
    table: cython.int
    crc: cython.uint
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = (crc >> 1) ^ (_CRC32C_POLYNOMIAL if crc & 1 else 0)
        _crc_table[index] = crc
    for index in range(256):
        crc = _crc_table[index]
        for table in range(1, 8):
            crc = _crc_table[crc & 0xFF] ^ (crc >> 8)
            _crc_table[table * 256 + index] = crc


_fill_crc_table()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc32c(data: cython.p_const_uchar, position: cython.longlong, end: cython.longlong) -> cython.longlong:
    """Return the CRC32C of ``data[position:end]``, eight bytes a step."""
    crc: cython.uint = _UINT32_MAX
    while end - position >= 8:
        crc = (
            _crc_table[1792 + ((crc ^ data[position]) & 0xFF)]
            ^ _crc_table[1536 + (((crc >> 8) ^ data[position + 1]) & 0xFF)]
            ^ _crc_table[1280 + (((crc >> 16) ^ data[position + 2]) & 0xFF)]
            ^ _crc_table[1024 + ((crc >> 24) ^ data[position + 3])]
            ^ _crc_table[768 + data[position + 4]]
            ^ _crc_table[512 + data[position + 5]]
            ^ _crc_table[256 + data[position + 6]]
            ^ _crc_table[data[position + 7]]
        )
        position += 8
    while position < end:
        crc = _crc_table[(crc ^ data[position]) & 0xFF] ^ (crc >> 8)
        position += 1
    return crc ^ _UINT32_MAX


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _uint32(data: cython.p_const_uchar, position: cython.longlong) -> cython.longlong:
    value: cython.longlong = data[position]
    value = value * 256 + data[position + 1]
    value = value * 256 + data[position + 2]
    return value * 256 + data[position + 3]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def int32(data: cython.p_const_uchar, position: cython.longlong) -> cython.longlong:
    value: cython.longlong = _uint32(data, position)
    return value - _TWO_TO_32 if value >= _TWO_TO_31 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def int64(data: cython.p_const_uchar, position: cython.longlong) -> cython.longlong:
    return int32(data, position) * _TWO_TO_32 + _uint32(data, position + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint(
    data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong, last_shift: cython.longlong
) -> cython.longlong:
    """Read the zigzag varint at ``at[0]``, which becomes the position after it, or a status.

    The last byte may be shifted by ``last_shift`` bits: 28 for a varint, 63 for a varlong. Bits beyond are
    dropped, as in Java. ``at[0]`` must not be a status already.
    """
    position: cython.longlong = at[0]
    value: cython.ulonglong
    byte: cython.ulonglong
    shift: cython.longlong = 7
    last_bits: cython.ulonglong = 0x0F if last_shift == 28 else 0x01
    if position >= end:
        at[0] = _TRUNCATED
        return 0
    byte = data[position]
    position += 1
    value = byte & 0x7F
    while byte >= 0x80:
        if shift > last_shift:
            at[0] = _BAD_VARINT
            return 0
        if position >= end:
            at[0] = _TRUNCATED
            return 0
        byte = data[position]
        position += 1
        value |= (byte & (0x7F if shift < last_shift else last_bits)) << shift
        shift += 7
    at[0] = position
    return (value >> 1) ^ -(value & 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _skip(data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong) -> cython.longlong:
    """Skip bytes that follow their length; return it, -1 for null. ``at[0]`` is as for `varint`."""
    size: cython.longlong = varint(data, at, end, 28)
    if at[0] < 0:
        return 0
    if size > end - at[0]:
        at[0] = _BAD_SIZE
        return 0
    if size < 0:
        return -1
    at[0] += size
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def next_header(
    data: cython.p_const_uchar, position: cython.longlong, end: cython.longlong, spans: cython.p_longlong
) -> cython.longlong:
    """Return the position after the header at ``position``, or a status.

    ``spans`` gets the position and size of its key, then those of its value, size -1 for null.
    """
    at: cython.longlong[1]
    if not cython.compiled:
        at = [0]
    at[0] = position
    spans[1] = _skip(data, at, end)
    if at[0] < 0:
        return at[0]
    if spans[1] < 0:
        return _BAD_HEADERS
    spans[0] = at[0] - spans[1]
    spans[3] = _skip(data, at, end)
    spans[2] = at[0] - max(spans[3], 0)
    return at[0]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(
    data: cython.p_const_uchar, position: cython.longlong, end: cython.longlong, row: cython.p_longlong
) -> cython.longlong:
    """Skip ``row[7]`` headers, counting bytes in ``row[8]`` and ``row[9]``; return the end, or a status."""
    spans: cython.longlong[4]
    left: cython.longlong = row[7]
    if not cython.compiled:
        spans = [0] * 4
    while left > 0:
        position = next_header(data, position, end, spans)
        if position < 0:
            return position
        row[8] += spans[1]
        row[9] += max(spans[3], 0)
        left -= 1
    return position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def parse_record(
    data: cython.p_const_uchar, position: cython.longlong, end: cython.longlong, row: cython.p_longlong
) -> cython.longlong:
    """Check one record and write its fields to ``row``; return the position after it, or a status.

    ``row`` gets ten numbers: `RECORD_FIELDS`, then the bytes of all header keys and of all header values.
    """
    at: cython.longlong[1]
    size: cython.longlong
    if not cython.compiled:
        at = [0]
    at[0] = position
    size = varint(data, at, end, 28)
    if at[0] < 0:
        return at[0]
    if size < 1:
        return _BAD_SIZE
    if size > end - at[0]:
        return _TRUNCATED
    end = at[0] + size
    at[0] += 1  # attributes, unused in this format
    row[0] = varint(data, at, end, 63)
    if at[0] < 0:
        return at[0]
    row[1] = varint(data, at, end, 28)
    if at[0] < 0:
        return at[0]
    row[3] = _skip(data, at, end)
    if at[0] < 0:
        return at[0]
    row[2] = at[0] - max(row[3], 0)
    row[5] = _skip(data, at, end)
    if at[0] < 0:
        return at[0]
    row[4] = at[0] - max(row[5], 0)
    size = varint(data, at, end, 28)
    if at[0] < 0:
        return at[0]
    row[7] = size
    row[8] = row[9] = 0
    position = row[6] = at[0]
    if size != 0:
        if size < 0 or size > end - position:
            return _BAD_HEADERS
        position = _skip_headers(data, position, end, row)
        if position < 0:
            return position
    return position if position == end else _BAD_SIZE


def check_records(
    buf: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    oldest: cython.longlong,
    newest: cython.longlong,
) -> tuple[int, int, int, int, int]:
    """Check the ``count`` records that must fill ``buf[start:end]``, with offset deltas 0, 1, 2 ...

    Returns (status, index, max timestamp, index of the first record that has it, index of the first record
    outside ``[oldest, newest]``). ``index`` is that of the record with a bad status. A record without a
    timestamp (-1) is never outside; if all records have none, max timestamp is -1 at index 0. The last number
    is -1 if no record is outside.
    """
    row: cython.longlong[10]
    data: cython.p_const_uchar
    position: cython.longlong = start
    status: cython.longlong = _OK
    index: cython.longlong = 0
    timestamp: cython.longlong
    max_timestamp: cython.longlong = -1
    max_index: cython.longlong = 0
    outside: cython.longlong = -1
    if start < 0 or start > end or end > len(buf):
        raise IndexError(f"[{start}, {end}) is not inside {len(buf)} bytes")
    if start == end:
        return (_TRUNCATED if count > 0 else _OK), 0, -1, 0, -1
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
            if row[1] != index:
                status = _BAD_OFFSET
                break
            timestamp = base_timestamp
            if row[0] > _INT64_MAX - timestamp if timestamp > 0 else row[0] < _INT64_MIN - timestamp:
                status = _TIMESTAMP_OVERFLOW
                break
            timestamp += row[0]
            if timestamp > max_timestamp:
                max_timestamp = timestamp
                max_index = index
            if timestamp != -1 and (timestamp < oldest or timestamp > newest) and outside < 0:
                outside = index
            index += 1
        if status == _OK and position != end:
            status = _TRAILING
    return status, index, max_timestamp, max_index, outside


def index_records(
    buf: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    out: cython.longlong[::1],
) -> tuple[int, int]:
    """Find the fields of the ``count`` records that must fill ``buf[start:end]``; offsets may have gaps.

    Writes `RECORD_FIELDS` numbers for each record to ``out``, which must have room for them. Returns (status,
    index of its record).
    """
    data: cython.p_const_uchar
    fields: cython.p_longlong
    row: cython.longlong[10]
    position: cython.longlong = start
    status: cython.longlong = _OK
    index: cython.longlong = 0
    field: cython.longlong
    if start < 0 or start > end or end > len(buf):
        raise IndexError(f"[{start}, {end}) is not inside {len(buf)} bytes")
    if count > len(out) // _RECORD_FIELDS:
        raise IndexError(f"{count} records need more than {len(out)} numbers")
    if start == end or count <= 0:
        return (_OK if start == end and count <= 0 else _TRUNCATED if start == end else _TRAILING), 0
    if cython.compiled:
        data, fields = cython.address(buf[0]), cython.address(out[0])
    else:
        data, fields, row = buf, out, [0] * 10
    with cython.nogil:
        while index < count:
            position = parse_record(data, position, end, row)
            if position < 0:
                status = position
                break
            for field in range(_RECORD_FIELDS):
                fields[index * _RECORD_FIELDS + field] = row[field]
            index += 1
        if status == _OK and position != end:
            status = _TRAILING
    return status, index


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _check_batch(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    next_offset: cython.longlong,
    crc_limit: cython.longlong,
) -> cython.longlong:
    """Return the size of the batch at ``position`` if it is whole, sound and in order, else a status."""
    size: cython.longlong
    base_offset: cython.longlong
    delta: cython.longlong
    count: cython.longlong
    if end - position < 12:
        return _TRUNCATED
    size = int32(data, position + 8) + 12
    if size < 61:
        return _BAD_LENGTH
    if end - position > 16 and data[position + 16] != 2:
        return _BAD_MAGIC
    if size > end - position:
        return _TRUNCATED
    base_offset = int64(data, position)
    delta = int32(data, position + 23)
    if base_offset < next_offset or delta < 0 or base_offset > _INT64_MAX - delta:
        return _BAD_RANGE
    count = int32(data, position + 57)
    if count < 0 or count > delta + 1:
        return _BAD_COUNT
    if size <= crc_limit and crc32c(data, position + 21, position + size) != _uint32(data, position + 17):
        return _BAD_CRC
    return size


def scan_batches(
    buf: cython.const[cython.uchar][::1],
    position: cython.longlong,
    end: cython.longlong,
    next_offset: cython.longlong,
    crc_limit: cython.longlong,
    out: cython.longlong[::1],
) -> tuple[int, int, int]:
    """Walk the batches in ``buf[position:end]``, whose offsets must ascend, from ``next_offset`` or later.

    Verifies checksums of batches up to ``crc_limit`` bytes. Writes `BATCH_FIELDS` numbers for each batch to
    ``out`` until it is full. Returns (status, batches written, position after the last of them); `OK` means
    that ``end`` was reached or ``out`` is full.
    """
    data: cython.p_const_uchar
    rows: cython.p_longlong
    status: cython.longlong = _OK
    batches: cython.longlong = 0
    room: cython.longlong = len(out) // _BATCH_FIELDS
    size: cython.longlong
    at: cython.longlong = 0
    if position < 0 or position > end or end > len(buf):
        raise IndexError(f"[{position}, {end}) is not inside {len(buf)} bytes")
    if position == end or room == 0:
        return _OK, 0, position
    if cython.compiled:
        data, rows = cython.address(buf[0]), cython.address(out[0])
    else:
        data, rows = buf, out
    with cython.nogil:
        while position < end and batches < room:
            size = _check_batch(data, position, end, next_offset, crc_limit)
            if size < 0:
                status = size
                break
            rows[at] = position
            rows[at + 1] = size
            rows[at + 2] = int64(data, position)
            rows[at + 3] = rows[at + 2] + int32(data, position + 23)
            rows[at + 4] = int32(data, position + 12)
            rows[at + 5] = int64(data, position + 27)
            rows[at + 6] = int64(data, position + 35)
            rows[at + 7] = int32(data, position + 57)
            rows[at + 8] = data[position + 21] * 256 + data[position + 22]
            rows[at + 9] = _uint32(data, position + 17)
            next_offset = rows[at + 3] + 1
            at += _BATCH_FIELDS
            position += size
            batches += 1
    return status, batches, position
