"""Counters as plain integers, and histograms with fixed buckets. [P]

Each room keeps its counters in dataclasses with slots in its `metrics.py`; the code that counts makes them
or is given them. The hot path does ``metrics.requests += 1`` or ``metrics.time.observe(0.0003)``, and nothing
else; the scraper reads the values. CPython does not switch threads within an increment of an attribute or an
item, so the threads of a pool count without a lock.

>>> times = Histogram((0.01, 0.1))
>>> for value in (0.002, 0.1, 7.0): times.observe(value)
>>> times.snapshot()
HistogramSnapshot(bounds=(0.01, 0.1), counts=(1, 1, 1), total=7.102)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
)  # fmt: skip
"""Bounds for durations, from a small request to a store that hangs."""


class HistogramSnapshot(NamedTuple):
    """Content of a histogram at one moment."""

    bounds: tuple[float, ...]
    """upper bound of each bucket but the last, which has none"""
    counts: tuple[int, ...]
    """number of values in each bucket alone; one more than there are bounds"""
    total: float
    """sum of all values"""

    @property
    def observed(self) -> int:
        """Number of observed values."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket that completes `share` (0 to 1) of all values: inf for the
        last bucket, 0 without values."""
        wanted, cumulated = share * self.observed, 0
        if not wanted:
            return 0.0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            cumulated += count
            if cumulated >= wanted:
                return bound
        raise AssertionError("share is above 1")


class Histogram:
    """Counts of values by bucket. `observe` is for the hot path: a bisection and two additions."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        """ascending; a value belongs to the first bound that is not below it"""
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the values of a histogram with the same bounds."""
        assert self.bounds == other.bounds
        for at, count in enumerate(other.counts):
            self.counts[at] += count
        self.total += other.total

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self.bounds, tuple(self.counts), self.total)
