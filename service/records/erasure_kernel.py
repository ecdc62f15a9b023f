"""Loops that erase the records of some keys; like `kernel`, one source, compiled or interpreted. [P]

The keys are in a table like that of `key_kernel`: three words a slot, a key's hash of 128 bits and 1, or 0
for a free slot. A record is erased if its key is in the table, its offset is below ``end_offset`` and, where
``before_ms`` is not negative, its timestamp is known and earlier. Control batches and records without a key
stay.

The loops read batches in place, in a run that `kernel.scan_batches` has found sound. For a compressed batch
they return a `Pause` to `erasure`.
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import MIN_RECORD_SIZE, CopyState, Pause, Status
from service.records.key_kernel import check_batches

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.compaction_kernel import (
        copy_bytes,
        is_needed,
        write_empty,
        write_rest,
    )
    from cython.cimports.service.records.kernel import int32, int64, parse_record
    from cython.cimports.service.records.key_kernel import hash_of, slot_of
else:
    from service.records.compaction_kernel import copy_bytes, is_needed, write_empty, write_rest
    from service.records.kernel import int32, int64, parse_record
    from service.records.key_kernel import hash_of, slot_of

COMPILED: Final[bool] = cython.compiled

JUDGED_FIELDS: Final = 3
"""Count of numbers that `judge_records` writes: records kept, a 0, greatest timestamp of those kept."""

_OK = cython.declare(cython.longlong, Status.OK)
_TRUNCATED = cython.declare(cython.longlong, Status.TRUNCATED)
_TRAILING = cython.declare(cython.longlong, Status.TRAILING)
_BAD_OFFSET = cython.declare(cython.longlong, Status.BAD_OFFSET)
_TIMESTAMP_OVERFLOW = cython.declare(cython.longlong, Status.TIMESTAMP_OVERFLOW)
_FULL = cython.declare(cython.longlong, Pause.FULL)
_BATCH = cython.declare(cython.longlong, Pause.BATCH)
_GROW = cython.declare(cython.longlong, Pause.GROW)
_USED = cython.declare(cython.longlong, CopyState.USED)
_READ = cython.declare(cython.longlong, CopyState.READ)
_KEPT = cython.declare(cython.longlong, CopyState.KEPT)
_MIN_RECORD_SIZE = cython.declare(cython.longlong, MIN_RECORD_SIZE)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)


# The table


def _check_table(words: int, secret_words: int) -> None:
    if words < 3 or words % 3 or secret_words < 2:
        raise IndexError(f"a table of {words} words, a secret of {secret_words}")


def fill_table(
    hashes: cython.const[cython.ulonglong][::1],
    table: cython.ulonglong[::1],
) -> int:
    """Put hashes of 128 bits, two words each, into an empty table; return how many different ones they are.

    The table must have more slots than there are hashes.
    """
    words: cython.p_ulonglong
    key: cython.ulonglong[2]
    slots: cython.ulonglong = len(table) // 3
    slot: cython.ulonglong
    index: cython.longlong
    count: cython.longlong = len(hashes) // 2
    entries: cython.longlong = 0
    _check_table(len(table), 2)
    if len(hashes) % 2 or count >= len(table) // 3:
        raise IndexError(f"{len(hashes)} words of hashes for a table of {len(table)}")
    if cython.compiled:
        words = cython.address(table[0])
    else:
        words, key = table, [0] * 2
    for index in range(count):
        key[0], key[1] = hashes[2 * index], hashes[2 * index + 1]
        slot = slot_of(words, slots, key)
        if words[3 * slot + 2] == 0:
            words[3 * slot] = key[0]
            words[3 * slot + 1] = key[1]
            words[3 * slot + 2] = 1
            entries += 1
    return entries


def hash_words(
    key: cython.const[cython.uchar][::1], secret: cython.const[cython.ulonglong][::1]
) -> tuple[int, int]:
    """Return the 128-bit SipHash-2-4 of a key as two words."""
    out: cython.ulonglong[2]
    empty: cython.uchar[1]
    _check_table(3, len(secret))
    if not cython.compiled:
        out, empty = [0] * 2, [0]
        hash_of(key, 0, len(key), secret, out)
    elif len(key) == 0:
        empty[0] = 0
        hash_of(empty, 0, 0, cython.address(secret[0]), out)
    else:
        hash_of(cython.address(key[0]), 0, len(key), cython.address(secret[0]), out)
    return out[0], out[1]


def has_hash(
    one: cython.ulonglong, other: cython.ulonglong, table: cython.const[cython.ulonglong][::1]
) -> bool:
    """Return whether the hash of these two words is in the table."""
    words: cython.p_const_ulonglong
    key: cython.ulonglong[2]
    _check_table(len(table), 2)
    if cython.compiled:
        words = cython.address(table[0])
    else:
        words, key = table, [0] * 2
    key[0] = one
    key[1] = other
    return words[3 * slot_of(words, len(table) // 3, key) + 2] != 0


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
    before_ms: cython.longlong,
    end_offset: cython.longlong,
    secret: cython.p_const_ulonglong,
    table: cython.p_const_ulonglong,
    slots: cython.ulonglong,
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
    stamp: cython.longlong = int64(header, at + 35)
    stamped: cython.longlong = header[at + 22] & 0x08
    index: cython.longlong
    delta: cython.longlong = -1
    timestamp: cython.longlong
    stays: cython.longlong
    kept: cython.longlong = 0
    newest: cython.longlong = -1
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
        timestamp = stamp if stamped else timestamp + row[0]
        stays = 1
        if (
            row[3] >= 0
            and base_offset + delta < end_offset
            and (before_ms < 0 or (timestamp >= 0 and timestamp < before_ms))
        ):
            hash_of(data, row[2], row[3], secret, key)
            if table[3 * slot_of(table, slots, key) + 2] != 0:
                stays = 0
        marks[index] = stays
        if stays:
            kept += 1
            if timestamp > newest:
                newest = timestamp
    if position != end:
        return _TRAILING
    judged[0] = kept
    judged[1] = 0
    judged[2] = stamp if stamped else newest
    return _OK


def judge_records(
    buf: cython.const[cython.uchar][::1],
    header: cython.const[cython.uchar][::1],
    before_ms: cython.longlong,
    end_offset: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.const[cython.ulonglong][::1],
    marks: cython.uchar[::1],
    judged: cython.longlong[::1],
) -> int:
    """Set ``marks`` to 0 for each record in ``buf`` that is erased, to 1 for the others; return a status.

    ``header`` is that of the batch, ``buf`` has its records, inflated. ``judged`` gets `JUDGED_FIELDS`
    numbers.
    """
    count: cython.longlong
    status: cython.longlong
    if len(header) < 61:
        raise IndexError("not a header")
    count = int.from_bytes(header[57:61], "big", signed=True)
    _check_table(len(table), len(secret))
    if len(judged) < 3 or count < 0 or len(marks) < count:
        raise IndexError(f"{count} records, room for {len(marks)}")
    if len(buf) == 0 or count == 0:
        judged[0] = judged[1] = 0
        judged[2] = -1
        return _TRUNCATED if count > 0 else _TRAILING if len(buf) > 0 else _OK
    if cython.compiled:
        with cython.nogil:
            status = _judge(
                cython.address(buf[0]), 0, len(buf), cython.address(header[0]), 0, before_ms, end_offset,
                cython.address(secret[0]), cython.address(table[0]), len(table) // 3,
                cython.address(marks[0]), cython.address(judged[0]),
            )  # fmt: skip
    else:
        status = _judge(
            buf, 0, len(buf), header, 0, before_ms, end_offset, secret, table, len(table) // 3, marks, judged
        )
    return status


# Whole batches


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_untouched(
    data: cython.p_const_uchar, at: cython.longlong, end_offset: cython.longlong
) -> cython.longlong:
    """Return whether the header of the batch at ``data[at]`` tells that it loses nothing."""
    return data[at + 22] & 0x20 != 0 or int32(data, at + 57) == 0 or int64(data, at) >= end_offset


def count_erased(
    buf: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    sizes: cython.longlong[::1],
    first: cython.longlong,
    before_ms: cython.longlong,
    end_offset: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.const[cython.ulonglong][::1],
    marks: cython.uchar[::1],
    state: cython.longlong[::1],
) -> tuple[int, int]:
    """Add the records of the batches of ``buf``, from number ``first`` on, to those read and kept.

    Returns (status or `Pause`, number of its batch): `BATCH` for a compressed batch, `GROW` if ``marks`` is
    too small for a batch. ``state`` has the numbers of `CopyState`.
    """
    data: cython.p_const_uchar
    mark: cython.p_uchar
    key: cython.p_const_ulonglong
    words: cython.p_const_ulonglong
    judged: cython.longlong[3]
    slots: cython.ulonglong = len(table) // 3
    index: cython.longlong = first
    count: cython.longlong = len(positions)
    most: cython.longlong = len(marks)
    at: cython.longlong
    size: cython.longlong
    records: cython.longlong
    status: cython.longlong = _OK
    _check_table(len(table), len(secret))
    if len(state) < 3 or most < 1:
        raise IndexError("too few numbers")
    check_batches(len(buf), positions, first, sizes)
    if len(buf) == 0 or first >= count:
        return _OK, first
    if cython.compiled:
        data, mark = cython.address(buf[0]), cython.address(marks[0])
        key, words = cython.address(secret[0]), cython.address(table[0])
    else:
        data, mark, key, words = buf, marks, secret, table
        judged = [0] * 3
    with cython.nogil:
        while index < count:
            at = positions[index]
            size = sizes[index]
            records = int32(data, at + 57)
            judged[0] = records
            if _is_untouched(data, at, end_offset) == 0:
                if data[at + 22] & 0x07 != 0:
                    status = _BATCH
                    break
                if records > (size - 61) // _MIN_RECORD_SIZE:
                    status = _TRUNCATED
                    break
                if records > most:
                    status = _GROW
                    break
                status = _judge(
                    data, at + 61, at + size, data, at, before_ms, end_offset, key, words, slots, mark, judged
                )
                if status != _OK:
                    break
            state[_READ] += records
            state[_KEPT] += judged[0]
            index += 1
    return status, index


def copy_kept(
    buf: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    sizes: cython.longlong[::1],
    first: cython.longlong,
    before_ms: cython.longlong,
    end_offset: cython.longlong,
    keep_to: cython.longlong,
    keeps_all: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.const[cython.ulonglong][::1],
    producers: cython.const[cython.longlong][::1],
    lasts: cython.const[cython.longlong][::1],
    marks: cython.uchar[::1],
    out: cython.uchar[::1],
    state: cython.longlong[::1],
) -> tuple[int, int]:
    """Copy what stays of the batches of ``buf``, from number ``first`` on, to ``out``.

    A batch that loses nothing is copied as it is. One that loses some records keeps base offset, last offset,
    producer and sequence. One that loses all is left out, unless ``keeps_all`` is not 0, it ends at
    ``keep_to`` (exclusive) or is its producer's last (``producers`` ascend, ``lasts`` are their last
    offsets): then an empty batch is written.

    Returns (status or `Pause`, number of its batch): `BATCH` for a compressed batch that may lose records,
    `FULL` if ``out`` must be emptied first, `GROW` if ``marks`` or ``out`` are too small for a batch.
    ``state`` has the numbers of `CopyState`.
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
    index: cython.longlong = first
    count: cython.longlong = len(positions)
    room: cython.longlong = len(out)
    most: cython.longlong = len(marks)
    used: cython.longlong
    at: cython.longlong
    size: cython.longlong
    records: cython.longlong
    status: cython.longlong = _OK
    written: cython.longlong
    _check_table(len(table), len(secret))
    if len(state) < 3 or len(lasts) != known or room < 1 or most < 1:
        raise IndexError("too few numbers")
    if state[0] < 0 or state[0] > room:
        raise IndexError(f"{state[0]} of {room} bytes are used")
    check_batches(len(buf), positions, first, sizes)
    if len(buf) == 0 or first >= count:
        return _OK, first
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
            records = int32(data, at + 57)
            judged[0] = records
            if size > room:
                status = _GROW
                break
            if size > room - used:
                status = _FULL
                break
            if _is_untouched(data, at, end_offset) == 0:
                if data[at + 22] & 0x07 != 0:
                    status = _BATCH
                    break
                if records > (size - 61) // _MIN_RECORD_SIZE:
                    status = _TRUNCATED
                    break
                if records > most:
                    status = _GROW
                    break
                status = _judge(
                    data, at + 61, at + size, data, at, before_ms, end_offset, key, words, slots, mark, judged
                )
                if status != _OK:
                    break
            if judged[0] == records:
                used = copy_bytes(target, used, data, at, size)
            elif judged[0] > 0:
                written = write_rest(data, at, size, mark, judged, 0, target, used)
                if written < 0:
                    status = written
                    break
                used = written
            elif keeps_all != 0 or is_needed(data, at, keep_to, ids, ends, known) != 0:
                used = write_empty(data, at, target, used)
            state[_READ] += records
            state[_KEPT] += judged[0]
            index += 1
    state[_USED] = used
    return status, index
