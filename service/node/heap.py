"""The C library's heap: one arena for all threads, which keeps freed memory until it is trimmed.

Fresh memory costs a page fault for every 4 KiB: half a second for each GB, more than to receive and send it.

glibc gives each thread an arena of its own, up to eight for each processor, and an arena takes no memory that
another one has free. A chunk of the cold tier is made by one of a dozen threads and freed by another, so that
most chunks came from fresh pages while others lay free. Small objects do not come from an arena: they are
Python's, or in a cache of their thread.

What is free at the heap's end, glibc returns at once, and the next chunk, segment or request takes it anew.
Here `MemoryTrimmer` returns it, when a burst is over. Resident memory does not fall then by itself, so the
trimmer asks how much of the heap is in use; a library that cannot tell keeps its own rules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
"""glibc's numbers of options in `mallopt`; other C libraries lack the function or ignore them."""
LARGEST_PIECE: Final = 32 << 20
"""Larger pieces have a mapping of their own; glibc permits no more."""
KEPT_BYTES: Final = 2 * LARGEST_PIECE
"""Most free bytes at the heap's end: what glibc itself allows once it has seen a piece of that size."""


class _Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def set_up_heap() -> None:
    """Do so for this process, before its first thread starts."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_ARENA_MAX, 1)
    if heap_usage() is not None:
        mallopt(_MMAP_THRESHOLD, LARGEST_PIECE)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def heap_usage() -> Callable[[], int] | None:
    """Return a function that counts the bytes of the heap in use, without those that have a mapping of their
    own; None where the C library has none. It walks the free pieces: 20 ms for 100,000 of them."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    return lambda: int(mallinfo2().uordblks)
