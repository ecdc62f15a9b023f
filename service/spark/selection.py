"""Sets of the offsets and timestamps that a read wants of a partition. [P]

A `Window` holds slabs of offsets, sorted and disjoint, each with the timestamps that are wanted within it.
Windows have union, intersection and complement. Ranges are half open, timestamps are milliseconds::

    offset < 10 or timestamp >= 500   ->   Slab(0, 10, everything), Slab(10, end, 500 to the end)

A window has at most two slabs and two spans of time per constant of the filter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import and_, or_
from typing import Final, NamedTuple

from service.remote.format.keys import MAX_OFFSET

MIN_TIMESTAMP: Final = -(1 << 63)
END_OF_TIME: Final = 1 << 63
END_OF_OFFSETS: Final = MAX_OFFSET + 1

Span = tuple[int, int]
Times = tuple[Span, ...]
"""Spans of milliseconds, sorted and disjoint."""
ALL_TIMES: Final[Times] = ((MIN_TIMESTAMP, END_OF_TIME),)
_Keep = Callable[[bool, bool], bool]


class Slab(NamedTuple):
    """A range of offsets, and the timestamps that are wanted of its records."""

    begin_offset: int
    end_offset: int
    times: Times


@dataclass(frozen=True, slots=True)
class Window:
    """The wanted records of one partition."""

    slabs: tuple[Slab, ...]

    def __bool__(self) -> bool:
        return bool(self.slabs)

    def __and__(self, other: Window) -> Window:
        return _combined(self, other, and_)

    def __or__(self, other: Window) -> Window:
        return _combined(self, other, or_)

    def __invert__(self) -> Window:
        return _combined(EVERYTHING, self, lambda all_of_it, here: all_of_it and not here)

    def between(self, begin_offset: int, end_offset: int) -> list[Slab]:
        """Return the slabs, or parts of them, with offsets in the range."""
        first = max(0, bisect_right(self.slabs, begin_offset, key=lambda slab: slab.begin_offset) - 1)
        found = []
        for slab in self.slabs[first:]:
            if slab.begin_offset >= end_offset:
                break
            begin, end = max(slab.begin_offset, begin_offset), min(slab.end_offset, end_offset)
            if begin < end:
                found.append(Slab(begin, end, slab.times))
        return found

    def may_want(self, first_offset: int, last_offset: int, min_timestamp: int, max_timestamp: int) -> bool:
        """Return whether the window may want a record between these bounds; `min_timestamp` -1 is unknown."""
        if self is EVERYTHING:
            return True
        slabs = self.between(first_offset, last_offset + 1)
        return any(may_match(slab.times, min_timestamp, max_timestamp) for slab in slabs)


EVERYTHING: Final = Window((Slab(0, END_OF_OFFSETS, ALL_TIMES),))
NOTHING: Final = Window(())


def of_offsets(spans: Iterable[Span]) -> Window:
    """Return the window of the records with these offsets.

    >>> of_offsets([(5, 7), (0, 2), (6, 9)]).slabs == (Slab(0, 2, ALL_TIMES), Slab(5, 9, ALL_TIMES))
    True
    """
    inside = [(max(begin, 0), min(end, END_OF_OFFSETS)) for begin, end in spans]
    return Window(tuple(Slab(begin, end, ALL_TIMES) for begin, end in _joined(inside)))


def of_times(spans: Iterable[Span]) -> Window:
    """Return the window of the records with these timestamps, in milliseconds."""
    times = _joined(spans)
    return Window((Slab(0, END_OF_OFFSETS, times),)) if times else NOTHING


def may_match(times: Times, min_timestamp: int, max_timestamp: int) -> bool:
    """Return whether a record between these timestamps may have one of `times`; a minimum -1 is unknown."""
    return any(max_timestamp >= begin and (min_timestamp < 0 or min_timestamp < end) for begin, end in times)


def all_match(times: Times, min_timestamp: int, max_timestamp: int) -> bool:
    """Return whether every record between these timestamps has one of `times`."""
    return any(
        (begin == MIN_TIMESTAMP or (min_timestamp >= 0 and min_timestamp >= begin)) and max_timestamp < end
        for begin, end in times
    )


def _joined(spans: Iterable[Span]) -> Times:
    """Return the spans sorted and disjoint, without empty ones."""
    joined: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return tuple(joined)


def _combined(a: Window, b: Window, keep: _Keep) -> Window:
    """Combine two windows slab by slab, between all borders of both."""
    borders = sorted({border for window in (a, b) for slab in window.slabs for border in slab[:2]})
    slabs: list[Slab] = []
    for begin, end in pairwise(borders):
        times = _combined_times(_times_at(a.slabs, begin), _times_at(b.slabs, begin), keep)
        if not times:
            continue
        if slabs and slabs[-1].end_offset == begin and slabs[-1].times == times:
            slabs[-1] = slabs[-1]._replace(end_offset=end)
        else:
            slabs.append(Slab(begin, end, times))
    return Window(tuple(slabs))


def _times_at(slabs: Sequence[Slab], offset: int) -> Times:
    index = bisect_right(slabs, offset, key=lambda slab: slab.begin_offset) - 1
    return slabs[index].times if index >= 0 and offset < slabs[index].end_offset else ()


def _combined_times(a: Times, b: Times, keep: _Keep) -> Times:
    borders = sorted({border for times in (a, b) for span in times for border in span})
    return _joined(
        (begin, end) for begin, end in pairwise(borders) if keep(_holds(a, begin), _holds(b, begin))
    )


def _holds(times: Times, at: int) -> bool:
    index = bisect_right(times, at, key=lambda span: span[0]) - 1
    return index >= 0 and at < times[index][1]
