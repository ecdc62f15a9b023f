"""Judgement of a cut: what it still lacks before everything below its ends is in chains or in tails. [P]

A row whose records below `end` are all in the chain or in tails says so by `saved`; one whose segment is
awaited by `waits`. Any other partition is not tailed: it comes back as far as its chain goes, and a complete
cut lacks nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.steps import Steps
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import NO_LEADER, PartitionCut
from service.tiering.cuts.tail_table import TailTable
from service.wire.cuts import CutLoss, CutLosses

Rows = Mapping[UUID, tuple[PartitionCut, ...]]
EntryOf = Callable[[UUID, int], CatalogEntry | None]


_MOST_LOST: Final = 10_000
"""Partitions that one request tells as lost."""


class Lack(NamedTuple):
    """One partition that a cut is incomplete without: its chain must reach `end`, with records of
    `leader_epoch` or of epochs before. Chain and tails have what is below `reaches`."""

    topic_id: UUID
    partition: int
    end: int
    leader_epoch: int
    reaches: int


def chain_end_of(entry: CatalogEntry | None) -> int:
    """Return where the chain ends, exclusive; 0 without one."""
    return entry.end_offset if entry is not None and entry.segments else 0


def lacks_of(table: TailTable, topics: Rows, entry_of: EntryOf, *, is_new: bool = False) -> Steps[list[Lack]]:
    """Choose the tails of each partition, and return what they and the chains lack, in steps. Of a cut that
    `is_new` a chain that a later leader has continued since counts as lacking until it is looked at."""
    found: list[Lack] = []
    for topic_id, rows in topics.items():
        for partition, row in enumerate(rows):
            yield
            entry = entry_of(topic_id, partition)
            start = max(row.start, chain_end_of(entry))
            reaches = table.update((topic_id, partition), start, max(start, row.tailed_end))
            if row.is_promised and (reaches < row.end or (is_new and _is_of_later(entry, row))):
                found.append(Lack(topic_id, partition, row.end, row.leader_epoch, reaches))
    return found


def _is_of_later(entry: CatalogEntry | None, row: PartitionCut) -> bool:
    """Return whether a later leader has continued the chain since the cut: its records may be others."""
    return entry is not None and row.leader_epoch != NO_LEADER and entry.leader_epoch > row.leader_epoch


def without_lost(topics: Rows, lacks: Iterable[Lack]) -> Steps[dict[UUID, tuple[PartitionCut, ...]]]:
    """Return the rows of a cut some of whose tails are lost: what they had counts as awaited, not as saved.

    So the cut says no more than it has, and whoever leads the partition next saves it again.
    """
    changed: dict[UUID, list[PartitionCut]] = {}
    for lack in lacks:
        yield
        row = topics[lack.topic_id][lack.partition]
        if row.saved > lack.reaches:
            row = row._replace(
                saved=lack.reaches,
                saved_high=min(row.saved_high, lack.reaches),
                last_epoch=NO_LEADER,
                waits=True,
            )
            if lack.topic_id not in changed:
                changed[lack.topic_id] = list(topics[lack.topic_id])
            changed[lack.topic_id][lack.partition] = row
    return {**topics, **{topic_id: tuple(rows) for topic_id, rows in changed.items()}}


def losses_of(topics: Rows, lacks: Iterable[Lack]) -> tuple[CutLosses, ...]:
    """Return the partitions some of whose tails are lost, for their leaders to save them again; the others
    next time."""
    found: dict[UUID, list[CutLoss]] = {}
    for lack in islice(
        (one for one in lacks if topics[one.topic_id][one.partition].saved > one.reaches), _MOST_LOST
    ):
        loss = CutLoss(partition=lack.partition, leader_epoch=lack.leader_epoch, reaches=lack.reaches)
        found.setdefault(lack.topic_id, []).append(loss)
    return tuple(CutLosses(topic_id=topic, partitions=tuple(rows)) for topic, rows in found.items())


def differs(topics: Rows, before: Rows, entry_of: EntryOf) -> Steps[bool]:
    """Return, in steps, whether a cut with these rows would say more than the one `before`."""
    if topics.keys() != before.keys():
        return True
    for topic_id, rows in topics.items():
        known = before[topic_id]
        if len(rows) != len(known):
            return True
        for partition, (row, old) in enumerate(zip(rows, known, strict=True)):
            yield
            if (row.start, row.end, row.stable) != (old.start, old.end, old.stable):
                return True
            if row.saved > max(old.saved, chain_end_of(entry_of(topic_id, partition))):
                return True  # records are saved whose segment the cut before waits for
    return False


def gone(table: TailTable, topics: Rows, metadata_id: UUID) -> Steps[list[tuple[UUID, int]]]:
    """Return, in steps, the places of the table that the rows do not have any more."""
    found: list[tuple[UUID, int]] = []
    for topic_id, partition in table.places:
        yield
        if topic_id != metadata_id and partition >= len(topics.get(topic_id, ())):
            found.append((topic_id, partition))
    return found
