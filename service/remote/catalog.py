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
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.types import TopicIdPartition

NO_VERSION = 0
IN_BUCKET: Final = -1
"""Stands for a broker's id: the partition's objects in the bucket, not a replica's log."""
MAX_ERASURES: Final = 64
"""Orders of an erasure in the metadata at a time, done ones among them."""
MAX_ERASURE_KEYS: Final = 100_000
MAX_ERASURE_TOPICS: Final = 10_000
MAX_ERASURE_PARTITIONS: Final = 1_000_000
"""Partitions of the topics of all orders together, counted for each order."""
MAX_REWRITE_SPAN: Final = 1 << 31
"""Offsets of a run are below its base plus this: an object's records have 32 bits for theirs."""


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


class RewriteKind(IntEnum):
    """Rule by which a run of segments is written anew."""

    MERGE = 1
    ERASE = 2


class RewriteIntent(NamedTuple):
    """A run of a partition's chain that is being written anew; both offsets are inclusive.

    It counts in the leader epoch in which it began, and ends with its commit. Objects made for it are dead
    once it is gone.
    """

    rewrite_id: UUID
    base_offset: int
    last_offset: int
    kind: RewriteKind
    leader_epoch: int
    started_ms: int

    def is_again(self, other: RewriteIntent) -> bool:
        """Return whether `other` is this rewrite, asked for at another time."""
        return other._replace(started_ms=self.started_ms) == self

    def malformed(self) -> str | None:
        """Return why no rewrite can be like this; None when one can."""
        if not self.rewrite_id.int:
            return "no id"
        if self.base_offset < 0 or self.last_offset < self.base_offset:
            return f"offsets {self.base_offset} to {self.last_offset}"
        if self.last_offset - self.base_offset >= MAX_REWRITE_SPAN:
            return f"a run of {self.last_offset - self.base_offset + 1} offsets"
        if self.leader_epoch < 0 or self.started_ms < 0:
            return "negative epoch or time"
        return None


class RewriteAnswer(Enum):
    """Answer of the catalog to the begin of a rewrite. Only BEGUN has changed anything."""

    BEGUN = "begun"
    FENCED = "fenced"
    """The asker does not lead the partition in that epoch."""
    BUSY = "busy"
    """Another rewrite of the partition lives, the chain does not have these offsets (any more), or erasures
    decide: no merge begins on a topic with an open one, no erasure without one."""
    UNKNOWN_PARTITION = "unknown-partition"
    """The topic was deleted, or never existed."""


class Erasure(NamedTuple):
    """Order to erase the records of some keys from some topics. The keys are not in the metadata: the object
    `key` has their hashes, the ends of partitions, and what else only those who erase need.

    `stored_size` and `crc32c` are of that object. `done_ms` is -1 while the order is open. `is_restored`: the
    cluster was restored from a bucket, and the records may be back.
    """

    id: UUID
    key: str
    stored_size: int
    crc32c: int
    keys: int
    topics: tuple[UUID, ...]
    started_ms: int
    done_ms: int = -1
    is_restored: bool = False

    @property
    def is_open(self) -> bool:
        return self.done_ms < 0

    def malformed(self) -> str | None:
        """Return why no order can be like this; None when one can."""
        if not self.id.int:
            return "no id"
        if not self.key:
            return "no object"
        if self.stored_size <= 0 or not 0 <= self.crc32c < 1 << 32:
            return f"an object of {self.stored_size} bytes with checksum {self.crc32c}"
        if not 0 < self.keys <= MAX_ERASURE_KEYS:
            return f"{self.keys} keys; from 1 to {MAX_ERASURE_KEYS} are allowed"
        if not 0 < len(self.topics) <= MAX_ERASURE_TOPICS or len({*self.topics}) < len(self.topics):
            return f"{len(self.topics)} topics; from 1 to {MAX_ERASURE_TOPICS} different ones are allowed"
        if self.started_ms < 0 or self.done_ms < -1:
            return "negative time"
        return None


class ErasedPlace(NamedTuple):
    """Partition in which an order's records are erased: from the log of a replica, or from the bucket.

    `leader_epoch` is the partition's, in the image of whoever tells.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int


Notes = Mapping[tuple[UUID, int], Collection[ErasedPlace]]
"""Places that are told to be clean, by (order's id, broker's id or `IN_BUCKET`)."""
ErasedPlaces = Mapping[tuple[UUID, int], frozenset[int]]
"""Brokers whose logs of a partition are clean, by (topic id, partition); `IN_BUCKET` for its objects."""


class CatalogCommit(NamedTuple):
    """One compare-and-set: `entry` replaces the one of version `previous_version` (0: there is none).

    `rewrite_id`: the intent that the entry fulfils, which ends with the commit; None for other changes.
    """

    tip: TopicIdPartition
    previous_version: int
    entry: CatalogEntry
    rewrite_id: UUID | None = None


class LoadedCut(NamedTuple):
    """Records that a restore has loaded into a log from tails: below `end_offset` those of this cut have all
    that the chain lacks."""

    cut_id: UUID
    end_offset: int


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
    NO_INTENT = "no-intent"
    """The commit carries the id of a rewrite that the partition does not have (any more)."""


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
    """The catalog of a node, which also has rewrites and erasures, and notes what a restore has left to do.

    What changes something raises `StorageError` when the outcome is unknown; repeating the call does no harm.
    It raises `RequestError` where the controller refuses: UNSUPPORTED_VERSION below the feature level of
    rewrites, INVALID_REQUEST for what is invalid in itself.
    """

    async def tails_loaded(self, loaded: Collection[LoadedTail]) -> None:
        """Note that restored partitions have their tails; those that this node does not lead in that epoch
        are ignored.

        Raises `StorageError` or `RequestError` when the outcome is unknown; repeating the call does no harm.
        """

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        """Return the partition's live intent in this node's image."""

    async def begin_rewrite(self, tip: TopicIdPartition, intent: RewriteIntent) -> RewriteAnswer:
        """Put the intent into the metadata. Asked again for the same rewrite, the answer is BEGUN again."""

    async def give_up_rewrite(self, tip: TopicIdPartition, rewrite_id: UUID) -> None:
        """Remove the intent with this id; ignored where it is not the partition's, or another node leads."""

    def erasures(self) -> Mapping[UUID, Erasure]:
        """Return the orders in this node's image, done ones among them."""

    def erased(self, erasure_id: UUID) -> ErasedPlaces:
        """Return what is clean of an order's records, in this node's image.

        A broker's note goes when its replica goes, or moves to another directory.
        """

    async def note_erased(self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int) -> None:
        """Note that places are clean: logs of this node (`broker_id` is its own), or objects of partitions
        that it leads (`IN_BUCKET`).

        Ignored are places of another leader epoch than the partition's, of topics that the order does not
        have, of partitions of which this node is no replica or, for `IN_BUCKET`, not the leader, and orders
        that are gone: the image tells. Notes of many calls go in few requests.
        """

    async def start_erasure(self, erasure: Erasure) -> None:
        """Put an order into the metadata. The same one again does no harm.

        Raises `RequestError` INVALID_REQUEST for an order that no cluster can have, UNKNOWN_TOPIC_ID,
        INVALID_TOPIC_EXCEPTION for an internal topic, POLICY_VIOLATION for a compacted one or too many.
        """

    async def finish_erasure(self, erasure_id: UUID, done_ms: int) -> None:
        """Note that an order is fulfilled; ignored where it is done already, or gone.

        Raises `RequestError` INVALID_REQUEST while a partition of its topics is not noted as clean by all of
        its replicas and in the bucket.
        """

    async def remove_erasure(self, erasure_id: UUID) -> None:
        """Remove an order, done or not, and all notes of it; ignored where it is gone."""


def decide_commit(
    current: CatalogEntry | None,
    *,
    previous_version: int,
    entry: CatalogEntry,
    leader_epoch: int,
    rewrite_id: UUID | None = None,
    intent: RewriteIntent | None = None,
) -> CatalogResult:
    """Decide a commit (invariants T6, T23 and T25). `leader_epoch` is the partition's epoch in the committed
    image; `intent` is its rewrite there, live or not.

    A commit that repeats the current entry exactly is COMMITTED again: its first answer was lost. One that
    carries a `rewrite_id` leaves the chain's ends, and does not make its segments more. Raises `ValueError`
    for an entry that no chain can have (a bug, or a malicious peer).
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
    if rewrite_id is None:
        return CatalogResult.COMMITTED
    if intent is None or (intent.rewrite_id, intent.leader_epoch) != (rewrite_id, leader_epoch):
        return CatalogResult.NO_INTENT
    reason = _changes_more(current, entry)
    if reason is not None:
        raise ValueError(reason)
    return CatalogResult.COMMITTED


def _changes_more(current: CatalogEntry | None, entry: CatalogEntry) -> str | None:
    """Return what a rewrite must not change and `entry` does; None where it does not."""
    if current is None:
        return "a rewrite of a chain that never was"
    if (entry.start_offset, entry.end_offset) != (current.start_offset, current.end_offset):
        return (
            f"a rewrite moves the chain from {current.start_offset}..{current.end_offset} to "
            f"{entry.start_offset}..{entry.end_offset}"
        )
    if entry.segments > current.segments:
        return f"a rewrite makes {entry.segments} segments of {current.segments}"
    return None


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
