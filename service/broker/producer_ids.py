"""Producer ids handed out from blocks that the controller allocates (KIP-730)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.metadata.controller.requests import ProducerIdBlock


class ProducerIds:
    """The current block. A restart forgets the rest of it: ids are plenty, reuse would be wrong. Owned by the
    loop.
    """

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id that no producer of this cluster ever had."""
        while self._next >= self._end:
            async with self._refill:
                if self._next >= self._end:
                    block = await self._allocate()
                    self._next, self._end = block.first, block.first + block.size
        producer_id = self._next
        self._next += 1
        return producer_id
