"""Counters of the tiering room: plain integers, written on the event loop and read by scrapers. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from service.base.types import TopicIdPartition
from service.tiering.cuts.cut_metrics import CutMetrics
from service.tiering.cuts.keeper_metrics import CutKeeperMetrics
from service.tiering.erasing.archive_progress import ArchiveWork, OrderWork
from service.tiering.erasing.order_metrics import OrderStanding
from service.tiering.rewriting.rewrite_metrics import RewriteMetrics
from service.tiering.tasks import Task

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class TieringMetrics:
    """Counters since the start, and gauges of the last pass."""

    segments_copied: int = 0
    bytes_copied: int = 0
    segments_dropped: int = 0
    bytes_dropped: int = 0
    objects_deleted: int = 0
    held_deletions: int = 0
    """Deletions that are due and wait, as a cut that is kept may need the objects."""
    orphans_swept: int = 0
    task_errors: Counter[Task] = field(default_factory=Counter)
    """Failures by task; each is retried."""
    failing: dict[tuple[Task, Hashable], str] = field(default_factory=dict)
    """Last error of each failing task, by its object: a partition, a deleted topic, an object or a batch of
    them; None: the whole prefix."""
    fenced_commits: int = 0
    heads_repaired: int = 0
    stalled_calls: int = 0
    clock_skew_ms: int = 0
    """How far this node's clock was ahead of the store's at the last comparison."""
    displaced: str | None = None
    """Why this process never writes to the bucket again."""
    waits: str | None = None
    """Since when and why this process may not write to the bucket yet."""
    waits_since_ms: int | None = None
    """Since when (wall clock); None where it may write."""
    take_over_refused: str | None = None
    """Why this process does not become the keeper although it is its turn."""
    stopped: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Partitions whose HEAD and metadata have diverged, and how."""
    unknown_topics: int = 0
    """Topics with objects in the bucket that the metadata knows neither as live nor as deleted."""
    topics_file: str | None = None
    """What is wrong with `topics.json`: why it is not written, or which unknown topics it lists."""
    manifests_written: int = 0
    """Committed versions; fewer than segments where several segments go with one."""
    lag_segments: int = 0
    lag_bytes: int = 0
    waiting: dict[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions with segments that could be copied, and when the oldest of those was sealed (wall clock)."""
    reasons: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Why a partition is not copied, swept or expired now; see `why`."""
    cut_keeper: CutKeeperMetrics = field(default_factory=CutKeeperMetrics)
    store: str | None = None
    """Why the breaker lets no call reach the store for now."""
    store_opened: int = 0
    """How often the breaker opened."""
    cuts: CutMetrics = field(default_factory=CutMetrics)
    rewrites: RewriteMetrics = field(default_factory=RewriteMetrics)
    orders: dict[UUID, OrderStanding] = field(default_factory=dict)
    """Orders to erase keys, in the process that keeps the prefix."""
    archive_work: dict[UUID, OrderWork] = field(default_factory=dict)
    """Progress of open orders in the archives that this broker leads."""

    @property
    def oldest_sealed_ms(self) -> int | None:
        """Time (wall clock) at which the oldest segment that waits to be copied was sealed; None where none
        waits."""
        return min(self.waiting.values(), default=None)

    @property
    def unmerged(self) -> dict[TopicIdPartition, str]:
        """Partitions whose small objects are not merged, as that has failed, and why."""
        return {
            at: f"{task.value}: {why}"
            for (task, at), why in self.failing.items()
            if task is Task.MERGE and isinstance(at, TopicIdPartition)
        }

    def all_archive_work(self) -> ArchiveWork:
        """Return the progress of all open orders together."""
        total = ArchiveWork()
        for work in self.archive_work.values():
            total = total.plus(work.total)
        return total

    def forget(self, task: Task) -> None:
        """Remove all of `task` from `failing`: the task starts over."""
        for key in [key for key in self.failing if key[0] is task]:
            del self.failing[key]

    def why(self, tip: TopicIdPartition) -> str | None:
        """Return why `tip` does not tier now; None where it does, or has nothing to do."""
        reason = self.reasons.get(tip)
        return self.store if reason is None and tip in self.waiting else reason


def note(notes: dict[TopicIdPartition, T], tip: TopicIdPartition, what: T | None) -> None:
    """Set the note on `tip` to `what`; remove it where `what` is None."""
    if what is None:
        notes.pop(tip, None)
    else:
        notes[tip] = what
