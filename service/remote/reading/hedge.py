"""When a read that has not come back is asked for a second time: late enough to be rare. [P]

The delay is what calls usually take and four times how much that varies (as RFC 6298 times TCP's own), within
bounds. A tenth of all calls may be asked twice, so a store that is slow with everything gets no double load.

>>> hedge = Hedge()
>>> hedge.delay_ms
500
>>> for _ in range(50):
...     hedge.took(20)
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
    """Of one kind of call. Not thread-safe."""

    __slots__ = ("_mean_ms", "_saved", "_varies_ms")

    def __init__(self) -> None:
        self._mean_ms: float | None = None
        self._varies_ms = 0.0
        self._saved = _MOST_SAVED

    @property
    def delay_ms(self) -> int:
        """How long after its begin a call is asked a second time."""
        if self._mean_ms is None:
            return _FIRST_MS
        return round(min(max(self._mean_ms + 4 * self._varies_ms, LEAST_MS), MOST_MS))

    def took(self, ms: float) -> None:
        """A call was answered after so long."""
        self._saved = min(self._saved + _SHARE, _MOST_SAVED)
        if self._mean_ms is None:
            self._mean_ms, self._varies_ms = float(ms), ms / 2
            return
        self._varies_ms += (abs(ms - self._mean_ms) - self._varies_ms) / 4
        self._mean_ms += (ms - self._mean_ms) / 8

    def spend(self) -> bool:
        """Whether one more call may be asked twice now; it is counted."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
