"""Fetches that wait for bytes.

A waiting fetch is woken when enough bytes were appended to the partitions it watches, when a remote read it
started has ended, or at its deadline: whichever comes first. It then reads again from the start, so a wait
holds no data and nothing it holds can go stale.

Owned by the event loop, except that `Wait.wake_threadsafe` may be called from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Watched(Protocol):
    """What a wait can watch: something that calls `Wait.appended` for each of its waiters."""

    waiters: dict[Wait, None]


class Wait:
    """One fetch waiting until `missing_bytes` more bytes have arrived.

    >>> # wait = Wait(loop, 1, [partition]); await wait.until(0.5)
    """

    __slots__ = ("_future", "_loop", "_missing_bytes", "_watched")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, missing_bytes: int, watched: Iterable[Watched]
    ) -> None:
        self._loop = loop
        self._missing_bytes = missing_bytes
        self._future: asyncio.Future[None] = loop.create_future()
        self._watched = tuple(watched)
        for one in self._watched:
            one.waiters[self] = None

    def appended(self, size: int) -> None:
        """`size` bytes became readable in a watched partition."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """End the wait now (a watched partition changed in a way that the fetch must see)."""
        if not self._future.done():
            self._future.set_result(None)

    def wake_threadsafe(self, _: object = None) -> None:
        """`wake` from another thread. A loop that has closed meanwhile has nobody left to wake."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake)

    async def until(self, timeout_s: float) -> None:
        """Sleep until woken or until `timeout_s` seconds have passed; watching ends either way."""
        timer = self._loop.call_later(timeout_s, self.wake)
        try:
            await self._future
        finally:
            timer.cancel()
            for one in self._watched:
                one.waiters.pop(self, None)
