"""Memory that a burst of requests has left free goes back to the system, where the C library keeps it.

The library keeps what is freed between blocks that are still in use, and gives back only what lies at the end
of its heap: a hundred megabytes after a hundred large requests, for good. A node that may have so much memory
and no more would not have it for the next burst of another kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

LOOK_S: Final = 1.0
MUCH_BYTES: Final = 16 << 20
"""Growth after which it is worth a try."""
MANY_BLOCKS: Final = 50_000
"""So many of Python's blocks fewer than at the last try make it worth another one."""
LOOKS_BETWEEN: Final = 3


class Memory:
    """What the process holds, looked at once a second. Owned by the loop."""

    def __init__(
        self,
        resident: Callable[[], int],
        trim: Callable[[], None],
        threads: Executor,
        busy: Callable[[], int],
        blocks: Callable[[], int],
    ) -> None:
        """`resident`: bytes that the process holds now. `trim` gives back what is free, on one of `threads`:
        10 ms for 70 MB. `busy`: a number that grows while long requests are answered. `blocks`: how many
        blocks of memory are in use."""
        self._resident = resident
        self._trim = trim
        self._threads = threads
        self._busy = busy
        self._blocks = blocks
        self._was_busy = 0
        self._least = self._floor = 1 << 62
        """what the process held at least since the last try, and ever"""
        self._left = 0
        """what the last try left"""
        self._rest = 0
        """looks until the next try"""
        self._tried = 0, 0
        """`busy` and `blocks` at the last try"""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Give back what is free, where the process has grown and is quiet.

        A try in the middle of a burst finds nearly all of it in use. So there is another one once long work
        was done since, or much was let go of.
        """
        was_busy, self._was_busy = self._was_busy, self._busy()
        now = self._resident()
        if self._rest:
            self._rest -= 1
            if self._rest == LOOKS_BETWEEN - 1:
                self._least = self._left = now  # what is left after a try was in use
        self._least, self._floor = min(self._least, now), min(self._floor, now)
        if self._rest or self._was_busy != was_busy:
            return
        busy_then, blocks_then = self._tried
        blocks = self._blocks()
        is_over = (
            self._was_busy != busy_then
            or blocks < blocks_then - MANY_BLOCKS
            or now < self._left - MUCH_BYTES  # large buffers are few blocks
        )
        if now - (self._floor if is_over else self._least) > MUCH_BYTES:
            self._rest = LOOKS_BETWEEN
            self._tried = self._was_busy, blocks
            self._threads.submit(self._trim)
