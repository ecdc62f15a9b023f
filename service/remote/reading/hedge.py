"""Delay after which a slow read is hedged by a second one: late enough to be rare. [P]

The delay is the usual duration of calls plus four times its variation (as RFC 6298 computes TCP's timeout),
within bounds. At most a tenth of all calls are hedged, so a store that is slow with everything does not get
double load.

>>> hedge = Hedge()
>>> hedge.delay_ms
500
>>> for _ in range(50):
...     hedge.record(20)
>>> hedge.delay_ms
100
"""

from __future__ import annotations

from typing import Final

LEAST_MS: Final = 100
MOST_MS: Final = 1500
_FIRST_MS: Final = 500
_SHARE: Final = 0.1
_MOST_SAVED: Final = 10.0


class Hedge:
    """Delay and budget of hedged calls of one kind. Not thread-safe."""

    __slots__ = ("_mean_ms", "_saved", "_varies_ms")

    def __init__(self) -> None:
        self._mean_ms: float | None = None
        self._varies_ms = 0.0
        self._saved = _MOST_SAVED

    @property
    def delay_ms(self) -> int:
        """Time after its begin at which a call is hedged."""
        if self._mean_ms is None:
            return _FIRST_MS
        return round(min(max(self._mean_ms + 4 * self._varies_ms, LEAST_MS), MOST_MS))

    def record(self, ms: float) -> None:
        """Record the duration of an answered call."""
        self._saved = min(self._saved + _SHARE, _MOST_SAVED)
        if self._mean_ms is None:
            self._mean_ms, self._varies_ms = float(ms), ms / 2
            return
        self._varies_ms += (abs(ms - self._mean_ms) - self._varies_ms) / 4
        self._mean_ms += (ms - self._mean_ms) / 8

    def spend(self) -> bool:
        """Take one hedged call from the budget; return False where none is left."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
