"""A bound on concurrent work whose free places go to whoever needs them most, not to whoever asked first.

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

Priority = tuple[bool, int, int]
"""As `planner.priority`: the smallest goes first."""


class PrioritySlots:
    """Like a semaphore of `slots` places with a queue ordered by priority."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._order = count()
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, priority: Priority) -> AsyncIterator[None]:
        """Hold one place for the time of the block."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                # Handed over and cancelled in the same tick: the place must not be lost.
                if turn.done() and not turn.cancelled():
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
