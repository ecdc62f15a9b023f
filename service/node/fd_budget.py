"""How many partitions the descriptors of this process carry. [P]

Each partition that is written to holds the log of its newest segment open. What is left beside them is for
connections, for files that are read and for indexes, which stay open while they are hot, and for what a node
opens now and then; so topics are refused before the descriptors of those that are there run out.

>>> budget(1_048_576, max_connections=2_000)
Budget(limit=1048576, cached_files=8192, partitions=1038320)
>>> budget(20_000, max_connections=2**31 - 1)
Budget(limit=20000, cached_files=2500, partitions=12436)
>>> budget(1024, max_connections=2**31 - 1)
Budget(limit=1024, cached_files=128, partitions=576)
"""

from __future__ import annotations

from typing import Final, NamedTuple

FEW_FILES: Final = 256
"""Cached where no limit is known."""
_MOST_CACHED: Final = 8192
_OTHERS: Final = 64


class Budget(NamedTuple):
    """`limit` descriptors come to so many files kept open because they were used lately, and to so many
    partitions."""

    limit: int
    cached_files: int
    partitions: int


def budget(limit: int, *, max_connections: int) -> Budget:
    """What `limit` (``RLIMIT_NOFILE``) is spent on; of a small one each purpose has its share."""
    cached = min(_MOST_CACHED, limit // 8)
    reserve = cached + min(_OTHERS, limit // 16) + min(max_connections, limit // 4)
    return Budget(limit, cached, max(limit - reserve, 0))
