"""Java's ``String.hashCode``, by which Kafka's clients and brokers map a group to a partition. [P]"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_MIN: Final = -(1 << 31)
_KEPT_CHARS: Final = 250


def string_hash(text: str) -> int:
    """Return ``text.hashCode()``: over UTF-16 code units, a signed 32-bit integer.

    >>> string_hash("polygenelubricants")
    -2147483648
    """
    value = 0
    encoded = text.encode("utf-16-le", "surrogatepass")
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of(text: str, count: int) -> int:
    """Return the partition, of `count`, of `text` (as Kafka's `Utils.abs`, the least integer becomes 0)."""
    return _kept(text, count) if len(text) <= _KEPT_CHARS else _partition_of(text, count)


def _partition_of(text: str, count: int) -> int:
    value = string_hash(text)
    return (0 if value == _MIN else abs(value)) % count


_kept: Final = lru_cache(maxsize=4096)(_partition_of)
"""Cache of `_partition_of`: the same groups are looked up again and again."""
