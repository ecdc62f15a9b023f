"""Plan which objects of a chain are written anew together. [P]

A partition has one intent at a time, so a stretch of neighbours has one intent, and becomes several objects
that are made at the same time. Each part of it is what a broker's own worker takes as a run (`fits`).

>>> from uuid import UUID
>>> def entry(base):
...     return SegmentEntry(base, base + 9, 30, 10, 0, 0, ((0, 0),), f"{base}.seg", 10, 0)
>>> tip = TopicIdPartition(UUID(int=7), "people", 0)
>>> hits = [HitObject(0, entry(base)) for base in (0, 10, 20, 40)]
>>> [[part.base_offset for part in one.parts] for one in find_stretches(tip, hits, StretchLimits(20, 1000))]
[[0, 20], [40]]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from service.base.types import TopicIdPartition
from service.remote.catalog import MAX_REWRITE_SPAN
from service.remote.format.manifest import SegmentEntry
from service.remote.format.run_check import MAX_RUN_SEGMENTS
from service.tiering.rewriting.rules import ChainRun, fits_one_object

MOST_LOG_BYTES: Final = 1 << 30
"""Most bytes of the log of an object that is made of several."""


class HitObject(NamedTuple):
    """An object with records of the keys. `unit`: number of the page, or of the manifest, that lists it."""

    unit: int
    entry: SegmentEntry


class StretchLimits(NamedTuple):
    """Most bytes of a log that become one object, and of all that one intent covers."""

    object_bytes: int
    stretch_bytes: int


class Stretch(NamedTuple):
    """Neighbours under one intent; each part becomes one object."""

    run: ChainRun
    parts: tuple[ChainRun, ...]


def fits(run: Sequence[SegmentEntry], one: SegmentEntry, run_bytes: int) -> bool:
    """Return whether an object may be written anew together with the run before it, as one object."""
    return fits_one_object(run, one, min(run_bytes, MOST_LOG_BYTES))


def find_stretches(
    tip: TopicIdPartition,
    hits: Iterable[HitObject],
    limits: StretchLimits,
    alone: Collection[str] = (),
) -> list[Stretch]:
    """Return the stretches of a chain, in the order of its offsets, as the hits are.

    `alone`: keys of objects that are not written anew together with others, as one of them may be damaged.
    """
    return [_stretch(tip, part) for part in _neighbours(hits, limits, alone)]


def _neighbours(
    hits: Iterable[HitObject], limits: StretchLimits, alone: Collection[str]
) -> Iterator[list[list[SegmentEntry]]]:
    """Yield the parts of each stretch."""
    parts: list[list[SegmentEntry]] = []
    unit = count = size = 0
    for hit in hits:
        entry = hit.entry
        if parts and (
            hit.unit != unit
            or entry.base_offset != parts[-1][-1].last_offset + 1
            or count >= MAX_RUN_SEGMENTS
            or size + entry.log_length > limits.stretch_bytes
            or entry.last_offset - parts[0][0].base_offset >= MAX_REWRITE_SPAN
            or entry.key in alone
            or parts[-1][-1].key in alone
        ):
            yield parts
            parts, count, size = [], 0, 0
        if parts and fits(parts[-1], entry, limits.object_bytes):
            parts[-1].append(entry)
        else:
            parts.append([entry])
        unit, count, size = hit.unit, count + 1, size + entry.log_length
    if parts:
        yield parts


def _stretch(tip: TopicIdPartition, parts: list[list[SegmentEntry]]) -> Stretch:
    run = ChainRun(tip, tuple(entry for part in parts for entry in part))
    return Stretch(run, tuple(ChainRun(tip, tuple(part), run.generation) for part in parts))
