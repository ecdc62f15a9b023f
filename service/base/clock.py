"""Time as a parameter: `SystemClock` for a node, `ManualClock` for tests and the simulator."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time, in milliseconds."""

    def now_ms(self) -> int:
        """Return wall clock time in milliseconds since the Unix epoch."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back. For deadlines and durations only."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """Clock that moves only by `advance`."""

    def __init__(self, now_ms: int = 1_600_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms
