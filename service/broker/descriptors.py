"""How many partitions the descriptors of this process carry. [P]

Each partition holds the files of its newest segment open. What is left beside them is for connections, for
sealed segments that are read, and for what a node opens now and then; so topics are refused before the
descriptors of those that are there run out.

>>> budget(1_048_576, max_connections=2_000)
Budget(limit=1048576, sealed_files=256, partitions=348752)
>>> budget(1024, max_connections=2**31 - 1)
Budget(limit=1024, sealed_files=128, partitions=192)
"""

from __future__ import annotations

from typing import Final, NamedTuple

FILES_PER_PARTITION: Final = 3
"""log, index, time index"""
SEALED_FILES: Final = 256
_OTHERS: Final = 64


class Budget(NamedTuple):
    """`limit` descriptors come to so many sealed files kept open, and to so many partitions."""

    limit: int
    sealed_files: int
    partitions: int


def budget(limit: int, *, max_connections: int) -> Budget:
    """What `limit` (``RLIMIT_NOFILE``) is spent on; of a small one each purpose has its share."""
    sealed = min(SEALED_FILES, limit // 8)
    reserve = sealed + min(_OTHERS, limit // 16) + min(max_connections, limit // 4)
    return Budget(limit, sealed, max(limit - reserve, 0) // FILES_PER_PARTITION)
