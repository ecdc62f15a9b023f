"""Loops that put keys into a Bloom filter; like `kernel`, one source, compiled or interpreted. [P]

A key's hash is xxHash64 with seed 0. The filter is Parquet's: blocks of 256 bits, in eight words of 32. The
upper half of the hash chooses the block, the lower half one bit in each of the block's words.

Source: Parquet `BloomFilter.md`; xxHash `xxhash_spec.md`.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

COMPILED: Final[bool] = cython.compiled

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
    """Return eight bytes as a little-endian word."""
    word: cython.ulonglong = data[at + 7]
    word = word << 8 | data[at + 6]
    word = word << 8 | data[at + 5]
    word = word << 8 | data[at + 4]
    word = word << 8 | data[at + 3]
    word = word << 8 | data[at + 2]
    word = word << 8 | data[at + 1]
    return word << 8 | data[at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _half_word(data: cython.p_const_uchar, at: cython.longlong) -> cython.ulonglong:
    """Return four bytes as a little-endian word."""
    word: cython.ulonglong = data[at + 3]
    word = word << 8 | data[at + 2]
    word = word << 8 | data[at + 1]
    return word << 8 | data[at]


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
