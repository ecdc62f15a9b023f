"""How fast a peer moves the bytes of one request or one response, and when it is too slow. [P]

A peer has a time for whatever it sends or takes, and more for each byte that it did move: who keeps up with
`LEAST_RATE` is never late, however much it is; who sends a byte a second is late when its time is over. The
time in which the node itself did not read is not counted.

Times are seconds of a clock that never goes back, as somebody who looks now and then gives them.
"""

from __future__ import annotations

from typing import Final

LEAST_RATE: Final = 32 << 10
"""Bytes per second."""
STALL_S: Final = 0.5
"""Who has not kept up with the least rate for so long has stalled."""


class Pace:
    """Of one request or response."""

    __slots__ = ("_bytes", "_kept_up_s", "_looked_s", "_started_s")

    def __init__(self, now_s: float, moved_bytes: int = 0) -> None:
        self._started_s = self._looked_s = self._kept_up_s = now_s
        self._bytes = moved_bytes

    def look(self, now_s: float, moved_bytes: int, *, excused: bool = False, stands: bool = False) -> None:
        """So many bytes have moved since the beginning.

        `excused`: it was not the peer that was waited for; with `stands` it has stalled all the same.
        """
        passed_s = now_s - self._looked_s
        self._looked_s = now_s
        if excused:
            self._started_s += passed_s
        keeps_up = moved_bytes - self._bytes >= LEAST_RATE * passed_s
        if not stands if excused else keeps_up:
            self._kept_up_s = now_s
        self._bytes = moved_bytes

    def is_late(self, patience_s: float) -> bool:
        """Whether it has used up its time, as of the last look."""
        return self._looked_s - self._started_s > patience_s + self._bytes / LEAST_RATE

    @property
    def stalled_s(self) -> float:
        """For how long it has not kept up, as of the last look."""
        return self._looked_s - self._kept_up_s
