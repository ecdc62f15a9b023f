"""Query of the page cache by ``cachestat`` (Linux 6.5 and later).

The query has no side effects. A read with ``RWF_NOWAIT`` that fails makes the kernel start the read.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

_CACHESTAT: Final = 451
"""system call number on every architecture"""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def is_cached(fd: int, size: int, position: int) -> bool | None:
    """Return whether all pages of these bytes are in the page cache. Pages past the end of file are not.

    None if the call is not supported, or no page is cached, as on file systems with a cache of their own.
    """
    if _LIBC is None or size <= 0:
        return None
    first, last = position // mmap.PAGESIZE, (position + size - 1) // mmap.PAGESIZE
    wanted, found = _Range(position, size), _Counts()
    if _LIBC.syscall(_CACHESTAT, fd, ctypes.byref(wanted), ctypes.byref(found), 0):
        return None
    return int(found.cached) > last - first if found.cached else None
