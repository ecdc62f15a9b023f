"""Runs of small produce requests from bytes to bytes; like `kernel`, one source, compiled or interpreted. [P]

A producer that has several requests under way sends the same bytes all the time, but for the correlation id
and the batch. `read_head` finds where that beginning of a request ends; `take_run` goes through the requests
behind one another that begin alike, and for each that is sound copies its batch, stamped, behind the one
before, and its response behind the response before. Nothing is changed but the three outputs, so the caller
may drop all of it.

A request that is not ordinary (another beginning, a compressed or transactional batch, a sequence that does
not continue, anything that is refused) ends the run before it: the general path then reads it from the start
and reports errors.

Versions 3 to 13. `wire/produce` has the layout of request and response, `records/batch` that of a batch.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.service.records.kernel import crc32c, int32, int64, parse_record
else:
    from service.records.kernel import crc32c, int32, int64, parse_record

COMPILED: Final[bool] = cython.compiled

HEAD_END, VERSION, RECORDS, RECORDS_SIZE, STOP, HEAD_FIELDS = range(6)
"""Indexes of what `read_head` writes: the position behind the partition's index, the version, position and
size of the records, and where the request ends."""
MOST_REQUESTS, MOST_BYTES, OLDEST, NEWEST, OFFSET, EPOCH, ANSWER_OFFSET_AT, RULE_FIELDS = range(8)
"""Indexes of the numbers that `take_run` heeds: most requests of a run, most bytes of a batch, bounds of
timestamps, offset of the first record, leader epoch, where a response has its base offset."""
POSITION, SIZE, LAST_OFFSET, MAX_TIMESTAMP, ROW_FIELDS = range(5)
"""Indexes of what `take_run` writes about each batch; the position is that in the output."""

_OVERHEAD = cython.declare(cython.longlong, 12)
_HEADER_SIZE = cython.declare(cython.longlong, 61)
_ROW_FIELDS = cython.declare(cython.longlong, ROW_FIELDS)
_UINT32_MASK = cython.declare(cython.longlong, 0xFFFFFFFF)
_SEQUENCE_MASK = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int16(data: cython.p_const_uchar, position: cython.longlong) -> cython.longlong:
    value: cython.longlong = data[position]
    value = value * 256 + data[position + 1]
    return value - 65536 if value >= 32768 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _compact(data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong) -> cython.longlong:
    """Read the unsigned varint of at most four bytes at ``at[0]`` and advance ``at[0]``; -1 on failure."""
    position: cython.longlong = at[0]
    value: cython.longlong = 0
    byte: cython.longlong
    shift: cython.longlong = 0
    while shift < 28:
        if position >= end:
            return -1
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            at[0] = position
            return value
        shift += 7
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    out: cython.p_uchar, at: cython.longlong, value: cython.longlong, size: cython.longlong
) -> cython.longlong:
    """Write an integer of ``size`` bytes, big-endian; return the position after it."""
    shift: cython.longlong = 8 * size
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
    at: cython.longlong,
    data: cython.p_const_uchar,
    position: cython.longlong,
    size: cython.longlong,
) -> cython.longlong:
    """Copy ``data[position : position + size]`` to ``out[at:]``; return the position after it."""
    if cython.compiled:
        memcpy(out + at, data + position, size)
    else:
        out[at : at + size] = data[position : position + size]
    return at + size


def read_head(
    buf: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    head: cython.longlong[::1],
) -> int:
    """Read the Produce request whose size is at ``start`` of ``buf[:end]``; write `HEAD_FIELDS` numbers to
    ``head`` and return 1.

    Returns 0 for a request of another API or version, one with a tag or a transactional id, with not one
    topic of one partition, or without records, one that is longer or shorter than it says, and one that has
    not arrived whole.
    """
    data: cython.p_const_uchar
    at: cython.longlong[1]
    version: cython.longlong
    size: cython.longlong
    tail: cython.longlong = 0
    if start < 0 or start > end or end > len(buf) or len(head) < HEAD_FIELDS:
        raise IndexError(f"[{start}, {end}) is not inside {len(buf)} bytes")
    if end - start < 14:
        return 0
    if cython.compiled:
        data = cython.address(buf[0])
    else:
        data, at = buf, [0]
    size = int32(data, start)
    if size < 10 or size > end - start - 4:
        return 0
    end = start + 4 + size
    version = _int16(data, start + 6)
    if _int16(data, start + 4) != 0 or version < 3 or version > 13:
        return 0
    size = _int16(data, start + 12)
    at[0] = start + 14 + max(size, 0)
    if version < 9:
        # transactional id, acks, timeout, number of topics, size of the name
        if end - at[0] < 14 or _int16(data, at[0]) != -1 or int32(data, at[0] + 8) != 1:
            return 0
        size = _int16(data, at[0] + 12)
        at[0] += 14 + size
        if size < 0 or end - at[0] < 8 or int32(data, at[0]) != 1:
            return 0
        at[0] += 8
    else:
        # tags, transactional id, acks, timeout, number of topics
        if end - at[0] < 9 or data[at[0]] != 0 or data[at[0] + 1] != 0 or data[at[0] + 8] != 2:
            return 0
        at[0] += 9
        size = 16
        if version < 13:
            size = _compact(data, at, end) - 1
            if size < 0:
                return 0
        at[0] += size
        if end - at[0] < 5 or data[at[0]] != 2:
            return 0
        at[0] += 5
    head[0] = at[0]
    head[1] = version
    if version < 9:
        if end - at[0] < 4:
            return 0
        size = int32(data, at[0])
        at[0] += 4
    else:
        size = _compact(data, at, end) - 1
        if size < 0 or end - at[0] < 3 or data[end - 1] != 0 or data[end - 2] != 0 or data[end - 3] != 0:
            return 0
        tail = 3
    if size < 0 or size != end - tail - at[0]:
        return 0
    head[2], head[3], head[4] = at[0], size, end
    return 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _max_timestamp(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    oldest: cython.longlong,
    newest: cython.longlong,
) -> cython.longlong:
    """Return the greatest timestamp of the records that fill ``data[position:end]``, -1 without any; -2 if
    the records are not sound, or one is out of bounds."""
    row: cython.longlong[10]
    index: cython.longlong = 0
    timestamp: cython.longlong
    found: cython.longlong = -1
    if not cython.compiled:
        row = [0] * 10
    while index < count:
        position = parse_record(data, position, end, row)
        if position < 0 or row[1] != index:
            return -2
        timestamp = base_timestamp
        if row[0] > _INT64_MAX - timestamp if timestamp > 0 else row[0] < _INT64_MIN - timestamp:
            return -2
        timestamp += row[0]
        if timestamp != -1 and (timestamp < oldest or timestamp > newest):
            return -2
        if timestamp > found:
            found = timestamp
        index += 1
    return found if position == end else -2


def take_run(
    buf: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    head_end: cython.longlong,
    rules: cython.longlong[::1],
    template: cython.const[cython.uchar][::1],
    batches: cython.uchar[::1],
    answers: cython.uchar[::1],
    rows: cython.longlong[::1],
) -> tuple[int, int, int, int, int]:
    """Take the requests in ``buf[start:end]`` that begin as the first one, of which `read_head` has said that
    its head ends at ``head_end``.

    Writes each batch to ``batches``, with its offset and leader epoch, each response, a copy of ``template``
    with correlation id and base offset, to ``answers``, and `ROW_FIELDS` numbers to ``rows``, while there is
    room. Returns (number of requests, position behind the last one, bytes of batches, greatest timestamp,
    last offset of the first batch that has it).
    """
    data: cython.p_const_uchar
    form: cython.p_const_uchar
    out: cython.p_uchar
    answer: cython.p_uchar
    at: cython.longlong[1]
    count: cython.longlong = 0
    used: cython.longlong = 0
    place: cython.longlong = start
    stop: cython.longlong
    size: cython.longlong
    index: cython.longlong
    records: cython.longlong
    delta: cython.longlong
    stated: cython.longlong
    sequence: cython.longlong
    producer: cython.longlong = 0
    epoch: cython.longlong = 0
    expected: cython.longlong = 0
    first: cython.longlong
    head_size: cython.longlong = head_end - start
    tail: cython.longlong = 0
    form_size: cython.longlong = len(template)
    most: cython.longlong
    most_bytes: cython.longlong
    oldest: cython.longlong
    newest: cython.longlong
    latest: cython.longlong = -1
    latest_offset: cython.longlong = -1
    offset: cython.longlong
    offset_at: cython.longlong
    if start < 0 or head_size < 14 or head_end > end or end > len(buf):
        raise IndexError(f"[{start}, {head_end}, {end}) is not inside {len(buf)} bytes")
    if len(rules) < RULE_FIELDS or form_size < 8:
        raise IndexError("rules or template are too short")
    most, most_bytes, oldest, newest = rules[0], rules[1], rules[2], rules[3]
    offset, offset_at = rules[4], rules[6]
    if offset_at < 8 or offset_at + 8 > form_size:
        raise IndexError("the template has no room for a base offset")
    most = min(most, len(answers) // form_size, len(rows) // ROW_FIELDS)
    if len(batches) < 61 or most < 1:
        return 0, start, 0, -1, -1
    if cython.compiled:
        data, form = cython.address(buf[0]), cython.address(template[0])
        out, answer = cython.address(batches[0]), cython.address(answers[0])
    else:
        data, form, out, answer, at = buf, template, batches, answers, [0]
    if _int16(data, start + 6) >= 9:
        tail = 3
    while count < most and end - place >= head_size:
        size = int32(data, place)
        stop = place + 4 + size
        if size < head_size or size > end - place - 4:
            break
        # All but size and correlation id is as in the first request.
        index = 4
        while index < head_size and (
            data[place + index] == data[start + index] or (index >= 8 and index < 12)
        ):
            index += 1
        if index < head_size:
            break
        at[0] = place + head_size
        if tail == 0:
            if stop - at[0] < 4:
                break
            size = int32(data, at[0])
            at[0] += 4
        else:
            size = _compact(data, at, stop) - 1
            if stop - at[0] < 3 or data[stop - 1] != 0 or data[stop - 2] != 0 or data[stop - 3] != 0:
                break
        first = at[0]
        # One whole batch fills the rest, and there is room for it.
        if (
            size < _HEADER_SIZE
            or size != stop - tail - first
            or size > most_bytes
            or size > len(batches) - used
        ):
            break
        if int64(data, first) != 0 or int32(data, first + 8) != size - _OVERHEAD or data[first + 16] != 2:
            break
        if data[first + 21] != 0 or data[first + 22] != 0:
            break  # compressed, transactional, control, or stamped with the time of append
        delta = int32(data, first + 23)
        records = int32(data, first + 57)
        stated = int64(data, first + 35)
        sequence = int32(data, first + 53)
        if records <= 0 or delta != records - 1:
            break
        if count == 0:
            producer = int64(data, first + 43)
            epoch = _int16(data, first + 51)
        elif int64(data, first + 43) != producer or _int16(data, first + 51) != epoch:
            break
        if producer >= 0 and count and sequence != expected:
            break
        if producer >= 0:
            if sequence < 0:
                break
            expected = (sequence + records) & _SEQUENCE_MASK
        if crc32c(data, first + 21, first + size) != (int32(data, first + 17) & _UINT32_MASK):
            break
        if (
            stated < -1
            or _max_timestamp(
                data, first + 61, first + size, records, int64(data, first + 27), oldest, newest
            )
            != stated
        ):
            break
        _copy(out, used, data, first, size)
        _put(out, used, offset, 8)
        _put(out, used + 12, rules[5], 4)
        index = count * form_size
        _copy(answer, index, form, 0, form_size)
        _copy(answer, index + 4, data, place + 8, 4)
        _put(answer, index + offset_at, offset, 8)
        index = count * _ROW_FIELDS
        rows[index] = used
        rows[index + 1] = size
        rows[index + 2] = offset + delta
        rows[index + 3] = stated
        if count == 0 or stated > latest:
            latest = stated
            latest_offset = offset + delta
        offset += records
        used += size
        count += 1
        place = stop
    return count, place, used, latest, latest_offset
