"""Producer ids from blocks that the controller allocates (KIP-730)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.requests import ProducerIdBlock

PATIENCE_S: Final = 3.0
"""Longest wait for the controller: if it cannot be reached, the client should ask another broker."""


class ProducerIds:
    """The current block of producer ids. A restart drops the rest of it, so that no id is used twice.

    Owned by the loop.
    """

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that no producer of this cluster ever had.

        Raises `RequestError` COORDINATOR_LOAD_IN_PROGRESS if the controller allocates none in `PATIENCE_S`:
        clients retry, perhaps at another broker (Kafka `RPCProducerIdManager`).
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._next >= self._end:
                    await self._allocate_block()
        except (TimeoutError, RequestError) as e:
            why = f"the controller has allocated no producer ids: {e or 'no response in time'}"
            raise RequestError(ErrorCode.coordinator_load_in_progress, why) from e
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _allocate_block(self) -> None:
        async with self._refill:
            if self._next >= self._end:
                block = await self._allocate()
                self._next, self._end = block.first, block.first + block.size
