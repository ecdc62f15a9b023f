"""The C library's heap: one arena for all threads."""

from __future__ import annotations

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
"""glibc's number of the option in `mallopt`."""


def have_one_arena() -> None:
    """Let threads share one arena, from before the first of them starts; do nothing where the C library has
    no arenas.

    glibc gives each thread an arena of its own, up to eight for each processor, and an arena takes no memory
    that another one has free. A chunk of the cold tier is made by one of a dozen threads and freed by
    another: then most chunks came from fresh pages, a page fault for every 4 KiB, while others lay free. With
    one arena, reads of the archive take half the page faults, and a quarter of the memory. Small objects do
    not come from it: they are Python's, or in a cache of their thread.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
