"""Map of the keys of a compacted log; like `kernel`, one source, compiled or interpreted. [P]

The map uses open addressing in one block of memory, with three words a slot: a key's hash of 128 bits, and 1
more than the offset of its last record, 0 for a free slot. The hash is SipHash-2-4 with a random secret for
each cleaning, so that clients cannot choose keys that collide.

The loops read batches in place, in a run that `kernel.scan_batches` has found sound. For a compressed batch,
or one of a transaction, they return a `Pause` to `key_map`.

Source: Kafka `SkimpyOffsetMap`, `Cleaner.buildOffsetMapForSegment`.
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import MapState, Pause, Status

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.kernel import int32, int64, parse_record
else:
    from service.records.kernel import int32, int64, parse_record

COMPILED: Final[bool] = cython.compiled

SLOT_WORDS: Final = 3

_OK = cython.declare(cython.longlong, Status.OK)
_TRAILING = cython.declare(cython.longlong, Status.TRAILING)
_BAD_OFFSET = cython.declare(cython.longlong, Status.BAD_OFFSET)
_FULL = cython.declare(cython.longlong, Pause.FULL)
_BATCH = cython.declare(cython.longlong, Pause.BATCH)
_ENTRIES = cython.declare(cython.longlong, MapState.ENTRIES)
_LIMIT = cython.declare(cython.longlong, MapState.LIMIT)
_LATEST = cython.declare(cython.longlong, MapState.LATEST)
_MAPPED = cython.declare(cython.longlong, MapState.RECORDS)
_UINT64_MAX = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_SIP_0 = cython.declare(cython.ulonglong, 0x736F6D6570736575)
_SIP_1 = cython.declare(cython.ulonglong, 0x646F72616E646F6D)
_SIP_2 = cython.declare(cython.ulonglong, 0x6C7967656E657261)
_SIP_3 = cython.declare(cython.ulonglong, 0x7465646279746573)


# The hash


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotated(word: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    if cython.compiled:
        return (word << bits) | (word >> (64 - bits))
    return ((word << bits) | (word >> (64 - bits))) & _UINT64_MAX


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sum(one: cython.ulonglong, other: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return one + other
    return (one + other) & _UINT64_MAX


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sip_rounds(v: cython.p_ulonglong, rounds: cython.int) -> cython.void:
    while rounds > 0:
        v[0] = _sum(v[0], v[1])
        v[2] = _sum(v[2], v[3])
        v[1] = _rotated(v[1], 13) ^ v[0]
        v[3] = _rotated(v[3], 16) ^ v[2]
        v[0] = _rotated(v[0], 32)
        v[2] = _sum(v[2], v[1])
        v[0] = _sum(v[0], v[3])
        v[1] = _rotated(v[1], 17) ^ v[2]
        v[3] = _rotated(v[3], 21) ^ v[0]
        v[2] = _rotated(v[2], 32)
        rounds -= 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word(data: cython.p_const_uchar, position: cython.longlong, size: cython.longlong) -> cython.ulonglong:
    """Return up to eight bytes as a little-endian word."""
    word: cython.ulonglong = 0
    index: cython.longlong
    if size == 8:
        word = data[position + 7]
        word = word << 8 | data[position + 6]
        word = word << 8 | data[position + 5]
        word = word << 8 | data[position + 4]
        word = word << 8 | data[position + 3]
        word = word << 8 | data[position + 2]
        word = word << 8 | data[position + 1]
        return word << 8 | data[position]
    index = size
    while index > 0:
        index -= 1
        word = word << 8 | data[position + index]
    return word


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hash_of(
    data: cython.p_const_uchar,
    position: cython.longlong,
    size: cython.longlong,
    secret: cython.p_const_ulonglong,
    out: cython.p_ulonglong,
) -> cython.void:
    """Write the 128-bit SipHash-2-4 of ``data[position : position + size]`` to ``out``."""
    v: cython.ulonglong[4]
    word: cython.ulonglong
    left: cython.longlong = size
    length: cython.ulonglong = size & 0xFF
    if not cython.compiled:
        v = [0] * 4
    v[0] = secret[0] ^ _SIP_0
    v[1] = secret[1] ^ _SIP_1 ^ 0xEE
    v[2] = secret[0] ^ _SIP_2
    v[3] = secret[1] ^ _SIP_3
    while left >= 8:
        word = _word(data, position, 8)
        v[3] ^= word
        _sip_rounds(v, 2)
        v[0] ^= word
        position += 8
        left -= 8
    word = _word(data, position, left) | (length << 56)
    v[3] ^= word
    _sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= 0xEE
    _sip_rounds(v, 4)
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _sip_rounds(v, 4)
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]


# The map


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def slot_of(
    table: cython.p_const_ulonglong, slots: cython.ulonglong, key: cython.p_const_ulonglong
) -> cython.ulonglong:
    """Return the key's slot, else the free slot that it would get. The table must have a free slot."""
    slot: cython.ulonglong = ((key[0] >> 32) * slots) >> 32
    while table[3 * slot + 2] != 0 and (table[3 * slot] != key[0] or table[3 * slot + 1] != key[1]):
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _map_records(
    data: cython.p_const_uchar,
    position: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset: cython.longlong,
    from_offset: cython.longlong,
    secret: cython.p_const_ulonglong,
    table: cython.p_ulonglong,
    slots: cython.ulonglong,
    state: cython.p_longlong,
) -> cython.longlong:
    """Do the work of `map_records`."""
    row: cython.longlong[10]
    key: cython.ulonglong[2]
    offset: cython.longlong
    delta: cython.longlong = -1
    slot: cython.ulonglong
    if not cython.compiled:
        row, key = [0] * 10, [0] * 2
    while count > 0:
        position = parse_record(data, position, end, row)
        if position < 0:
            return position
        if row[1] <= delta or row[1] > last_offset - base_offset:
            return _BAD_OFFSET
        delta = row[1]
        offset = base_offset + delta
        if row[3] >= 0 and offset >= from_offset:
            if state[_ENTRIES] >= state[_LIMIT]:
                return _FULL
            hash_of(data, row[2], row[3], secret, key)
            slot = slot_of(table, slots, key)
            if table[3 * slot + 2] == 0:
                table[3 * slot] = key[0]
                table[3 * slot + 1] = key[1]
                state[_ENTRIES] += 1
            table[3 * slot + 2] = offset + 1
            state[_LATEST] = offset
        state[_MAPPED] += 1
        count -= 1
    if position != end:
        return _TRAILING
    if last_offset >= from_offset:
        state[_LATEST] = last_offset
    return _OK


def map_records(
    buf: cython.const[cython.uchar][::1],
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset: cython.longlong,
    from_offset: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.ulonglong[::1],
    state: cython.longlong[::1],
) -> int:
    """Put the keys of the ``count`` records that fill ``buf``, from ``from_offset`` on, into the map.

    Updates ``state``, which has the numbers of `MapState`. Returns a status, or `Pause.FULL`: the map then
    has everything up to the latest offset, and no more.
    """
    status: cython.longlong
    _check_map(len(table), len(state), len(secret), state[1])
    if len(buf) == 0:
        return _TRAILING if count > 0 else _OK
    if cython.compiled:
        with cython.nogil:
            status = _map_records(
                cython.address(buf[0]), 0, len(buf), count, base_offset, last_offset, from_offset,
                cython.address(secret[0]), cython.address(table[0]), len(table) // 3,
                cython.address(state[0]),
            )  # fmt: skip
    else:
        status = _map_records(
            buf, 0, len(buf), count, base_offset, last_offset, from_offset, secret, table, len(table) // 3,
            state,
        )  # fmt: skip
    return status


def _check_map(words: int, fields: int, secret_words: int, limit: int) -> None:
    if fields < 4 or secret_words < 2 or words < 3 or not 0 <= limit < words // 3:
        raise IndexError(f"a map of {words} words for {limit} keys")


def check_batches(
    size: int, positions: cython.longlong[::1], first: cython.longlong, sizes: cython.longlong[::1]
) -> None:
    """Raise `IndexError` if a batch lies outside a buffer of ``size`` bytes."""
    index: cython.longlong
    total: cython.longlong = size
    bad: cython.longlong = 0
    if len(sizes) != len(positions) or first < 0:
        raise IndexError("columns of different lengths")
    for index in range(first, len(positions)):
        if sizes[index] < 61 or positions[index] < 0 or positions[index] > total - sizes[index]:
            bad = 1
    if bad:
        raise IndexError(f"batches beyond {size} bytes")


def map_batches(
    buf: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    sizes: cython.longlong[::1],
    first: cython.longlong,
    from_offset: cython.longlong,
    secret: cython.const[cython.ulonglong][::1],
    table: cython.ulonglong[::1],
    state: cython.longlong[::1],
) -> tuple[int, int]:
    """Put the keys of the batches of ``buf``, from number ``first`` on, into the map; see `map_records`.

    Returns (status or `Pause`, number of its batch): `Pause.BATCH` for a batch that is compressed or belongs
    to a transaction.
    """
    data: cython.p_const_uchar
    words: cython.p_ulonglong
    numbers: cython.p_longlong
    key: cython.p_const_ulonglong
    slots: cython.ulonglong = len(table) // 3
    index: cython.longlong = first
    count: cython.longlong = len(positions)
    at: cython.longlong
    base: cython.longlong
    last: cython.longlong
    status: cython.longlong = _OK
    _check_map(len(table), len(state), len(secret), state[1])
    check_batches(len(buf), positions, first, sizes)
    if len(buf) == 0 or first >= count:
        return _OK, first
    if cython.compiled:
        data, words = cython.address(buf[0]), cython.address(table[0])
        numbers, key = cython.address(state[0]), cython.address(secret[0])
    else:
        data, words, numbers, key = buf, table, state, secret
    with cython.nogil:
        while index < count:
            at = positions[index]
            base = int64(data, at)
            last = base + int32(data, at + 23)
            if last >= from_offset:
                if data[at + 22] & 0x37 != 0:
                    status = _BATCH
                    break
                status = _map_records(
                    data, at + 61, at + sizes[index], int32(data, at + 57), base, last, from_offset,
                    key, words, slots, numbers,
                )  # fmt: skip
                if status != _OK:
                    break
            index += 1
    return status, index
