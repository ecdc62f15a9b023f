"""What the tiering room counts: plain integers, written on the event loop and read by whoever scrapes. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from service.base.types import TopicIdPartition
from service.tiering.tasks import Task

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class TieringMetrics:
    """Counters since the start, and gauges as of the last pass."""

    segments_copied: int = 0
    bytes_copied: int = 0
    segments_dropped: int = 0
    bytes_dropped: int = 0
    objects_deleted: int = 0
    orphans_swept: int = 0
    task_errors: Counter[Task] = field(default_factory=Counter)
    """Failures of tasks; each is tried again."""
    failing: dict[tuple[Task, Hashable], str] = field(default_factory=dict)
    """Why tasks fail that failed last, by what they fail at: a partition, a deleted topic, an object or a
    batch of them; None: the whole prefix."""
    uploads_aborted: int = 0
    fenced_commits: int = 0
    heads_repaired: int = 0
    stalled_calls: int = 0
    clock_skew_ms: int = 0
    """How far this node's clock was ahead of the store's when it was last compared."""
    displaced: str | None = None
    """Why this process writes to the bucket no more, for good."""
    waits: str | None = None
    """Since when and why this process may not write to the bucket yet."""
    waits_since_ms: int | None = None
    """Since when (wall clock); None where it may write."""
    take_over_refused: str | None = None
    """Why this process does not take the prefix over, though it is its turn."""
    stopped: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Partitions whose HEAD and metadata are of two pasts, and what is wrong."""
    unknown_topics: int = 0
    """Topics with objects in the bucket that the metadata knows neither as live nor as deleted."""
    topics_file: str | None = None
    """What is amiss with `topics.json`: why it is left as it is, or whose topics it lists."""
    manifests_written: int = 0
    """Versions that were committed; fewer than segments where several go with one."""
    lag_segments: int = 0
    lag_bytes: int = 0
    waiting: dict[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions with segments that could be copied, and when the oldest of those was sealed (wall clock)."""
    reasons: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Why a partition is not copied, swept or expired now; see `why`."""
    store: str | None = None
    """Why the store is left alone for now, by everybody."""
    store_opened: int = 0
    """How often the store had to be left alone."""
    blocked: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Partitions that cannot be copied, and why, until they can."""

    @property
    def oldest_sealed_ms(self) -> int | None:
        """When the oldest segment that waits to be copied was sealed (wall clock); None where none waits."""
        return min(self.waiting.values(), default=None)

    def forget(self, task: Task) -> None:
        """Have `failing` say nothing of `task`: it begins anew."""
        for key in [key for key in self.failing if key[0] is task]:
            del self.failing[key]

    def why(self, tip: TopicIdPartition) -> str | None:
        """Why `tip` does not tier now; None where it does, or has nothing to do."""
        reason = self.reasons.get(tip)
        return self.store if reason is None and tip in self.waiting else reason


def note(notes: dict[TopicIdPartition, T], tip: TopicIdPartition, what: T | None) -> None:
    """Have `notes` say `what` of `tip`; nothing where it is None."""
    if what is None:
        notes.pop(tip, None)
    else:
        notes[tip] = what
