"""Partition of a key, as Java's producer chooses it. [P]

Source: Kafka ``Utils.murmur2``, ``BuiltInPartitioner.partitionForKey``.
"""

from __future__ import annotations

from typing import Final

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_WORD: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of `data`, unsigned."""
    length = len(data)
    found = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _WORD
        word = (word ^ word >> 24) * _M & _WORD
        found = found * _M & _WORD ^ word
    if whole < length:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _M & _WORD
    found = (found ^ found >> 13) * _M & _WORD
    return found ^ found >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition, of so many, that has the records of a key.

    >>> partition_of_key(b"foobar", 7)
    0
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
