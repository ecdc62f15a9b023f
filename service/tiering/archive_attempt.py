"""What a unit of work of a partition has in hand: what all partitions share, and what is not settled yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.rate import Rate
from service.base.types import TopicIdPartition
from service.remote.catalog import NO_VERSION, Catalog, CatalogCommit, CatalogEntry
from service.remote.format.manifest import Child, PageRef, SegmentEntry
from service.remote.format.segment_object import SegmentIdentity
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import Chain
from service.remote.stores.store import ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.commits import CommitQueue
from service.tiering.eraser import Eraser
from service.tiering.fence import Fence
from service.tiering.lifecycle import SegmentState
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool
from service.tiering.planner import Copy, SegmentSpan
from service.tiering.ports import TieringSettings
from service.tiering.steps import Probe
from service.tiering.store_clock import StoreClock


@dataclass(frozen=True, slots=True)
class Tools:
    """What all partitions of a node share."""

    cluster_id: str
    store: ObjectStore
    chains: ChainStore
    catalog: Catalog
    commits: CommitQueue
    pool: OffloadPool
    eraser: Eraser
    clock: Clock
    settings: TieringSettings
    metrics: TieringMetrics
    new_uuid: Callable[[], UUID]
    stamps: Callable[[], Stamp]
    probe: Probe
    fence: Fence
    store_clock: StoreClock
    copy_rate: Rate
    hurries: Callable[[TopicIdPartition], bool]
    """whether the disk of a partition fills up, so that it is copied before others"""


class Sum(NamedTuple):
    """A number of segments, and the bytes of their objects."""

    segments: int
    bytes: int


NOTHING: Final = Sum(0, 0)


@dataclass(slots=True)
class Proposal:
    """A manifest that is written and whose commit is not settled yet.

    `retired` are keys that nobody needs once it is committed; `written` those that nobody needs if it
    never is.
    """

    commit: CatalogCommit
    chain: Chain
    copied: tuple[SegmentEntry, ...]
    dropped: Sum
    retired: tuple[str, ...]
    written: tuple[str, ...]
    state: SegmentState


class Oldest(NamedTuple):
    """The first segment of the chain at some start offset, or the page that it is in while none of that can
    go; and when it was uploaded if that decides its age."""

    start_offset: int
    part: Child
    uploaded_at_ms: int

    @property
    def ages_from_ms(self) -> int:
        """From when on it grows old, as `expiry` has it."""
        part = self.part
        timestamp = part.min_timestamp if isinstance(part, PageRef) else part.max_timestamp
        return timestamp if timestamp >= 0 else self.uploaded_at_ms

    @property
    def goes_at_bytes(self) -> int:
        """By so much the log must exceed `retention.bytes` before any of it goes."""
        return 1 if isinstance(self.part, PageRef) else self.part.size_bytes


class ClockDoubted(StorageError):
    """Our clock and the store's disagree, so that neither decides what is deleted."""


class CommitRefused(StorageError):
    """The catalog said no: another leader, another version, no such topic. Look at it again, later."""


class Deposed(StorageError):
    """Another node leads the partition by now, or this one in another epoch: what was begun is left there."""


class Attempt:
    """The keys that one try writes. They are guarded against the sweeper until it is settled."""

    def __init__(self, eraser: Eraser, check: Callable[[], None]) -> None:
        """`check` raises where nothing more may be written."""
        self._eraser = eraser
        self._check = check
        self.keys: tuple[str, ...] = ()

    def writes(self, key: str) -> None:
        """Called before anything is written under `key`; from offload threads too, one at a time."""
        self._check()
        self.keys = (*self.keys, key)
        self._eraser.guard(key)

    def failed(self, tip: TopicIdPartition, due_ms: int) -> None:
        """Nothing of it was ever proposed, so it may go; what arrives later still is the sweeper's."""
        self._eraser.release(self.keys)
        self._eraser.schedule(tip, self.keys, due_ms)


def commit_of(tip: TopicIdPartition, entry: CatalogEntry | None, chain: Chain) -> CatalogCommit:
    """What replaces `entry` by one that names `chain`."""
    return CatalogCommit(tip, entry.version if entry is not None else NO_VERSION, catalog_entry(chain))


def catalog_entry(chain: Chain) -> CatalogEntry:
    """The catalog entry that names `chain`."""
    manifest = chain.manifest
    return CatalogEntry(
        version=manifest.version,
        manifest_key=chain.key,
        leader_epoch=manifest.leader_epoch,
        start_offset=manifest.start_offset,
        end_offset=manifest.end_offset,
        segments=manifest.segments,
        size_bytes=manifest.size_bytes,
    )


def identity_of(
    tip: TopicIdPartition, copy: Copy[SegmentSpan], leader_epoch: int, cluster_id: str, uuid: UUID
) -> SegmentIdentity:
    """What the object says of itself that holds `copy`."""
    return SegmentIdentity(
        cluster_id=cluster_id,
        topic_id=tip.topic_id,
        topic=tip.topic,
        partition=tip.partition,
        base_offset=copy.from_offset,
        last_offset=copy.segment.last_offset,
        leader_epoch=leader_epoch,
        uuid=uuid,
    )
