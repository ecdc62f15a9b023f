"""Trimmer of the C library's heap: returns memory that a burst of requests has freed to the system.

The library keeps free memory that lies between used blocks, and returns only the end of its heap: after a
hundred large requests it keeps a hundred megabytes for ever. Under a memory limit, the next burst of another
kind would lack them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

CHECK_S: Final = 1.0
MUCH_BYTES: Final = 16 << 20
"""Growth of the resident memory after which a trim is tried."""
MANY_BLOCKS: Final = 50_000
"""Decrease of Python's memory blocks since the last trim after which another one is tried."""
CHECKS_BETWEEN: Final = 3
BUSY_CHECKS: Final = 30
"""Checks in a row that find long requests, after which no end of them is awaited: under a load that never
pauses the free memory between used blocks would only grow."""


class MemoryTrimmer:
    """Checks the process's memory once a second and trims the heap. Owned by the loop."""

    def __init__(
        self,
        resident: Callable[[], int],
        trim: Callable[[], None],
        threads: Executor,
        busy: Callable[[], int],
        blocks: Callable[[], int],
        in_use: Callable[[], int] | None,
    ) -> None:
        """`resident`: memory of the process now, in bytes. `trim`: returns free memory to the system, on one
        of `threads`; 10 ms for 70 MB. `busy`: a number that grows while long requests are answered. `blocks`:
        the number of Python's memory blocks in use. `in_use`: bytes of the heap in use, asked on one of
        `threads`; None if it is not known."""
        self._resident = resident
        self._trim = trim
        self._threads = threads
        self._busy = busy
        self._blocks = blocks
        self._in_use = in_use
        self._used = self._used_then = 0
        """bytes of the heap in use when last asked, and at the last trim"""
        self._was_busy = 0
        self._busy_checks = 0
        """checks in a row that have found long requests, since the last trim"""
        self._least = self._floor = 1 << 62
        """lowest resident memory since the last trim, and since the start"""
        self._left = 0
        """resident memory after the last trim"""
        self._rest = 0
        """checks until the next trim may run"""
        self._tried = 0, 0
        """`busy` and `blocks` at the last trim"""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()

    def check(self) -> None:
        """Trim the heap if the process has grown and answers no long request now, or has answered some
        between all of the last `BUSY_CHECKS`.

        A trim in the middle of a burst finds nearly all memory in use. So another one runs when long requests
        were answered since, or much memory was freed.
        """
        was_busy, self._was_busy = self._was_busy, self._busy()
        now = self._resident()
        if self._rest:
            self._rest -= 1
            if self._rest == CHECKS_BETWEEN - 1:
                self._least = self._left = now  # the memory that a trim leaves was in use
        self._least, self._floor = min(self._least, now), min(self._floor, now)
        is_busy = self._was_busy != was_busy
        self._busy_checks = self._busy_checks + 1 if is_busy else 0
        if self._rest or 0 < self._busy_checks < BUSY_CHECKS:
            return
        busy_then, blocks_then = self._tried
        blocks = self._blocks()
        is_over = not is_busy and (
            self._was_busy != busy_then
            or blocks < blocks_then - MANY_BLOCKS
            or now < self._left - MUCH_BYTES  # large buffers are few blocks
            or self._used < self._used_then - MUCH_BYTES  # the heap keeps what was freed
        )
        if now - (self._floor if is_over else self._least) > MUCH_BYTES:
            self._rest, self._busy_checks = CHECKS_BETWEEN, 0
            self._tried = self._was_busy, blocks
            self._threads.submit(self._ask_and_trim)
        elif not is_busy and now - self._floor > MUCH_BYTES:
            self._threads.submit(self._ask)

    def _ask(self) -> None:
        """Ask how much of the heap is in use, for the next check. Runs on a thread."""
        if self._in_use is not None:
            self._used = self._in_use()

    def _ask_and_trim(self) -> None:
        self._ask()
        self._used_then = self._used
        self._trim()
