"""Loops that copy the retained part of a compacted log; like `kernel`, compiled or interpreted. [P]

The loops read batches in place, in a run that `kernel.scan_batches` has found sound. For a compressed batch,
or one of a transaction, they return a `Pause` to `compaction`, whose head has the rules of the copy.

Source: Kafka `Cleaner.cleanInto`, `MemoryRecords.filterTo`.
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import CopyState, Judging, Pause, Status
from service.records.key_kernel import check_batches

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.service.records.kernel import crc32c, int32, int64, parse_record
    from cython.cimports.service.records.key_kernel import hash_of, slot_of
else:
    from service.records.kernel import crc32c, int32, int64, parse_record
    from service.records.key_kernel import hash_of, slot_of

COMPILED: Final[bool] = cython.compiled

JUDGED_FIELDS: Final = 3
"""Count of numbers that `judge_records` writes: records kept, tombstones among them, greatest timestamp."""

_OK = cython.declare(cython.longlong, Status.OK)
_TRAILING = cython.declare(cython.longlong, Status.TRAILING)
_BAD_OFFSET = cython.declare(cython.longlong, Status.BAD_OFFSET)
_TIMESTAMP_OVERFLOW = cython.declare(cython.longlong, Status.TIMESTAMP_OVERFLOW)
_FULL = cython.declare(cython.longlong, Pause.FULL)
_BATCH = cython.declare(cython.longlong, Pause.BATCH)
_GROW = cython.declare(cython.longlong, Pause.GROW)
_USED = cython.declare(cython.longlong, CopyState.USED)
_READ = cython.declare(cython.longlong, CopyState.READ)
_KEPT = cython.declare(cython.longlong, CopyState.KEPT)
_BY_KEY = cython.declare(cython.longlong, Judging.BY_KEY)
_ALL = cython.declare(cython.longlong, Judging.ALL)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)
_TWO_TO_61 = cython.declare(cython.longlong, 0x2000000000000000)
_TWO_TO_62 = cython.declare(cython.longlong, 0x4000000000000000)


# Records


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _judge(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    header: cython.p_const_uchar,
    at: cython.longlong,
    judging: cython.longlong,
    now_ms: cython.longlong,
    secret: cython.p_const_ulonglong,
    table: cython.p_const_ulonglong,
    slots: cython.ulonglong,
    latest: cython.longlong,
    marks: cython.p_uchar,
    judged: cython.p_longlong,
) -> cython.longlong:
    """Do the work of `judge_records`; the batch's header is at ``header[at]``."""
    row: cython.longlong[10]
    key: cython.ulonglong[2]
    count: cython.longlong = int32(header, at + 57)
    base_offset: cython.longlong = int64(header, at)
    last_delta: cython.longlong = int32(header, at + 23)
    base_timestamp: cython.longlong = int64(header, at + 27)
    has_horizon: cython.longlong = header[at + 22] & 0x40
    stamped: cython.longlong = header[at + 22] & 0x08
    index: cython.longlong
    delta: cython.longlong = -1
    stays: cython.longlong
    timestamp: cython.longlong
    kept: cython.longlong = 0
    tombstones: cython.longlong = 0
    newest: cython.longlong = -1
    slot: cython.ulonglong
    offset: cython.longlong  # and 1 more
    if not cython.compiled:
        row, key = [0] * 10, [0] * 2
    for index in range(count):
        position = parse_record(data, position, end, row)
        if position < 0:
            return position
        if row[1] <= delta or row[1] > last_delta:
            return _BAD_OFFSET
        delta = row[1]
        timestamp = base_timestamp
        if row[0] > _INT64_MAX - timestamp if timestamp > 0 else row[0] < _INT64_MIN - timestamp:
            return _TIMESTAMP_OVERFLOW
        timestamp += row[0]
        if judging == _BY_KEY:
            stays = 1
            if base_offset + delta <= latest:
                if row[3] < 0:
                    stays = 0
                else:
                    hash_of(data, row[2], row[3], secret, key)
                    slot = slot_of(table, slots, key)
                    offset = table[3 * slot + 2]
                    if offset > base_offset + delta + 1 or (
                        row[5] < 0 and has_horizon and now_ms >= base_timestamp
                    ):
                        stays = 0
        else:
            stays = 1 if judging == _ALL else 0
        marks[index] = stays
        if stays:
            kept += 1
            if row[5] < 0:
                tombstones += 1
            if timestamp > newest:
                newest = timestamp
    if position != end:
        return _TRAILING
    judged[0] = kept
    judged[1] = tombstones
    judged[2] = int64(header, at + 35) if stamped else newest
    return _OK


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _write_varint(out: cython.p_uchar, at: cython.longlong, value: cython.longlong) -> cython.longlong:
    """Write a zigzag varint (below 2^62 and above -2^62); return the position after it."""
    left: cython.ulonglong
    left = 2 * value if value >= 0 else -2 * value - 1
    while left >= 0x80:
        out[at] = (left & 0x7F) | 0x80
        left >>= 7
        at += 1
    out[at] = left
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_bytes(
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_records(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    marks: cython.p_const_uchar,
    later_ms: cython.longlong,
    out: cython.p_uchar,
    at: cython.longlong,
) -> cython.longlong:
    """Do the work of `write_records`; return the position after the records, or a status."""
    row: cython.longlong[10]
    index: cython.longlong
    following: cython.longlong
    rest: cython.longlong
    delta: cython.longlong
    size: cython.longlong
    first: cython.longlong = -1  # where what is to be copied in one go begins
    if not cython.compiled:
        row = [0] * 10
    for index in range(count):
        following = parse_record(data, position, end, row)
        if following < 0:
            return following
        if marks[index] == 0 or later_ms != 0:
            if first >= 0:
                at = copy_bytes(out, at, data, first, position - first)
                first = -1
        elif first < 0:
            first = position
        if marks[index] != 0 and later_ms != 0:
            if row[0] > _TWO_TO_62 or row[0] < -_TWO_TO_62 or later_ms > _TWO_TO_62 or later_ms < -_TWO_TO_62:
                return _TIMESTAMP_OVERFLOW
            delta = row[0] - later_ms
            if delta >= _TWO_TO_62 or delta <= -_TWO_TO_62:
                return _TIMESTAMP_OVERFLOW
            rest = position
            while data[rest] >= 0x80:  # the length
                rest += 1
            rest += 2  # and the attributes
            while data[rest] >= 0x80:  # the timestamp's delta
                rest += 1
            rest += 1
            size = _write_varint(out, at, delta) - at  # to get its size; written again below
            size += 1 + following - rest
            at = _write_varint(out, at, size)
            out[at] = 0
            at = _write_varint(out, at + 1, delta)
            at = copy_bytes(out, at, data, rest, following - rest)
        position = following
    if first >= 0:
        at = copy_bytes(out, at, data, first, position - first)
    return at


def _checkcopy_bytes(slots: int, secret_words: int, judged: int, marks: int, count: int) -> None:
    if slots < 1 or secret_words < 2 or judged < 3 or marks < count or count < 0:
        raise IndexError(f"{count} records, room for {marks}, {slots} slots")


def judge_records(
    buf: cython.const[cython.uchar][::1],
    header: cython.const[cython.uchar][::1],
    judging: cython.longlong,
    now_ms: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.const[cython.ulonglong][::1],
    latest: cython.longlong,
    marks: cython.uchar[::1],
    judged: cython.longlong[::1],
) -> int:
    """Set ``marks`` to 1 for each record in ``buf`` that is kept, to 0 for the others; return a status.

    ``header`` is that of the batch. ``judging``: a `Judging`. Up to offset ``latest`` the map knows each
    key's last record. A tombstone is removed once ``now_ms`` reaches the batch's delete horizon. ``judged``
    gets `JUDGED_FIELDS` numbers.
    """
    status: cython.longlong
    if len(header) < 61:
        raise IndexError("not a header")
    _checkcopy_bytes(
        len(table) // 3, len(secret), len(judged), len(marks), int.from_bytes(header[57:61], "big")
    )
    if len(buf) == 0:
        judged[0] = judged[1] = 0
        judged[2] = -1
        return _TRAILING if int.from_bytes(header[57:61], "big") else _OK
    if len(marks) == 0:
        return _TRAILING
    if cython.compiled:
        with cython.nogil:
            status = _judge(
                cython.address(buf[0]), 0, len(buf), cython.address(header[0]), 0, judging, now_ms,
                cython.address(secret[0]), cython.address(table[0]), len(table) // 3, latest,
                cython.address(marks[0]), cython.address(judged[0]),
            )  # fmt: skip
    else:
        status = _judge(
            buf, 0, len(buf), header, 0, judging, now_ms, secret, table, len(table) // 3, latest, marks,
            judged,
        )  # fmt: skip
    return status


def write_records(
    buf: cython.const[cython.uchar][::1],
    count: cython.longlong,
    marks: cython.const[cython.uchar][::1],
    later_ms: cython.longlong,
    out: cython.uchar[::1],
) -> int:
    """Write the marked ones of the ``count`` records of ``buf`` to ``out``; return their size, or a status.

    ``later_ms``: the increase of the batch's base timestamp. ``out`` must have room for ``buf`` and 16 bytes
    for each record.
    """
    written: cython.longlong
    if count < 0 or len(marks) < count or len(out) < len(buf) + 16 * count:
        raise IndexError(f"{count} records of {len(buf)} bytes, room for {len(marks)}, {len(out)} bytes")
    if len(buf) == 0 or count == 0:
        return 0
    if cython.compiled:
        with cython.nogil:
            written = _write_records(
                cython.address(buf[0]), 0, len(buf), count, cython.address(marks[0]), later_ms,
                cython.address(out[0]), 0,
            )  # fmt: skip
    else:
        written = _write_records(buf, 0, len(buf), count, marks, later_ms, out, 0)
    return written


# Whole batches


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _later_by(horizon_ms: cython.longlong, base_timestamp: cython.longlong) -> cython.longlong:
    """Do the work of `later_by`."""
    if base_timestamp > _TWO_TO_61 or base_timestamp < -_TWO_TO_61:
        return 0
    return horizon_ms - base_timestamp


def later_by(horizon_ms: cython.longlong, base_timestamp: cython.longlong) -> int:
    """Return the increase, at most 2^61, that turns a base timestamp into the delete horizon.

    0 for an unreasonable base timestamp: the batch then gets no horizon.
    """
    return _later_by(horizon_ms, base_timestamp)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    out: cython.p_uchar, at: cython.longlong, value: cython.longlong, size: cython.longlong
) -> cython.void:
    """Write ``size`` bytes, big-endian."""
    while size > 0:
        size -= 1
        out[at + size] = value & 0xFF
        value >>= 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _has_last_of(
    producer: cython.longlong,
    last_offset: cython.longlong,
    ids: cython.p_const_longlong,
    lasts: cython.p_const_longlong,
    count: cython.longlong,
) -> cython.longlong:
    """Return whether the producer's last batch ends at ``last_offset``; ``ids`` ascend."""
    low: cython.longlong = 0
    high: cython.longlong = count
    middle: cython.longlong
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < producer:
            low = middle + 1
        else:
            high = middle
    return 1 if low < count and ids[low] == producer and lasts[low] == last_offset else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _seal(out: cython.p_uchar, at: cython.longlong, size: cython.longlong) -> cython.void:
    """Set length and checksum of the batch of ``size`` bytes at ``out[at]``."""
    _put(out, at + 8, size - 12, 4)
    _put(out, at + 17, crc32c(out, at + 21, at + size), 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_needed(
    data: cython.p_const_uchar,
    at: cython.longlong,
    end_offset: cython.longlong,
    ids: cython.p_const_longlong,
    lasts: cython.p_const_longlong,
    count: cython.longlong,
) -> cython.longlong:
    """Return whether the batch at ``data[at]`` is kept without records, for its offset or its sequence."""
    last: cython.longlong = int64(data, at) + int32(data, at + 23)
    producer: cython.longlong = int64(data, at + 43)
    if last + 1 == end_offset:
        return 1
    return _has_last_of(producer, last, ids, lasts, count) if producer >= 0 else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def write_empty(
    data: cython.p_const_uchar, at: cython.longlong, out: cython.p_uchar, used: cython.longlong
) -> cython.longlong:
    """Write the header of the batch at ``data[at]`` as an empty batch; return the position after it."""
    copy_bytes(out, used, data, at, 61)
    _put(out, used + 21, data[at + 22] & 0x38, 2)
    _put(out, used + 27, -1, 8)
    _put(out, used + 57, 0, 4)
    _seal(out, used, 61)
    return used + 61


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def write_rest(
    data: cython.p_const_uchar,
    at: cython.longlong,
    size: cython.longlong,
    marks: cython.p_const_uchar,
    judged: cython.p_const_longlong,
    later_ms: cython.longlong,
    out: cython.p_uchar,
    used: cython.longlong,
) -> cython.longlong:
    """Write the batch at ``data[at]`` with its marked records; return the position after it, or a status."""
    written: cython.longlong
    copy_bytes(out, used, data, at, 61)
    if later_ms != 0:
        _put(out, used + 21, data[at + 22] | 0x40, 2)
        _put(out, used + 27, int64(data, at + 27) + later_ms, 8)
    _put(out, used + 35, judged[2], 8)
    _put(out, used + 57, judged[0], 4)
    written = _write_records(data, at + 61, at + size, int32(data, at + 57), marks, later_ms, out, used + 61)
    if written >= 0:
        _seal(out, used, written - used)
    return written


def copy_batches(
    buf: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    sizes: cython.longlong[::1],
    first: cython.longlong,
    judging: cython.longlong,
    flags: cython.longlong,
    times: cython.const[cython.longlong][::1],
    end_offset: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.const[cython.ulonglong][::1],
    latest: cython.longlong,
    producers: cython.const[cython.longlong][::1],
    lasts: cython.const[cython.longlong][::1],
    marks: cython.uchar[::1],
    out: cython.uchar[::1],
    state: cython.longlong[::1],
) -> tuple[int, int]:
    """Copy the retained part of the batches of ``buf``, from number ``first`` on, to ``out``.

    A batch whose records are all kept is copied unchanged. If some are removed, it keeps base offset, last
    offset, producer and sequence. If all are removed, the batch is removed too, unless it ends at
    ``end_offset`` or is its producer's last (``producers`` ascend, ``lasts`` are their last offsets); then an
    empty batch is written.

    ``times``: now, and the delete horizon for batches whose tombstones get one. ``flags`` is 0, or, for
    exactly one uncompressed batch, 1, plus 2 for a marker whose transaction is gone (it gets a horizon), plus
    4 for a batch that is kept if empty. Returns (status or `Pause`, number of its batch): `BATCH` as in
    `map_batches`, `FULL` if ``out`` must be emptied first, `GROW` if ``marks`` or ``out`` are too small for a
    batch. ``state`` has the numbers of `CopyState`.
    """
    data: cython.p_const_uchar
    mark: cython.p_uchar
    target: cython.p_uchar
    key: cython.p_const_ulonglong
    words: cython.p_const_ulonglong
    ids: cython.p_const_longlong
    ends: cython.p_const_longlong
    judged: cython.longlong[3]
    known: cython.longlong = len(producers)
    slots: cython.ulonglong = len(table) // 3
    now_ms: cython.longlong
    horizon_ms: cython.longlong
    index: cython.longlong = first
    count: cython.longlong = len(positions)
    room: cython.longlong = len(out)
    most: cython.longlong = len(marks)
    used: cython.longlong
    at: cython.longlong
    size: cython.longlong
    records: cython.longlong
    status: cython.longlong = _OK
    attributes: cython.longlong
    later_ms: cython.longlong
    written: cython.longlong
    if len(times) < 2 or len(state) < 3 or len(lasts) != known or len(out) < 1 or len(marks) < 1:
        raise IndexError("too few numbers")
    if state[0] < 0 or state[0] > room:
        raise IndexError(f"{state[0]} of {room} bytes are used")
    _checkcopy_bytes(len(table) // 3, len(secret), 3, len(marks), 0)
    check_batches(len(buf), positions, first, sizes)
    if len(buf) == 0 or first >= count:
        return _OK, first
    now_ms, horizon_ms = times[0], times[1]
    used = state[0]
    if cython.compiled:
        data, mark, target = cython.address(buf[0]), cython.address(marks[0]), cython.address(out[0])
        key, words = cython.address(secret[0]), cython.address(table[0])
        if known > 0:
            ids, ends = cython.address(producers[0]), cython.address(lasts[0])
        else:
            ids, ends = cython.NULL, cython.NULL
    else:
        data, mark, target, key, words, ids, ends = buf, marks, out, secret, table, producers, lasts
        judged = [0] * 3
    with cython.nogil:
        while index < count:
            at = positions[index]
            size = sizes[index]
            attributes = data[at + 22]
            if flags == 0 and attributes & 0x37 != 0:
                status = _BATCH
                break
            records = int32(data, at + 57)
            if records > most or size + 16 * records > room:
                status = _GROW
                break
            if size + 16 * records > room - used:
                status = _FULL
                break
            status = _judge(
                data, at + 61, at + size, data, at, judging, now_ms, key, words, slots, latest, mark, judged
            )
            if status != _OK:
                break
            state[_READ] += records
            state[_KEPT] += judged[0]
            later_ms = 0
            if judged[0] > 0 and attributes & 0x40 == 0 and (judged[1] > 0 or flags & 2):
                later_ms = _later_by(horizon_ms, int64(data, at + 27))
            if judged[0] == 0:
                if flags & 4 or is_needed(data, at, end_offset, ids, ends, known) != 0:
                    used = write_empty(data, at, target, used)
            elif judged[0] == records and later_ms == 0:
                used = copy_bytes(target, used, data, at, size)
            else:
                written = write_rest(data, at, size, mark, judged, later_ms, target, used)
                if written == _TIMESTAMP_OVERFLOW:  # written without a horizon: its tombstones stay
                    if judged[0] == records:
                        written = copy_bytes(target, used, data, at, size)
                    else:
                        written = write_rest(data, at, size, mark, judged, 0, target, used)
                if written < 0:
                    status = written
                    break
                used = written
            index += 1
            if flags != 0:
                break
    state[_USED] = used
    return status, index
