"""Producer ids handed out from blocks that the controller allocates (KIP-730)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.requests import ProducerIdBlock

PATIENCE_S: Final = 3.0
"""Where the controller cannot be reached, a client had better ask another broker."""


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
        """An id that no producer of this cluster ever had.

        `RequestError` COORDINATOR_LOAD_IN_PROGRESS where the controller gives none, or not in time: clients
        ask again, or elsewhere (Kafka `RPCProducerIdManager`).
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._next >= self._end:
                    await self._refilled()
        except (TimeoutError, RequestError) as e:
            why = f"the controller has given no producer ids: {e or 'no answer in time'}"
            raise RequestError(ErrorCode.coordinator_load_in_progress, why) from e
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _refilled(self) -> None:
        async with self._refill:
            if self._next >= self._end:
                block = await self._allocate()
                self._next, self._end = block.first, block.first + block.size
