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
LOOKS_BETWEEN: Final = 10


class Memory:
    """What the process holds, looked at once a second. Owned by the loop."""

    def __init__(
        self,
        resident: Callable[[], int],
        trim: Callable[[], None],
        threads: Executor,
        busy: Callable[[], int],
    ) -> None:
        """`resident`: bytes that the process holds now. `trim` gives back what is free, on one of `threads`:
        10 ms for 70 MB. `busy`: a number that grows while long requests are answered."""
        self._resident = resident
        self._trim = trim
        self._threads = threads
        self._busy = busy
        self._was_busy = 0
        self._least = 1 << 62
        self._rest = 0
        """looks until the next try"""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Give back what is free, where the process has grown and is quiet."""
        was_busy, self._was_busy = self._was_busy, self._busy()
        now = self._resident()
        if self._rest:
            self._rest -= 1
            if self._rest == LOOKS_BETWEEN - 1:
                self._least = now  # what is left after a try is in use
        self._least = min(self._least, now)
        if not self._rest and self._was_busy == was_busy and now - self._least > MUCH_BYTES:
            self._rest = LOOKS_BETWEEN
            self._threads.submit(self._trim)
