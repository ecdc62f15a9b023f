"""Budget of file descriptors: the number of partitions that this process may hold. [P]

Each partition that is written to keeps the log of its newest segment open. The budget reserves descriptors
for connections, for cached index and log files, and for other files: so new topics are refused before the
existing partitions run out of descriptors.

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
"""Cached open files where no limit is known."""
_MOST_CACHED: Final = 8192
_OTHERS: Final = 64


class Budget(NamedTuple):
    """Split of `limit` descriptors: `cached_files` that stay open after their use, and `partitions`."""

    limit: int
    cached_files: int
    partitions: int


def budget(limit: int, *, max_connections: int) -> Budget:
    """Split `limit` (``RLIMIT_NOFILE``); of a small one each purpose gets a share."""
    cached = min(_MOST_CACHED, limit // 8)
    reserve = cached + min(_OTHERS, limit // 16) + min(max_connections, limit // 4)
    return Budget(limit, cached, max(limit - reserve, 0))
