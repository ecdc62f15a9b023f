"""Coverage of one partition by tails: the sections that have its records behind its chain, and how far. [P]

Sections may overlap: level 1 has again what level 0 has, and a leader that does not have the bytes which an
earlier one saved begins anew. So a section takes the place of everything from its first offset on that was
saved in an earlier leader epoch. Of one epoch, sections with the same offsets have the same bytes but for
what compaction took in between: the one that was written last is the log's.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from service.remote.format.tail_object import TailSection


class Span(NamedTuple):
    """A section of a tail: the tail's key and level."""

    tail: str
    level: int
    section: TailSection


class Piece(NamedTuple):
    """Offsets from `first` to `end`, exclusive, to be taken from one section."""

    span: Span
    first: int
    end: int


class Coverage(NamedTuple):
    """Sections to read, in order of offsets without a gap, and the offset up to which they reach."""

    pieces: tuple[Piece, ...]
    reaches: int


def cover(spans: Iterable[Span], start: int, end: int) -> Coverage:
    """Return the sections that have all offsets from `start` on, at most up to `end`, exclusive.

    Where one is missing the result ends before it. Of sections with the same offsets the one that was written
    last is taken: that with the greatest key.
    """
    by_age = sorted(_valid(spans), key=lambda one: one[0].tail)
    firsts = [span.section.first_offset for span, _ in by_age]
    waiting = sorted(range(len(by_age)), key=firsts.__getitem__, reverse=True)
    begun: list[int] = []  # a heap, the newest first
    pieces: list[Piece] = []
    at = start
    while at < end:
        while waiting and firsts[waiting[-1]] <= at:
            heappush(begun, -waiting.pop())
        while begun and by_age[-begun[0]][1] <= at:
            heappop(begun)
        if not begun:
            break
        age = -begun[0]
        span, limit = by_age[age]
        after = min(limit, end)
        while waiting and firsts[waiting[-1]] < after:
            other = waiting[-1]
            if other > age and firsts[other] < by_age[other][1]:
                after = firsts[other]
            else:
                heappush(begun, -waiting.pop())
        pieces.append(Piece(span, at, after))
        at = after
    return Coverage(tuple(pieces), at)


def _valid(spans: Iterable[Span]) -> list[tuple[Span, int]]:
    """Return each section with the offset below which no later epoch took its place."""
    newest_first = sorted(spans, key=lambda span: -span.section.leader_epoch)
    found: list[tuple[Span, int]] = []
    limit: int | None = None
    lowest: int | None = None
    epoch: int | None = None
    for span in newest_first:
        section = span.section
        if section.leader_epoch != epoch:
            epoch, limit = section.leader_epoch, lowest
        if lowest is None or section.first_offset < lowest:
            lowest = section.first_offset
        found.append((span, section.end_offset if limit is None else min(limit, section.end_offset)))
    return found
