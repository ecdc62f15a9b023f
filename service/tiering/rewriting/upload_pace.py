"""Pace of one upload under the quota of copies, which the event loop keeps and a thread has to follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from service.base.clock import Clock
from service.base.rate import Rate
from service.tiering.copier import CallProgress

_LOOK_S: Final = 0.1
"""Time between two looks of the loop at what the thread has sent, and longest sleep of the thread."""


class UploadPace:
    """Bytes that the thread has sent, and how long it has to wait. Each side writes what it alone owns."""

    def __init__(self, rate: Rate, clock: Clock, sleep: Callable[[float], None]) -> None:
        """`sleep` blocks the thread."""
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._sent = 0
        """bytes sent, written by the thread"""
        self._counted = 0
        """those of them that the quota has counted, written by the loop"""
        self._wait_ms = 0
        """written by the loop"""

    async def follow(self) -> None:
        """Count what the thread sends, and say how long it waits, until cancelled."""
        try:
            while True:
                self._count()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._count()

    def _count(self) -> None:
        now_ms, sent = self._clock.monotonic_ms(), self._sent
        self._rate.spend(sent - self._counted, now_ms)
        self._counted, self._wait_ms = sent, self._rate.wait_ms(now_ms)

    def spend(self, size: int, progress: CallProgress) -> None:
        """Note `size` bytes that are sent now, after the wait for the quota. Runs on the thread; raises
        `CallCancelled`."""
        while self._wait_ms:
            progress.advance(1)  # it waits, but it does not hang
            self._sleep(min(self._wait_ms / 1000, _LOOK_S))
        self._sent += size
