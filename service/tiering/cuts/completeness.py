"""Judgement of a cut: what it still lacks before everything below its ends is in chains or in tails. [P]

A row whose records below `end` are all in the chain or in tails says so by `saved`; one whose segment is
awaited by `waits`. Any other partition is not tailed: it comes back as far as its chain goes, and a complete
cut lacks nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from service.base.steps import Steps
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import PartitionCut
from service.tiering.cuts.tail_table import TailTable

Rows = Mapping[UUID, tuple[PartitionCut, ...]]
EntryOf = Callable[[UUID, int], CatalogEntry | None]


class Lack(NamedTuple):
    """One partition that a cut is incomplete without: its chain must reach `end`, with records of
    `leader_epoch` or of epochs before."""

    topic_id: UUID
    partition: int
    end: int
    leader_epoch: int


def has_to_be_saved(row: PartitionCut) -> bool:
    """Return whether a complete cut has all records of this partition."""
    return row.end > row.start and (row.waits or row.saved >= row.end)


def chain_end_of(entry: CatalogEntry | None) -> int:
    """Return where the chain ends, exclusive; 0 without one."""
    return entry.end_offset if entry is not None and entry.segments else 0


def lacks_of(table: TailTable, topics: Rows, entry_of: EntryOf) -> Steps[list[Lack]]:
    """Choose the tails of each partition, and return what they and the chains lack, in steps."""
    found: list[Lack] = []
    for topic_id, rows in topics.items():
        for partition, row in enumerate(rows):
            yield
            start = max(row.start, chain_end_of(entry_of(topic_id, partition)))
            reaches = table.update((topic_id, partition), start, row.end)
            if reaches < row.end and has_to_be_saved(row):
                found.append(Lack(topic_id, partition, row.end, row.leader_epoch))
    return found


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


def gone(table: TailTable, topics: Rows, metadata_id: UUID) -> Iterator[tuple[UUID, int]]:
    """Yield the places of the table that the rows do not have any more."""
    for topic_id, partition in table.places:
        if topic_id != metadata_id and partition >= len(topics.get(topic_id, ())):
            yield topic_id, partition
