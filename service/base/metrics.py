"""What is counted while work is done: plain integers, and histograms of fixed buckets. [P]

Each room keeps its counters in dataclasses with slots in its `metrics.py`, made by who counts or handed in.
The hot path does ``metrics.requests += 1`` or ``metrics.time.observe(0.0003)``, and nothing else; whoever
scrapes reads. An increment of an attribute or of an item is one step between two points at which CPython
changes threads, so threads of a pool count without a lock.

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
    """What a histogram had seen at one moment."""

    bounds: tuple[float, ...]
    """greatest value of each bucket but the last, which has none"""
    counts: tuple[int, ...]
    """values in each bucket alone, one more than there are bounds"""
    total: float
    """sum of all values"""

    @property
    def observed(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The bound of the bucket in which `share` (0 to 1) of all values have come together; inf where that
        is the last, 0 where nothing was seen."""
        wanted, seen = share * self.observed, 0
        if not wanted:
            return 0.0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        raise AssertionError("more was wanted than there is")


class Histogram:
    """Counts of values by size. `observe` is for the hot path: a bisection and two additions."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        """ascending; a value belongs to the first that is not less than it"""
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self.bounds, tuple(self.counts), self.total)
