"""Ordinary OffsetCommit requests to records, rows and responses; like `kernel`, compiled or not. [P]

A consumer commits the same few partitions all the time, and an object for each field costs more than all the
rest. `read_commit` finds the fields' positions in a request's bytes; the other functions write from them the
same bytes as the general path. A request that is not ordinary (a tag, a forbidden null, a wrong length,
metadata that is not ASCII, too many partitions) is `NOT_ORDINARY`: the general path then reads it from the
start and reports errors.

Versions 6 to 10. `wire/offset_commits` has the layouts of request and response, `groups/records` those of key
and value, `groups/offsets` that of a row.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.kernel import int32, int64
else:
    from service.records.kernel import int32, int64

COMPILED: Final[bool] = cython.compiled

NOT_ORDINARY: Final = -1
GROUP, GROUP_SIZE, EPOCH, MEMBER, MEMBER_SIZE, INSTANCE, INSTANCE_SIZE, HEAD_FIELDS = range(8)
"""Indexes of what `read_commit` writes about a request: positions and sizes of strings, size -1 for null."""
TOPIC_FIELDS: Final = 5
"""Number of fields about each topic: position and size of its name or id, number of partitions, greatest
partition, bytes of all metadata in records."""
ROW_FIELDS: Final = 5
"""Number of fields about each partition: number, offset, leader epoch, position and size of its metadata."""
VALUE_BYTES: Final = 41
"""Bytes of a record's value without the metadata and its size."""
ROW_BYTES: Final = 52
"""Bytes of a row without the metadata."""

_NOT_ORDINARY = cython.declare(cython.longlong, NOT_ORDINARY)
_TOPIC_FIELDS = cython.declare(cython.longlong, TOPIC_FIELDS)
_ROW_FIELDS = cython.declare(cython.longlong, ROW_FIELDS)
_MAX_STRING = cython.declare(cython.longlong, 0x7FFF)


# Reading


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _compact(data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong) -> cython.longlong:
    """Read the unsigned varint of one or two bytes at ``at[0]`` and advance ``at[0]``; -1 on failure."""
    position: cython.longlong = at[0]
    value: cython.longlong
    if position >= end:
        return _NOT_ORDINARY
    value = data[position]
    if value >= 0x80:
        position += 1
        if position >= end or data[position] >= 0x80:
            return _NOT_ORDINARY
        value = (value & 0x7F) + data[position] * 128
    at[0] = position + 1
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _string(
    data: cython.p_const_uchar,
    at: cython.p_longlong,
    end: cython.longlong,
    flexible: cython.longlong,
    nullable: cython.longlong,
    span: cython.p_longlong,
    number: cython.longlong,
) -> cython.longlong:
    """Write a string's position to ``span[number]`` and its size (-1 for null) behind it; return 0, or -1."""
    size: cython.longlong
    if flexible:
        size = _compact(data, at, end)
        if size < 0:
            return _NOT_ORDINARY
        size -= 1
    else:
        if end - at[0] < 2:
            return _NOT_ORDINARY
        size = data[at[0]] * 256 + data[at[0] + 1]
        at[0] += 2
        if size == 0xFFFF:
            size = -1
        elif size > _MAX_STRING:
            return _NOT_ORDINARY
    if size > end - at[0] or (size < 0 and nullable == 0):
        return _NOT_ORDINARY
    span[number] = at[0]
    span[number + 1] = size
    if size > 0:
        at[0] += size
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _count(
    data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong, flexible: cython.longlong
) -> cython.longlong:
    """Return the number of elements of the array at ``at[0]``; -1 also for an empty or null array."""
    count: cython.longlong
    if flexible:
        count = _compact(data, at, end) - 1
    else:
        if end - at[0] < 4:
            return _NOT_ORDINARY
        count = int32(data, at[0])
        at[0] += 4
    return count if count > 0 else _NOT_ORDINARY


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _no_tags(
    data: cython.p_const_uchar, at: cython.p_longlong, end: cython.longlong, flexible: cython.longlong
) -> cython.longlong:
    if flexible:
        if at[0] >= end or data[at[0]] != 0:
            return _NOT_ORDINARY
        at[0] += 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_partitions(
    data: cython.p_const_uchar,
    at: cython.p_longlong,
    end: cython.longlong,
    flexible: cython.longlong,
    count: cython.longlong,
    topic: cython.p_longlong,
    topic_at: cython.longlong,
    row: cython.p_longlong,
    row_at: cython.longlong,
) -> cython.longlong:
    """Read the partitions of one topic into rows; return 0, or -1."""
    index: cython.longlong
    byte: cython.longlong
    greatest: cython.longlong = 0
    room: cython.longlong = 0
    size: cython.longlong
    while count > 0:
        if end - at[0] < 16:
            return _NOT_ORDINARY
        index = int32(data, at[0])
        if index < 0:
            return _NOT_ORDINARY
        if index > greatest:
            greatest = index
        row[row_at] = index
        row[row_at + 1] = int64(data, at[0] + 4)
        row[row_at + 2] = int32(data, at[0] + 12)
        at[0] += 16
        if _string(data, at, end, flexible, 1, row, row_at + 3) < 0:
            return _NOT_ORDINARY
        size = row[row_at + 4]
        if size < 0:
            size = 0
            row[row_at + 4] = 0
        byte = row[row_at + 3]
        while byte < row[row_at + 3] + size:
            if data[byte] >= 0x80:
                return _NOT_ORDINARY
            byte += 1
        room += size + (1 if size < 0x7F else 2 if size < 0x3FFF else 3)
        if _no_tags(data, at, end, flexible) < 0:
            return _NOT_ORDINARY
        row_at += _ROW_FIELDS
        count -= 1
    topic[topic_at + 3] = greatest
    topic[topic_at + 4] = room
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    version: cython.longlong,
    most: cython.longlong,
    head: cython.p_longlong,
    topic: cython.p_longlong,
    row: cython.p_longlong,
) -> cython.longlong:
    """Do the work of `read_commit`; topics and partitions are at most `most` together."""
    at: cython.longlong[1]
    flexible: cython.longlong = 1 if version >= 8 else 0
    topics: cython.longlong
    count: cython.longlong
    number: cython.longlong = 0
    rows: cython.longlong = 0
    if not cython.compiled:
        at = [0]
    at[0] = position
    if _string(data, at, end, flexible, 0, head, 0) < 0 or end - at[0] < 4:
        return _NOT_ORDINARY
    head[2] = int32(data, at[0])
    at[0] += 4
    if _string(data, at, end, flexible, 0, head, 3) < 0:
        return _NOT_ORDINARY
    head[5] = 0
    head[6] = -1
    if version >= 7 and _string(data, at, end, flexible, 1, head, 5) < 0:
        return _NOT_ORDINARY
    topics = _count(data, at, end, flexible)
    if topics < 0 or topics > most:
        return _NOT_ORDINARY
    while number < topics:
        if version >= 10:
            if end - at[0] < 16:
                return _NOT_ORDINARY
            topic[number * _TOPIC_FIELDS] = at[0]
            topic[number * _TOPIC_FIELDS + 1] = 16
            at[0] += 16
        elif _string(data, at, end, flexible, 0, topic, number * _TOPIC_FIELDS) < 0:
            return _NOT_ORDINARY
        count = _count(data, at, end, flexible)
        if count < 0 or rows + count > most - topics:
            return _NOT_ORDINARY
        topic[number * _TOPIC_FIELDS + 2] = count
        if (
            _read_partitions(
                data, at, end, flexible, count, topic, number * _TOPIC_FIELDS, row, rows * _ROW_FIELDS
            )
            < 0
            or _no_tags(data, at, end, flexible) < 0
        ):
            return _NOT_ORDINARY
        rows += count
        number += 1
    if _no_tags(data, at, end, flexible) < 0:
        return _NOT_ORDINARY
    return topics


def read_commit(
    buf: cython.const[cython.uchar][::1],
    position: cython.longlong,
    version: cython.longlong,
    most: cython.longlong,
    head: cython.longlong[::1],
    topics: cython.longlong[::1],
    rows: cython.longlong[::1],
) -> int:
    """Return the number of topics of the request whose body begins at ``position``, or `NOT_ORDINARY`.

    Topics and partitions are at most ``most`` together, and the arrays have room for as many. Every topic has
    partitions, and no partition is negative.
    """
    found: cython.longlong
    if len(head) < 7 or len(topics) < most * 5 or len(rows) < most * 5 or most < 1 or position < 0:
        raise IndexError(f"no room for {most} topics and partitions")
    if position >= len(buf) or version < 6 or version > 10:
        return _NOT_ORDINARY
    if cython.compiled:
        with cython.nogil:
            found = _read(
                cython.address(buf[0]), position, len(buf), version, most, cython.address(head[0]),
                cython.address(topics[0]), cython.address(rows[0]),
            )  # fmt: skip
    else:
        found = _read(buf, position, len(buf), version, most, head, topics, rows)
    return found


# Writing


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
def _put_unsigned(out: cython.p_uchar, at: cython.longlong, value: cython.longlong) -> cython.longlong:
    while value > 0x7F:
        out[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unsigned_size(value: cython.longlong) -> cython.longlong:
    size: cython.longlong = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


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
    while size > 0:
        out[at] = data[position]
        at += 1
        position += 1
        size -= 1
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_records(
    data: cython.p_const_uchar,
    row: cython.p_const_longlong,
    row_at: cython.longlong,
    count: cython.longlong,
    prefix: cython.p_const_uchar,
    prefix_size: cython.longlong,
    topic_id: cython.p_const_uchar,
    delta: cython.longlong,
    timestamp_delta: cython.longlong,
    commit_ms: cython.longlong,
    out: cython.p_uchar,
    at: cython.longlong,
) -> cython.longlong:
    """Do the work of `write_records`."""
    metadata: cython.longlong
    value_size: cython.longlong
    key_size: cython.longlong = prefix_size + 4
    size: cython.longlong
    while count > 0:
        metadata = row[row_at + 4]
        value_size = 41 + _unsigned_size(metadata + 1) + metadata
        size = 2 + key_size + value_size + _unsigned_size(2 * key_size) + _unsigned_size(2 * value_size)
        size += _unsigned_size(2 * delta) + _unsigned_size(2 * timestamp_delta)
        at = _put_unsigned(out, at, 2 * size)
        out[at] = 0
        at = _put_unsigned(out, at + 1, 2 * timestamp_delta)
        at = _put_unsigned(out, at, 2 * delta)
        at = _put_unsigned(out, at, 2 * key_size)
        at = _copy(out, at, prefix, 0, prefix_size)
        at = _put(out, at, row[row_at], 4)
        at = _put_unsigned(out, at, 2 * value_size)
        at = _put(out, at, 4, 2)
        at = _put(out, at, row[row_at + 1], 8)
        at = _put(out, at, row[row_at + 2], 4)
        at = _put_unsigned(out, at, metadata + 1)
        at = _copy(out, at, data, row[row_at + 3], metadata)
        at = _put(out, at, commit_ms, 8)
        at = _put(out, at, 0x010010, 3)
        at = _copy(out, at, topic_id, 0, 16)
        out[at] = 0
        at += 1
        delta += 1
        row_at += _ROW_FIELDS
        count -= 1
    return at


def write_records(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[::1],
    first: cython.longlong,
    count: cython.longlong,
    prefix: cython.const[cython.uchar][::1],
    topic_id: cython.const[cython.uchar][::1],
    delta: cython.longlong,
    timestamp_delta: cython.longlong,
    commit_ms: cython.longlong,
    out: cython.uchar[::1],
    at: cython.longlong,
) -> int:
    """Write the records of ``count`` partitions of one topic, from row ``first``, at ``out[at]``; return the
    end.

    ``prefix`` is the beginning of their keys; the deltas are not negative. ``out`` must have room for
    ``len(prefix) + VALUE_BYTES + 36`` bytes for each, and for their metadata.
    """
    _check_rows(len(buf), rows, first, count)
    if len(topic_id) != 16 or len(prefix) == 0 or delta < 0 or timestamp_delta < 0 or at < 0:
        raise IndexError("no key, no id, or a time or an offset before the batch's")
    if len(out) - at < _room(rows, first, count, len(prefix)) or count < 1:
        raise IndexError(f"no room for {count} records")
    if cython.compiled:
        with cython.nogil:
            at = _write_records(
                cython.address(buf[0]), cython.address(rows[0]), first * _ROW_FIELDS, count,
                cython.address(prefix[0]), len(prefix), cython.address(topic_id[0]), delta, timestamp_delta,
                commit_ms, cython.address(out[0]), at,
            )  # fmt: skip
    else:
        at = _write_records(
            buf, rows, first * _ROW_FIELDS, count, prefix, len(prefix), topic_id, delta, timestamp_delta,
            commit_ms, out, at,
        )  # fmt: skip
    return at


@cython.cfunc
def _check_rows(
    size: cython.longlong, rows: cython.longlong[::1], first: cython.longlong, count: cython.longlong
) -> None:
    """Raise `IndexError` if rows are missing, or their metadata lies outside a request of ``size`` bytes."""
    at: cython.longlong
    last: cython.longlong = (first + count) * 5
    if first < 0 or count < 0 or last > len(rows) or size < 1:
        raise IndexError(f"rows {first} to {first + count} of {len(rows) // 5}")
    for at in range(first * 5, last, 5):
        if rows[at + 4] < 0 or rows[at + 3] < 0 or rows[at + 3] > size - rows[at + 4]:
            raise IndexError("metadata beyond the request")


@cython.cfunc
def _room(
    rows: cython.longlong[::1], first: cython.longlong, count: cython.longlong, prefix_size: cython.longlong
) -> cython.longlong:
    at: cython.longlong
    room: cython.longlong = 0
    for at in range(first * 5, (first + count) * 5, 5):
        room += prefix_size + 77 + rows[at + 4]
    return room


@cython.cfunc
def _piece(out: cython.p_uchar, start: cython.longlong, stop: cython.longlong) -> bytes:
    if cython.compiled:
        return out[start:stop]
    return bytes(out[start:stop])


def pack_rows(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[::1],
    first: cython.longlong,
    count: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    topic_id: cython.const[cython.uchar][::1],
    record_offset: cython.longlong,
    commit_ms: cython.longlong,
    out: cython.uchar[::1],
) -> tuple[list[bytes], list[bytes]]:
    """Return the stored keys (``topic`` and partition, as in record keys) and rows of ``count`` positions.

    The first one's record is at ``record_offset``. ``out`` must have room for any one of them.
    """
    places: list[bytes] = []
    packed: list[bytes] = []
    data: cython.p_const_uchar
    target: cython.p_uchar
    row_at: cython.longlong
    at: cython.longlong
    size: cython.longlong = len(topic)
    size_at: cython.longlong
    _check_rows(len(buf), rows, first, count)
    if len(topic_id) != 16 or size == 0:
        raise IndexError("no topic")
    for row_at in range(first * 5, (first + count) * 5, 5):
        if len(out) < 52 + rows[row_at + 4] or len(out) < size + 4:
            raise IndexError("no room for a row")
    if cython.compiled:
        data, target = cython.address(buf[0]), cython.address(out[0])
    else:
        data, target = buf, out
    for row_at in range(first * 5, (first + count) * 5, 5):
        for at in range(size):
            target[at] = topic[at]
        at = _put(target, size, rows[row_at], 4)
        places.append(_piece(target, 0, at))
        at = _put(target, 0, rows[row_at + 1], 8)
        at = _put(target, at, rows[row_at + 2], 4)
        at = _put(target, at, commit_ms, 8)
        at = _put(target, at, -1, 8)
        at = _put(target, at, record_offset, 8)
        for size_at in range(16):
            target[at + size_at] = topic_id[size_at]
        at = _copy(target, at + 16, data, rows[row_at + 3], rows[row_at + 4])
        packed.append(_piece(target, 0, at))
        record_offset += 1
    return places, packed


def write_answer(
    buf: cython.const[cython.uchar][::1],
    version: cython.longlong,
    correlation_id: cython.longlong,
    topics: cython.longlong[::1],
    count: cython.longlong,
    rows: cython.longlong[::1],
    out: cython.uchar[::1],
) -> bytes:
    """Return the whole response, with its size, to a request whose partitions all succeed.

    ``out`` must have room for 32 bytes, for 32 and the name of each topic, and for 8 of each partition.
    """
    data: cython.p_const_uchar
    target: cython.p_uchar
    flexible: cython.longlong = 1 if version >= 8 else 0
    number: cython.longlong
    place: cython.longlong
    row_at: cython.longlong = 0
    size: cython.longlong
    at: cython.longlong = 32
    if len(topics) < count * 5 or len(buf) < 1:
        raise IndexError(f"{count} topics of {len(topics) // 5}")
    for number in range(count):
        place, size = topics[number * 5], topics[number * 5 + 1]
        row_at += topics[number * 5 + 2]
        at += 32 + size + 8 * topics[number * 5 + 2]
        if place < 0 or size < 0 or place > len(buf) - size or topics[number * 5 + 2] < 0:
            raise IndexError("a topic beyond the request")
    if row_at * 5 > len(rows) or at > len(out):
        raise IndexError(f"no room for an answer of {at} bytes")
    if cython.compiled:
        data, target = cython.address(buf[0]), cython.address(out[0])
    else:
        data, target = buf, out
    at = _put(target, 4, correlation_id, 4)
    if flexible:
        at = _put(target, at, 0, 1)
    at = _put(target, at, 0, 4)
    at = _put_unsigned(target, at, count + 1) if flexible else _put(target, at, count, 4)
    row_at = 0
    for number in range(count):
        place, size = topics[number * 5], topics[number * 5 + 1]
        if version < 10:
            at = _put_unsigned(target, at, size + 1) if flexible else _put(target, at, size, 2)
        at = _copy(target, at, data, place, size)
        size = topics[number * 5 + 2]
        at = _put_unsigned(target, at, size + 1) if flexible else _put(target, at, size, 4)
        while size > 0:
            at = _put(target, at, rows[row_at], 4)
            at = _put(target, at, 0, 2 + flexible)
            row_at += 5
            size -= 1
        if flexible:
            at = _put(target, at, 0, 1)
    if flexible:
        at = _put(target, at, 0, 1)
    _put(target, 0, at - 4, 4)
    return _piece(target, 0, at)
