"""Cuts as the bucket page shows them: those that are kept, and what the newest one lacks. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from service.remote.format.cut_codec import Cut, CutRef, Place

MOST_MISSING: Final = 50


class MissingPart(NamedTuple):
    """A partition of which the newest cut awaits a segment, with the offsets from `reached` to `end`,
    exclusive."""

    topic: str
    partition: int
    reached: int
    end: int


class CutsShown(NamedTuple):
    """Content of `CUT`: the cuts that are kept, oldest first, and what the newest one lacks.

    `problem`: why that is not known.
    """

    kept: tuple[CutRef, ...] = ()
    missing: tuple[MissingPart, ...] = ()
    missing_count: int = 0
    problem: str | None = None
    orders: int = 0
    """orders to erase keys that it lists"""


def missing_of(
    cut: Cut, names: Mapping[UUID, str], chain_ends: Mapping[Place, int]
) -> tuple[tuple[MissingPart, ...], int]:
    """Return the first partitions that lack records at a cut, by topic, and the number of all of them.

    `chain_ends`: how far chains are known to reach now; a segment that came since has what was awaited.
    """
    found: list[MissingPart] = []
    for topic_id, rows in cut.topics.items():
        for partition, row in enumerate(rows):
            reached = max(row.saved, chain_ends.get((topic_id, partition), 0))
            if row.waits and reached < row.end:
                name = names.get(topic_id, str(topic_id))
                found.append(MissingPart(name, partition, reached, row.end))
    found.sort()
    return tuple(found[:MOST_MISSING]), len(found)


def awaited(cut: Cut) -> Iterable[Place]:
    """Return the partitions that wait for a segment at a cut."""
    return [
        (topic_id, partition)
        for topic_id, rows in cut.topics.items()
        for partition, row in enumerate(rows)
        if row.waits
    ][:MOST_MISSING]


def cut_end(cut: Cut, place: Place) -> int:
    """Return where a partition ends at a cut."""
    return cut.topics[place[0]][place[1]].end
