"""Sums over sliding windows, and the two rates that Kafka makes of them. [P]

A window begins with its first value. It is forgotten when its last value is as old as all windows together,
or when there would be more windows than the average takes and the one at work. Times are in milliseconds of
one monotonic clock.

>>> rate = WindowedRate(number=11, size_ms=1000)
>>> rate.record(2000, 0)
>>> rate.throttle_ms(100.0, 0)
10000
>>> rate.throttle_ms(200.0, 0)
0

Apache Kafka 4.3 ``SampledStat``, ``Rate``, ``SimpleRate``, ``QuotaUtils.throttleTime``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

LONGEST_THROTTLE_MS: Final = (1 << 31) - 1
"""Longest throttle that a response can tell."""


class SampledWindow:
    """Sum of the values of one window."""

    __slots__ = ("begun_ms", "last_ms", "value")

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = begun_ms
        self.last_ms = begun_ms
        self.value: float = 0


class Windows:
    """The last windows with values, and their sum."""

    __slots__ = ("_kept", "_newest", "kept_ms", "number", "size_ms", "total")

    def __init__(self, number: int, size_ms: int) -> None:
        """`number`: windows of an average, of which the last one is not complete."""
        self.number = number
        self.size_ms = size_ms
        self.kept_ms = number * size_ms
        """age of its last value at which a window is forgotten"""
        self.total: float = 0
        """sum of all values that are not forgotten"""
        self._kept: list[SampledWindow] = []  # of few: a deque takes 700 bytes, and a bucket has one
        self._newest: SampledWindow | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __iter__(self) -> Iterator[SampledWindow]:
        """Return the windows, oldest first."""
        return iter(self._kept)

    @property
    def begun_ms(self) -> int:
        """Time at which the oldest window began. Not without windows."""
        return self._kept[0].begun_ms

    def is_idle(self, now_ms: int) -> bool:
        """Return whether all windows have run out."""
        return not self._kept or now_ms - self._kept[-1].last_ms >= self.kept_ms

    def record(self, value: float, now_ms: int) -> None:
        """Add `value`; a negative one takes back what was recorded at this time."""
        newest = self._newest
        if newest is None or now_ms - newest.begun_ms >= self.size_ms:
            self.purge(now_ms)
            kept = self._kept
            if len(kept) > self.number:
                kept.pop(0)
            # Taken anew with each window, so that fractions do not add up to an error.
            self.total = sum([one.value for one in kept])
            newest = self._newest = SampledWindow(now_ms)
            kept.append(newest)
        newest.last_ms = now_ms
        newest.value += value
        self.total += value

    def purge(self, now_ms: int) -> None:
        """Forget the windows that have run out."""
        kept = self._kept
        while kept and now_ms - kept[0].last_ms >= self.kept_ms:
            self.total -= kept.pop(0).value
        if not kept:
            self.total, self._newest = 0, None


class WindowedRate(Windows):
    """Values per second over the last windows, those before the first value counted as empty."""

    __slots__ = ()

    def over_ms(self, now_ms: int) -> int:
        """Return the time that the average is taken over: all but one of the windows at least, and the part
        of the last one that has passed."""
        self.purge(now_ms)
        passed_ms = now_ms - self.begun_ms if self else 0
        missing = self.number - 1 - passed_ms // self.size_ms
        if missing > 0:
            passed_ms += missing * self.size_ms
        return max(passed_ms, 1)

    def per_second(self, now_ms: int) -> float:
        """Return the average."""
        over_ms = self.over_ms(now_ms)
        return self.total / (over_ms / 1000)

    def throttle_ms(self, limit: float, now_ms: int, more: float = 0) -> int:
        """Return how long nothing may be recorded until the average is at `limit`; 0 where it is not above.
        `more`: counts as if it had been recorded.

        Observed rate O, limit T, over a time W: (O − T) / T × W. A limit of 0 or less, which only
        a foreign log can have, lets nothing pass.
        """
        over_ms = self.over_ms(now_ms)
        observed = (self.total + more) / (over_ms / 1000)
        if observed <= limit:
            return 0
        throttle_ms = (observed - limit) / limit * over_ms if limit > 0 else math.inf
        return math.floor(throttle_ms + 0.5) if throttle_ms < LONGEST_THROTTLE_MS else LONGEST_THROTTLE_MS
