"""Timeout of the transfer of one request or one response, with a minimum rate. [P]

A peer has a fixed time for each transfer, plus time for each byte that it has moved: a peer that keeps up
with `LEAST_RATE` is never late, whatever the size; a peer that sends a byte a second is late when its time is
up. The time in which the node itself did not read does not count.

Times are seconds of a monotonic clock, passed by a caller that updates now and then.
"""

from __future__ import annotations

from typing import Final

LEAST_RATE: Final = 32 << 10
"""Minimum rate in bytes per second."""
STALL_S: Final = 0.5
"""Time below the minimum rate after which a transfer has stalled."""


class TransferTimeout:
    """Progress of one request or response."""

    __slots__ = ("_bytes", "_kept_up_s", "_started_s", "_updated_s")

    def __init__(self, now_s: float, moved_bytes: int = 0) -> None:
        self._started_s = self._updated_s = self._kept_up_s = now_s
        self._bytes = moved_bytes

    def update(
        self, now_s: float, moved_bytes: int, *, waiting_on_us: bool = False, stalled: bool = False
    ) -> None:
        """Note that `moved_bytes` have moved since the beginning.

        `waiting_on_us`: the node did not wait for the peer; with `stalled` the transfer has stalled anyway.
        """
        passed_s = now_s - self._updated_s
        self._updated_s = now_s
        if waiting_on_us:
            self._started_s += passed_s
        keeps_up = moved_bytes - self._bytes >= LEAST_RATE * passed_s
        if not stalled if waiting_on_us else keeps_up:
            self._kept_up_s = now_s
        self._bytes = moved_bytes

    def is_late(self, patience_s: float) -> bool:
        """Return whether its time was up at the last update."""
        return self._updated_s - self._started_s > patience_s + self._bytes / LEAST_RATE

    @property
    def stalled_s(self) -> float:
        """Time below the minimum rate, as of the last update."""
        return self._updated_s - self._kept_up_s
