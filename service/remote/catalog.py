"""Catalog of live segments, as the tiering room needs it: one compare-and-set per partition. [P]

One `CatalogEntry` per partition, held in the metadata image, decides which objects are live. It names the
partition's current manifest and sums it up. It changes only through `Catalog.commit`, whose rule is
`decide_commit`; every implementation (the controller, the in-memory one of the tests) applies that function.

>>> first = CatalogEntry(
...     version=1, manifest_key="m", leader_epoch=4, start_offset=0, end_offset=9, segments=1, size_bytes=1
... )
>>> decide_commit(None, previous_version=0, entry=first, leader_epoch=4)
<CatalogResult.COMMITTED: 'committed'>
>>> decide_commit(first, previous_version=0, entry=first, leader_epoch=4)
<CatalogResult.COMMITTED: 'committed'>
>>> decide_commit(None, previous_version=0, entry=first, leader_epoch=5)
<CatalogResult.FENCED: 'fenced'>
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

from service.base.types import TopicIdPartition

NO_VERSION = 0


class CatalogEntry(NamedTuple):
    """Entry of one partition in the metadata image: its current manifest, and the manifest's sums.

    `end_offset` is exclusive; `size_bytes` counts whole objects, footers included. `leader_epoch` is the
    epoch of the leader that committed the entry, not of its records. A chain that lost its last segment keeps
    an entry with `segments` 0 and `start_offset == end_offset`, so that versions never start over. A chain
    that was given up, because tiering was switched off, ends at 0: its offsets may be copied again.
    """

    version: int
    manifest_key: str
    leader_epoch: int
    start_offset: int
    end_offset: int
    segments: int
    size_bytes: int

    @property
    def is_given_up(self) -> bool:
        """True where nothing is in the bucket and the chain may restart at any offset."""
        return self.end_offset == 0


class Tombstone(NamedTuple):
    """A deleted topic that may still have objects in the bucket: partitions 0 to `partitions` - 1."""

    topic_id: UUID
    name: str
    partitions: int
    deleted_ms: int


class CatalogCommit(NamedTuple):
    """One compare-and-set: `entry` replaces the one of version `previous_version` (0: there is none)."""

    tip: TopicIdPartition
    previous_version: int
    entry: CatalogEntry


class LoadedTail(NamedTuple):
    """A restored partition whose tails its leader, in this epoch, has in its log, as have all in-sync
    replicas."""

    topic_id: UUID
    partition: int
    leader_epoch: int


class CatalogResult(Enum):
    """Answer of the catalog to a commit. Only COMMITTED may have changed something."""

    COMMITTED = "committed"
    FENCED = "fenced"
    """The committer's leader epoch is not the partition's current one."""
    VERSION_CONFLICT = "version-conflict"
    """The current entry is not the one that the committer started from."""
    UNKNOWN_PARTITION = "unknown-partition"
    """The topic was deleted, or never existed."""


class Catalog(Protocol):
    """The quorum's compare-and-set, as seen by one node. Methods are called on the event loop."""

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Answer each commit, in order.

        Raises `StorageError` when the outcome is unknown (no quorum, time-out): the caller must read `entry`,
        or commit the same entry again, before it concludes anything.
        """

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        """Return the committed entry in this node's image; None where nothing was ever committed."""

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        """Return deleted topics that may still have objects, by topic id, in this node's image."""

    async def forget_topics(self, topic_ids: Collection[UUID]) -> None:
        """Remove the tombstones of topics whose last object is gone; ids without one are ignored.

        Raises `StorageError` when the outcome is unknown; repeating the call does no harm.
        """


class NodeCatalog(Catalog, Protocol):
    """The catalog of a node, which also notes what a restore has left to do."""

    async def tails_loaded(self, loaded: Collection[LoadedTail]) -> None:
        """Note that restored partitions have their tails; those that this node does not lead in that epoch
        are ignored.

        Raises `StorageError` or `RequestError` when the outcome is unknown; repeating the call does no harm.
        """


def decide_commit(
    current: CatalogEntry | None, *, previous_version: int, entry: CatalogEntry, leader_epoch: int
) -> CatalogResult:
    """Decide a commit (invariant T6). `leader_epoch` is the partition's epoch in the committed image.

    A commit that repeats the current entry exactly is COMMITTED again: its first answer was lost. Raises
    `ValueError` for an entry that no chain can have (a bug, or a malicious peer).
    """
    reason = malformed(entry, previous_version)
    if reason is not None:
        raise ValueError(reason)
    if current is not None and current == entry:
        return CatalogResult.COMMITTED
    if entry.leader_epoch != leader_epoch:
        return CatalogResult.FENCED
    if previous_version != (current.version if current is not None else NO_VERSION):
        return CatalogResult.VERSION_CONFLICT
    if (current is not None and not entry.is_given_up) and (
        entry.start_offset < current.start_offset or entry.end_offset < current.end_offset
    ):
        return CatalogResult.VERSION_CONFLICT
    return CatalogResult.COMMITTED


def malformed(entry: CatalogEntry, previous_version: int) -> str | None:
    """Return why `entry` cannot follow `previous_version`; None when it can."""
    if entry.version != previous_version + 1:
        return f"version {entry.version} does not follow {previous_version}"
    if not entry.manifest_key:
        return "no manifest key"
    if entry.leader_epoch < 0 or entry.start_offset < 0 or entry.segments < 0 or entry.size_bytes < 0:
        return "negative epoch, offset, count or size"
    if entry.end_offset < entry.start_offset:
        return f"offsets end at {entry.end_offset}, before they start at {entry.start_offset}"
    if (entry.segments == 0) != (entry.start_offset == entry.end_offset):
        return f"{entry.segments} segments for offsets {entry.start_offset} to {entry.end_offset}"
    return None
