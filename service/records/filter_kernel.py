"""Loops that put keys into a Bloom filter; like `kernel`, one source, compiled or interpreted. [P]

A key's hash is xxHash64 with seed 0. The filter is Parquet's: blocks of 256 bits, in eight words of 32. The
upper half of the hash chooses the block, the lower half one bit in each of the block's words. So a filter of
a third of the blocks has every three neighbours united.

The walk over the records gives their least timestamps as well: a log is walked once for both.

Source: Parquet `BloomFilter.md`; xxHash `xxhash_spec.md`.
"""

from __future__ import annotations

from typing import Final

from service.records.kernel_status import COMPRESSED, KeyWalk

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.service.records.kernel import int32, int64, varint
else:
    from service.records.kernel import int32, int64, varint

COMPILED: Final[bool] = cython.compiled

BLOCK_WORDS: Final = 8
BLOCK_BYTES: Final = 32

_COMPRESSED = cython.declare(cython.longlong, COMPRESSED)
_KEYED = cython.declare(cython.longlong, KeyWalk.KEYED)
_BROKEN = cython.declare(cython.longlong, KeyWalk.BROKEN)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)
_UINT32_MAX = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_SALT_0 = cython.declare(cython.uint, 0x47B6137B)
_SALT_1 = cython.declare(cython.uint, 0x44974D91)
_SALT_2 = cython.declare(cython.uint, 0x8824AD5B)
_SALT_3 = cython.declare(cython.uint, 0xA2B7289D)
_SALT_4 = cython.declare(cython.uint, 0x705495C7)
_SALT_5 = cython.declare(cython.uint, 0x2DF1424B)
_SALT_6 = cython.declare(cython.uint, 0x9EFC4947)
_SALT_7 = cython.declare(cython.uint, 0x5C6BFB31)
_UINT64_MAX = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_PRIME_1 = cython.declare(cython.ulonglong, 0x9E3779B185EBCA87)
_PRIME_2 = cython.declare(cython.ulonglong, 0xC2B2AE3D27D4EB4F)
_PRIME_3 = cython.declare(cython.ulonglong, 0x165667B19E3779F9)
_PRIME_4 = cython.declare(cython.ulonglong, 0x85EBCA77C2B2AE63)
_PRIME_5 = cython.declare(cython.ulonglong, 0x27D4EB2F165667C5)
# Where the four lanes of a long key begin: sums and differences of the primes, modulo 2^64.
_LANE_1 = cython.declare(cython.ulonglong, 0x60EA27EEADC0B5D6)
_LANE_4 = cython.declare(cython.ulonglong, 0x61C8864E7A143579)


# The hash


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _product(one: cython.ulonglong, other: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return one * other
    return (one * other) & _UINT64_MAX


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
def _rotated(word: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    if cython.compiled:
        return (word << bits) | (word >> (64 - bits))
    return ((word << bits) | (word >> (64 - bits))) & _UINT64_MAX


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word(data: cython.p_const_uchar, at: cython.longlong) -> cython.ulonglong:
    """Return eight bytes as a little-endian word; compilers make one load of it."""
    here: cython.p_const_uchar
    if cython.compiled:  # noqa: SIM108  # only one of them is C
        here = data + at
    else:
        here = data[at : at + 8]
    word: cython.ulonglong = here[7]
    word = word << 8 | here[6]
    word = word << 8 | here[5]
    word = word << 8 | here[4]
    word = word << 8 | here[3]
    word = word << 8 | here[2]
    word = word << 8 | here[1]
    return word << 8 | here[0]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _half_word(data: cython.p_const_uchar, at: cython.longlong) -> cython.ulonglong:
    """Return four bytes as a little-endian word."""
    here: cython.p_const_uchar
    if cython.compiled:  # noqa: SIM108  # only one of them is C
        here = data + at
    else:
        here = data[at : at + 4]
    word: cython.ulonglong = here[3]
    word = word << 8 | here[2]
    word = word << 8 | here[1]
    return word << 8 | here[0]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _round(lane: cython.ulonglong, word: cython.ulonglong) -> cython.ulonglong:
    return _product(_rotated(_sum(lane, _product(word, _PRIME_2)), 31), _PRIME_1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merged(hash: cython.ulonglong, lane: cython.ulonglong) -> cython.ulonglong:
    return _sum(_product(hash ^ _round(0, lane), _PRIME_1), _PRIME_4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _stripes(data: cython.p_const_uchar, at: cython.longlong, end: cython.longlong) -> cython.ulonglong:
    """Return the hash of the whole stripes of 32 bytes in ``data[at:end]``."""
    one: cython.ulonglong = _LANE_1
    two: cython.ulonglong = _PRIME_2
    three: cython.ulonglong = 0
    four: cython.ulonglong = _LANE_4
    found: cython.ulonglong
    while end - at >= 32:
        one = _round(one, _word(data, at))
        two = _round(two, _word(data, at + 8))
        three = _round(three, _word(data, at + 16))
        four = _round(four, _word(data, at + 24))
        at += 32
    found = _sum(_rotated(one, 1), _rotated(two, 7))
    found = _sum(_sum(found, _rotated(three, 12)), _rotated(four, 18))
    return _merged(_merged(_merged(_merged(found, one), two), three), four)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _xxhash64(data: cython.p_const_uchar, at: cython.longlong, size: cython.longlong) -> cython.ulonglong:
    """Return xxHash64, with seed 0, of ``data[at : at + size]``."""
    end: cython.longlong = at + size
    found: cython.ulonglong = _PRIME_5
    if size >= 32:
        found = _stripes(data, at, end)
        at = end - (size & 31)
    found = _sum(found, size)
    while end - at >= 8:
        found ^= _round(0, _word(data, at))
        found = _sum(_product(_rotated(found, 27), _PRIME_1), _PRIME_4)
        at += 8
    if end - at >= 4:
        found ^= _product(_half_word(data, at), _PRIME_1)
        found = _sum(_product(_rotated(found, 23), _PRIME_2), _PRIME_3)
        at += 4
    while at < end:
        found ^= _product(data[at], _PRIME_5)
        found = _product(_rotated(found, 11), _PRIME_1)
        at += 1
    found = _product(found ^ (found >> 33), _PRIME_2)
    found = _product(found ^ (found >> 29), _PRIME_3)
    return found ^ (found >> 32)


def xxhash64(key: cython.const[cython.uchar][::1]) -> int:
    """Return xxHash64 of a key, with seed 0."""
    found: cython.ulonglong
    empty: cython.uchar[1]
    if not cython.compiled:
        empty = [0]
        found = _xxhash64(key, 0, len(key))
    elif len(key) == 0:
        empty[0] = 0
        found = _xxhash64(empty, 0, 0)
    else:
        found = _xxhash64(cython.address(key[0]), 0, len(key))
    return found


# The filter


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mask(low: cython.uint, salt: cython.uint) -> cython.uint:
    """Return the word with the one bit that a hash has in the word of this salt."""
    one: cython.uint = 1
    product: cython.uint
    product = low * salt if cython.compiled else (low * salt) & _UINT32_MAX
    return one << (product >> 27)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _block_at(hash: cython.ulonglong, blocks: cython.ulonglong) -> cython.ulonglong:
    """Return the number of the block of a hash."""
    return ((hash >> 32) * blocks) >> 32


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _insert(words: cython.p_uint, blocks: cython.ulonglong, hash: cython.ulonglong) -> cython.void:
    at: cython.ulonglong = _block_at(hash, blocks) * 8
    low: cython.uint = hash & _UINT32_MAX
    words[at] |= _mask(low, _SALT_0)
    words[at + 1] |= _mask(low, _SALT_1)
    words[at + 2] |= _mask(low, _SALT_2)
    words[at + 3] |= _mask(low, _SALT_3)
    words[at + 4] |= _mask(low, _SALT_4)
    words[at + 5] |= _mask(low, _SALT_5)
    words[at + 6] |= _mask(low, _SALT_6)
    words[at + 7] |= _mask(low, _SALT_7)


def insert(words: cython.uint[::1], hash: cython.ulonglong) -> None:
    """Put a hash into a filter."""
    if len(words) < 8 or len(words) % 8:
        raise IndexError(f"a filter of {len(words)} words")
    if cython.compiled:
        _insert(cython.address(words[0]), len(words) // 8, hash)
    else:
        _insert(words, len(words) // 8, hash)


def find_any(words: cython.const[cython.uint][::1], hashes: cython.const[cython.ulonglong][::1]) -> int:
    """Return the index of the first of the hashes that the filter may have; -1 where it has none."""
    index: cython.longlong
    count: cython.longlong = len(hashes)
    found: cython.longlong = -1
    blocks: cython.ulonglong = len(words) // 8
    at: cython.ulonglong
    low: cython.uint
    if len(words) < 8 or len(words) % 8:
        raise IndexError(f"a filter of {len(words)} words")
    with cython.nogil:
        for index in range(count):
            at = _block_at(hashes[index], blocks) * 8
            low = hashes[index] & _UINT32_MAX
            if (
                words[at] & _mask(low, _SALT_0)
                and words[at + 1] & _mask(low, _SALT_1)
                and words[at + 2] & _mask(low, _SALT_2)
                and words[at + 3] & _mask(low, _SALT_3)
                and words[at + 4] & _mask(low, _SALT_4)
                and words[at + 5] & _mask(low, _SALT_5)
                and words[at + 6] & _mask(low, _SALT_6)
                and words[at + 7] & _mask(low, _SALT_7)
            ):
                found = index
                break
    return found


def count_bits(words: cython.const[cython.uint][::1]) -> int:
    """Return how many bits of the filter are set."""
    index: cython.longlong
    found: cython.longlong = 0
    word: cython.uint
    if not cython.compiled:
        return sum(one.bit_count() for one in words)
    with cython.nogil:
        for index in range(len(words)):
            word = words[index]
            word = word - ((word >> 1) & 0x55555555)
            word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
            word = (word + (word >> 4)) & 0x0F0F0F0F
            word = word + (word >> 8)
            found += (word + (word >> 16)) & 0x3F
    return found


def fold(words: cython.const[cython.uint][::1], out: cython.uint[::1]) -> None:
    """Unite neighbouring blocks, as many as it takes for the filter to fill ``out``, which is all zeros.

    The blocks of ``words`` are a multiple of those of ``out``.
    """
    block: cython.longlong
    neighbour: cython.longlong
    word: cython.longlong
    blocks: cython.longlong = len(words) // 8
    left: cython.longlong = len(out) // 8
    share: cython.longlong
    if left < 1 or blocks < left or blocks % left or len(words) % 8 or len(out) % 8:
        raise IndexError(f"a filter of {blocks} blocks for {left}")
    share = blocks // left
    with cython.nogil:
        for block in range(left):
            for neighbour in range(block * share, (block + 1) * share):
                for word in range(8):
                    out[8 * block + word] |= words[8 * neighbour + word]


# The keys of records


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
    words: cython.p_uint,
    blocks: cython.ulonglong,
    seen: cython.p_longlong,
) -> cython.longlong:
    """Do the work of `add_records`."""
    least: cython.longlong = _INT64_MAX if count > 0 else -1
    at: cython.longlong[1]
    edge: cython.longlong
    size: cython.longlong
    delta: cython.longlong
    if not cython.compiled:
        at = [0]
    while count > 0:
        at[0] = position
        size = _number(data, at, end, 28)
        position = at[0]
        if position < 0 or size < 1 or size > end - position:
            seen[_BROKEN] = 1
            return -1
        edge = position + size
        at[0] += 1  # attributes
        delta = _number(data, at, edge, 63)
        if at[0] < 0:
            seen[_BROKEN] = 1
            return -1
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
            seen[_KEYED] += 1
            if blocks > 0:
                _insert(words, blocks, _xxhash64(data, at[0], size))
        position = edge
        count -= 1
    if position != end:
        seen[_BROKEN] = 1
        return -1
    return max(least, -1)


def add_records(
    buf: cython.const[cython.uchar][::1],
    count: cython.longlong,
    base_timestamp: cython.longlong,
    words: cython.uint[::1],
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
        least = _walk(buf, 0, len(buf), count, base_timestamp, words, len(words) // 8, seen)
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
                len(words) // 8, cython.address(seen[0]),
            )  # fmt: skip
    return least


def _check_filter(words: int, fields: int) -> None:
    if words % 8 or fields < 2:
        raise IndexError(f"a filter of {words} words")


def add_batches(
    buf: cython.const[cython.uchar][::1],
    position: cython.longlong,
    end: cython.longlong,
    words: cython.uint[::1],
    seen: cython.longlong[::1],
    out: cython.longlong[::1],
) -> int:
    """Put the keys of the batches in ``buf[position:end]``, verified by `scan_batches`, into the filter.

    Control batches have no keys of clients. A compressed batch is left to `add_records`. Stops when ``out``
    is full, and returns how many batches it has: the least timestamp of each, -1 if it is unknown (see
    `add_records`) or above the header's maximum, or `COMPRESSED`. The header alone decides for batches
    stamped by the broker, for empty ones, and for a single compressed record.
    """
    data: cython.p_const_uchar
    rows: cython.p_longlong
    bits: cython.p_uint
    noted: cython.p_longlong
    unnoted: cython.longlong[2]  # keys of control batches
    blocks: cython.ulonglong = len(words) // 8
    batches: cython.longlong = 0
    room: cython.longlong = len(out)
    size: cython.longlong
    count: cython.longlong
    codec: cython.longlong
    newest: cython.longlong
    least: cython.longlong
    base: cython.longlong
    _check_filter(len(words), len(seen))
    if position < 0 or position > end or end > len(buf):
        raise IndexError(f"[{position}, {end}) is not inside {len(buf)} bytes")
    if position == end or room == 0:
        return 0
    if cython.compiled:
        data, rows, noted = cython.address(buf[0]), cython.address(out[0]), cython.address(seen[0])
        bits = cython.address(words[0]) if blocks > 0 else cython.NULL
    else:
        data, rows, noted, bits, unnoted = buf, out, seen, words, [0, 0]
    with cython.nogil:
        while batches < room and end - position >= 61:
            size = int32(data, position + 8) + 12
            if size < 61 or size > end - position:
                break
            newest = int64(data, position + 35)
            count = int32(data, position + 57)
            codec = data[position + 22] & 7
            base = int64(data, position + 27)
            least = _COMPRESSED
            if codec == 0:
                if data[position + 22] & 0x20:
                    least = _walk(data, position + 61, position + size, count, base, bits, 0, unnoted)
                else:
                    least = _walk(data, position + 61, position + size, count, base, bits, blocks, noted)
                if least > newest:
                    least = -1
            if data[position + 22] & 8 or count == 0 or (count == 1 and codec != 0):
                least = max(newest, -1)
            rows[batches] = least
            position += size
            batches += 1
    return batches
