"""Limits on the number and age of aiohttp's connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

END_S: Final = 0.1
"""Time that requests under way have at the end, and then once more connections without one. Not 0: aiohttp
takes that for no limit, and waits until the peers have left."""


class Connections(Server):
    """Server with at most `most` connections, each for at most `age_s`. The newest replaces the oldest."""

    def __init__(self, *args: Any, most: int, age_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = most
        self._age_s = age_s
        self._open: dict[RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._open) >= self._most:
            oldest, timer = self._open.pop(next(iter(self._open)))
            timer.cancel()
            oldest.abort()
        self._open[handler] = transport, self._loop.call_later(self._age_s, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if (found := self._open.pop(handler, None)) is not None:
            found[1].cancel()

    async def end(self) -> None:
        """Close all connections."""
        await self.shutdown(END_S)
