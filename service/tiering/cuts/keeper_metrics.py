"""Figures of cuts in the process that keeps the prefix: plain values, written on the event loop. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from service.base.types import TopicIdPartition

_USUAL_INTERVALS: Final = 3


@dataclass(slots=True, eq=False)
class CutKeeperMetrics:
    """Cuts, as the process that keeps the prefix takes them; empty in others."""

    made: Counter[bool] = field(default_factory=Counter)
    """Cuts that were written, exact ones and loose ones."""
    void: int = 0
    hold_ms: int = 0
    """Longest time for which gates may be closed, as of the last attempt."""
    interval_ms: int = 0
    """Time between two cuts; 0: this process takes none."""
    since_ms: int | None = None
    """Time (wall clock) since which this process takes cuts."""
    complete_ms: int | None = None
    """Time (wall clock) up to which the bucket has everything: that of the newest complete cut, or later,
    where nothing has changed since."""
    lacking: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Partitions that keep the newest cut from being complete, and why; the first hundred."""
    lacking_count: int = 0

    def clear(self) -> None:
        """Forget what only the keeper knows."""
        self.hold_ms = 0
        self.interval_ms, self.since_ms, self.complete_ms, self.lacking_count = 0, None, None, 0
        self.lacking.clear()

    def age_ms(self, now_ms: int) -> int | None:
        """Return for how long the bucket has lacked something; None where this process takes no cuts."""
        if not self.interval_ms or self.since_ms is None:
            return None
        return max(now_ms - (self.since_ms if self.complete_ms is None else self.complete_ms), 0)

    def overdue(self, now_ms: int) -> Mapping[TopicIdPartition, str]:
        """Return the partitions that keep a cut from being complete for longer than most wait for their
        segment, and why."""
        age_ms = self.age_ms(now_ms)
        return self.lacking if age_ms is not None and age_ms > _USUAL_INTERVALS * self.interval_ms else {}
