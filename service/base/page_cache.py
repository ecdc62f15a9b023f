"""What of a file is in the page cache, as the system tells (Linux 6.5 and later, ``cachestat``).

Counting is free of side effects; a read that is not to wait (``RWF_NOWAIT``) has the system begin to read.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

_CACHESTAT: Final = 451
"""of every architecture"""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def is_cached(fd: int, size: int, position: int) -> bool | None:
    """Whether all pages of these bytes are in the page cache; None where the system does not tell, or has
    none of them, as of file systems with a cache of their own. Pages behind the end of the file are not."""
    if _LIBC is None or size <= 0:
        return None
    first, last = position // mmap.PAGESIZE, (position + size - 1) // mmap.PAGESIZE
    wanted, found = _Range(position, size), _Counts()
    if _LIBC.syscall(_CACHESTAT, fd, ctypes.byref(wanted), ctypes.byref(found), 0):
        return None
    return int(found.cached) > last - first if found.cached else None
