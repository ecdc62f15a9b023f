"""Tails that the newest cut needs, as its keeper knows them: how far they reach behind each chain. [P]

Rebuilt from the newest cut's tails when a broker becomes the keeper. The work of a cut goes with the
partitions that have changed since the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from service.base.steps import Steps
from service.remote.format.coverage import Span, cover
from service.remote.format.cut_codec import Place, TailRef
from service.remote.format.tail_object import TailSection


class TailTable:
    """Tails that the newest cut needs. Owned by the event loop."""

    def __init__(self) -> None:
        self._refs: dict[str, TailRef] = {}
        self._spans: dict[Place, list[Span]] = {}
        self._covered: dict[Place, tuple[int, int, int]] = {}
        """start, end and how far tails reach, as last updated"""
        self._needed: Counter[str] = Counter()
        """sections that are needed of each tail"""
        self._changed: set[Place] = set()

    def add(self, ref: TailRef, level: int, sections: Iterable[TailSection]) -> Steps[None]:
        """Add a tail whose footer was read, in steps."""
        if ref.key in self._refs:
            return
        self._refs[ref.key] = ref
        for section in sections:
            yield
            place = section.topic_id, section.partition
            self._spans.setdefault(place, []).append(Span(ref.key, level, section))
            self._needed[ref.key] += 1
            self._changed.add(place)

    def update(self, place: Place, start: int, end: int) -> int:
        """Choose the sections of one partition from `start`, where its chain ends, to `end`; return how far
        they reach. Those that are not needed are forgotten."""
        known = self._covered.get(place)
        if known is not None and known[:2] == (start, end) and place not in self._changed:
            return known[2]
        self._changed.discard(place)
        spans = self._spans.pop(place, [])
        found = cover(spans, start, end)
        # What lies behind a gap is needed once the chain has closed it.
        beyond = [span for span in spans if span.section.first_offset > found.reaches]
        kept = list(dict.fromkeys((*(piece.span for piece in found.pieces), *beyond)))
        if kept:
            self._spans[place] = kept
        for span in spans:
            self._needed[span.tail] -= 1
        for span in kept:
            self._needed[span.tail] += 1
        self._covered[place] = start, end, found.reaches
        return found.reaches

    def forget(self, places: Iterable[Place]) -> Steps[None]:
        """Forget partitions that no longer exist, in steps."""
        for place in places:
            yield
            self._covered.pop(place, None)
            self._changed.discard(place)
            for span in self._spans.pop(place, ()):
                self._needed[span.tail] -= 1

    def live(self) -> tuple[TailRef, ...]:
        """Return the tails that are needed, oldest first, and forget the others."""
        self._needed = +self._needed
        self._refs = {key: ref for key, ref in self._refs.items() if key in self._needed}
        return tuple(sorted(self._refs.values()))

    @property
    def places(self) -> tuple[Place, ...]:
        """Partitions that have sections."""
        return tuple(self._spans)

    @property
    def changed(self) -> tuple[Place, ...]:
        """Partitions that have sections which were added since they were last updated."""
        return tuple(self._changed)
