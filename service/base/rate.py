"""Rate limit in bytes per second, with a burst of at most one window. [P]

>>> rate = Rate(lambda: RateLimit(bytes_per_s=100, window_s=10))
>>> rate.wait_ms(0)
0
>>> rate.spend(1500, 0)
>>> rate.wait_ms(0), rate.wait_ms(4_999), rate.wait_ms(5_000)
(5000, 1, 0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

UNLIMITED: Final = (1 << 63) - 1


class RateLimit(NamedTuple):
    """Average rate over a window."""

    bytes_per_s: int = UNLIMITED
    window_s: int = 10


class Rate:
    """Bytes spent lately, under a limit that may change at any time. Owned by the loop.

    A transfer may exceed the rest; the next one then waits, as with Kafka's quotas. Transfers are not cut.
    """

    def __init__(self, limit: Callable[[], RateLimit]) -> None:
        self._limit = limit
        self._spent = 0.0
        self._at_ms = 0

    def spend(self, amount: int, now_ms: int) -> None:
        """Count `amount` bytes as moved at `now_ms`."""
        self._let_go(now_ms)
        if self._limit().bytes_per_s < UNLIMITED:
            self._spent += amount

    def wait_ms(self, now_ms: int) -> int:
        """Return how long the next transfer has to wait, in ms. `now_ms`: monotonic."""
        self._let_go(now_ms)
        limit = self._limit()
        surplus = self._spent - limit.bytes_per_s * limit.window_s
        return 0 if surplus <= 0 else int(surplus * 1000 / limit.bytes_per_s + 0.999)

    def room(self, now_ms: int) -> int:
        """Return how many bytes may be moved now without a wait of the next transfer."""
        self._let_go(now_ms)
        limit = self._limit()
        return max(int(limit.bytes_per_s * limit.window_s - self._spent), 0)

    def _let_go(self, now_ms: int) -> None:
        passed_ms, self._at_ms = max(0, now_ms - self._at_ms), now_ms
        self._spent = max(0.0, self._spent - self._limit().bytes_per_s * passed_ms / 1000)
