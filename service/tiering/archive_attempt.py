"""One attempt to change a partition's archive: context, leader term, written keys, and the proposal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.rate import Rate
from service.base.types import TopicIdPartition
from service.remote.catalog import NO_VERSION, CatalogCommit, CatalogEntry
from service.remote.format.manifest import Child, PageRef, SegmentEntry
from service.remote.format.segment_object import SegmentIdentity
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import Chain
from service.remote.stores.store import ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.commits import CommitQueue
from service.tiering.cuts.needed_chains import NeededChains
from service.tiering.eraser import Eraser
from service.tiering.lifecycle import SegmentState
from service.tiering.metrics import TieringMetrics
from service.tiering.offload_pool import OffloadPool
from service.tiering.planner import Copy, SegmentSpan
from service.tiering.ports import RewriteCatalog, TieredPartition, TieringSettings
from service.tiering.prefix_fence import Fence
from service.tiering.steps import Probe
from service.tiering.store_clock import StoreClock


@dataclass(frozen=True, slots=True)
class TieringContext:
    """Everything that all partitions of a node share."""

    cluster_id: str
    store: ObjectStore
    chains: ChainStore
    catalog: RewriteCatalog
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
    needed: NeededChains
    backoff_ms: Callable[[int], int]
    """how long to wait after so many failures"""
    is_urgent: Callable[[TopicIdPartition], bool]
    """whether the disk of a partition fills up, so that it is copied before others"""


def _unheard(state: SegmentState) -> None:
    """Do nothing: nobody waits for the end of the proposal."""


@dataclass(slots=True)
class ManifestProposal:
    """A written manifest whose commit is not settled yet.

    `retired` keys are dead once it is committed; `written` keys are dead if it never is.
    """

    commit: CatalogCommit
    chain: Chain
    retired: tuple[str, ...]
    written: tuple[str, ...]
    copied: tuple[SegmentEntry, ...] = ()
    dropped_segments: int = 0
    dropped_bytes: int = 0
    state: SegmentState = SegmentState.PROPOSED
    ended: Callable[[SegmentState], None] = _unheard
    """called with the last state once this process has nothing more to do for it"""


class OldestSegment(NamedTuple):
    """First segment of the chain at `start_offset`, or its page while no segment of that page may go.

    `uploaded_at_ms` decides its age where its records have no timestamp.
    """

    start_offset: int
    part: Child
    uploaded_at_ms: int

    @property
    def ages_from_ms(self) -> int:
        """Time from which `expiry` counts its age."""
        part = self.part
        timestamp = part.min_timestamp if isinstance(part, PageRef) else part.max_timestamp
        return timestamp if timestamp >= 0 else self.uploaded_at_ms

    @property
    def goes_at_bytes(self) -> int:
        """Bytes above `retention.bytes` that the log must reach before any of it goes."""
        return 1 if isinstance(self.part, PageRef) else self.part.size_bytes


class ClockDoubted(StorageError):
    """Our clock and the store's disagree, so neither decides what is deleted."""


class CommitRefused(StorageError):
    """The catalog refused a commit: another leader, another version, or no such topic. Tried again later."""


class Deposed(StorageError):
    """Another node leads the partition now, or this one in another epoch: what was begun is abandoned."""


class LeaderTerm:
    """Leadership of one partition, as of the run under way."""

    def __init__(self, partition: TieredPartition) -> None:
        self.is_deposed = False
        """this node does not lead the partition any more: nothing further is begun"""
        self.epoch = partition.leader_epoch
        """the leader epoch in which the run began"""
        self._partition = partition

    def begin(self) -> None:
        """Begin a run. Raises `Deposed`."""
        self.epoch = self._partition.leader_epoch
        self.check()

    def check(self) -> None:
        """Raise `Deposed` where this node does not lead any more. Called before each effect, from offload
        threads too."""
        if self.is_deposed or self._partition.leader_epoch != self.epoch:
            raise Deposed(f"{self._partition.tip} is led by another, or in another epoch than {self.epoch}")


class ArchiveAttempt:
    """Keys written by one attempt. They are guarded against the sweeper until the attempt is settled."""

    def __init__(self, eraser: Eraser, term: LeaderTerm) -> None:
        self._eraser = eraser
        self._term = term
        self.keys: tuple[str, ...] = ()

    def writes(self, key: str) -> None:
        """Guard `key` before anything is written under it; called from offload threads too, one at a time."""
        self._term.check()
        self.keys = (*self.keys, key)
        self._eraser.guard(key)

    def failed(self, tip: TopicIdPartition) -> None:
        """Release the keys and schedule their deletion: none was proposed. The sweeper deletes what arrives
        later."""
        self._eraser.release(self.keys)
        self._eraser.schedule(tip, self.keys)


def commit_of(tip: TopicIdPartition, entry: CatalogEntry | None, chain: Chain) -> CatalogCommit:
    """Return the commit that replaces `entry` by one that names `chain`."""
    return CatalogCommit(tip, entry.version if entry is not None else NO_VERSION, catalog_entry(chain))


def catalog_entry(chain: Chain) -> CatalogEntry:
    """Return the catalog entry that names `chain`."""
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
    """Return the identity that the object of `copy` carries; `uuid` is new for each attempt (invariant
    T4)."""
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
