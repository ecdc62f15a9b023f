"""Timer that has idle buckets of quotas forgotten, as long as there are any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from service.quotas.buckets import Buckets


class QuotaSweeper:
    """Forgets what is idle in `kinds` every `every_s` seconds, a bounded number in one turn of the loop."""

    __slots__ = ("_every_s", "_kinds", "_loop", "_timer", "is_watching")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, kinds: Sequence[Buckets[Any]], every_s: float
    ) -> None:
        self._loop = loop
        self._kinds = kinds
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self.is_watching = False
        """whether the timer runs"""

    def watch(self) -> None:
        """Begin, unless the timer runs: there may be a new bucket."""
        if not self.is_watching:
            self.is_watching = True
            self._timer = self._loop.call_later(self._every_s, self._sweep)

    def _sweep(self) -> None:
        now_ms = int(self._loop.time() * 1000)
        has_more = sum(kind.forget_idle(now_ms) for kind in self._kinds)
        self.is_watching = bool(has_more) or any(map(len, self._kinds))
        if self.is_watching:
            self._timer = self._loop.call_later(0 if has_more else self._every_s, self._sweep)

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
