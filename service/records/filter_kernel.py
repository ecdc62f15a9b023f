"""Bloom filter of keys, and its hash; like `kernel`, one source, compiled or interpreted. [P]

A key's hash is xxHash64 with seed 0. The filter is Parquet's: blocks of 256 bits, in eight words of 32. The
upper half of the hash chooses the block, the lower half one bit in each of the block's words. So a filter of
a third of the blocks has every three neighbours united. Here two words of the format are one of 64 bits, the
first in its lower half.

Source: Parquet `BloomFilter.md`; xxHash `xxhash_spec.md`.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

COMPILED: Final[bool] = cython.compiled

BLOCK_WORDS: Final = 4
BLOCK_BYTES: Final = 32
MOST_KEYS: Final = 32
"""Keys that are put into a filter at once."""

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
_EVERY_OTHER = cython.declare(cython.ulonglong, 0x5555555555555555)
_TWO_OF_FOUR = cython.declare(cython.ulonglong, 0x3333333333333333)
_FOUR_OF_EIGHT = cython.declare(cython.ulonglong, 0x0F0F0F0F0F0F0F0F)
_ONE_OF_EIGHT = cython.declare(cython.ulonglong, 0x0101010101010101)
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
    """Return eight bytes as a little-endian word: of this form compilers make one load."""
    one: cython.ulonglong = data[at + 1]
    two: cython.ulonglong = data[at + 2]
    three: cython.ulonglong = data[at + 3]
    four: cython.ulonglong = data[at + 4]
    five: cython.ulonglong = data[at + 5]
    six: cython.ulonglong = data[at + 6]
    seven: cython.ulonglong = data[at + 7]
    return data[at] | one << 8 | two << 16 | three << 24 | four << 32 | five << 40 | six << 48 | seven << 56


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _half_word(data: cython.p_const_uchar, at: cython.longlong) -> cython.ulonglong:
    """Return four bytes as a little-endian word."""
    one: cython.ulonglong = data[at + 1]
    two: cython.ulonglong = data[at + 2]
    three: cython.ulonglong = data[at + 3]
    return data[at] | one << 8 | two << 16 | three << 24


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
def _mask(low: cython.uint, first: cython.uint, second: cython.uint) -> cython.ulonglong:
    """Return the word with the two bits that a hash has in it, by the salts of its halves."""
    one: cython.ulonglong = 1
    lower: cython.uint
    upper: cython.uint
    if cython.compiled:
        lower, upper = low * first, low * second
    else:
        lower, upper = (low * first) & _UINT32_MAX, (low * second) & _UINT32_MAX
    return one << (lower >> 27) | one << (upper >> 27 | 32)


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
def _insert(words: cython.p_ulonglong, blocks: cython.ulonglong, hash: cython.ulonglong) -> cython.void:
    at: cython.ulonglong = _block_at(hash, blocks) * 4
    low: cython.uint = hash & _UINT32_MAX
    words[at] |= _mask(low, _SALT_0, _SALT_1)
    words[at + 1] |= _mask(low, _SALT_2, _SALT_3)
    words[at + 2] |= _mask(low, _SALT_4, _SALT_5)
    words[at + 3] |= _mask(low, _SALT_6, _SALT_7)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def insert_keys(
    words: cython.p_ulonglong,
    blocks: cython.ulonglong,
    data: cython.p_const_uchar,
    spans: cython.p_longlong,
    count: cython.longlong,
) -> cython.void:
    """Put some keys, at most `MOST_KEYS`, into a filter; ``spans`` has position and size of each.

    All are hashed first: the loop that puts hashes in, and does nothing else, waits for several parts of the
    filter at once, which is larger than the nearest cache.
    """
    hashes: cython.ulonglong[32]
    index: cython.longlong
    different: cython.longlong = 0
    if not cython.compiled:
        hashes = [0] * 32
    for index in range(count):
        hashes[different] = _xxhash64(data, spans[2 * index], spans[2 * index + 1])
        if different == 0 or hashes[different] != hashes[different - 1]:  # often it is the key before
            different += 1
    for index in range(different):
        _insert(words, blocks, hashes[index])


def insert(words: cython.ulonglong[::1], hash: cython.ulonglong) -> None:
    """Put a hash into a filter."""
    if len(words) < 4 or len(words) % 4:
        raise IndexError(f"a filter of {len(words)} words")
    if cython.compiled:
        _insert(cython.address(words[0]), len(words) // 4, hash)
    else:
        _insert(words, len(words) // 4, hash)


def find_any(words: cython.const[cython.ulonglong][::1], hashes: cython.const[cython.ulonglong][::1]) -> int:
    """Return the index of the first of the hashes that the filter may have; -1 where it has none."""
    index: cython.longlong
    count: cython.longlong = len(hashes)
    found: cython.longlong = -1
    blocks: cython.ulonglong = len(words) // 4
    at: cython.ulonglong
    low: cython.uint
    if len(words) < 4 or len(words) % 4:
        raise IndexError(f"a filter of {len(words)} words")
    with cython.nogil:
        for index in range(count):
            at = _block_at(hashes[index], blocks) * 4
            low = hashes[index] & _UINT32_MAX
            if (
                _mask(low, _SALT_0, _SALT_1) & ~words[at] == 0
                and _mask(low, _SALT_2, _SALT_3) & ~words[at + 1] == 0
                and _mask(low, _SALT_4, _SALT_5) & ~words[at + 2] == 0
                and _mask(low, _SALT_6, _SALT_7) & ~words[at + 3] == 0
            ):
                found = index
                break
    return found


def count_bits(words: cython.const[cython.ulonglong][::1]) -> int:
    """Return how many bits of the filter are set."""
    index: cython.longlong
    found: cython.ulonglong = 0
    word: cython.ulonglong
    if not cython.compiled:
        return sum(one.bit_count() for one in words)
    with cython.nogil:
        for index in range(len(words)):
            word = words[index]
            word = word - ((word >> 1) & _EVERY_OTHER)
            word = (word & _TWO_OF_FOUR) + ((word >> 2) & _TWO_OF_FOUR)
            word = (word + (word >> 4)) & _FOUR_OF_EIGHT
            found += (word * _ONE_OF_EIGHT) >> 56
    return found


def fold(words: cython.const[cython.ulonglong][::1], out: cython.ulonglong[::1]) -> None:
    """Unite neighbouring blocks, as many as it takes for the filter to fill ``out``, which is all zeros.

    The blocks of ``words`` are a multiple of those of ``out``.
    """
    block: cython.longlong
    neighbour: cython.longlong
    word: cython.longlong
    blocks: cython.longlong = len(words) // 4
    left: cython.longlong = len(out) // 4
    share: cython.longlong
    if left < 1 or blocks < left or blocks % left or len(words) % 4 or len(out) % 4:
        raise IndexError(f"a filter of {blocks} blocks for {left}")
    share = blocks // left
    with cython.nogil:
        for block in range(left):
            for neighbour in range(block * share, (block + 1) * share):
                for word in range(4):
                    out[4 * block + word] |= words[4 * neighbour + word]
