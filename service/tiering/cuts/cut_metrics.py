"""Figures of cuts on one broker: plain integers, written on the event loop and read by scrapers. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.metrics import Histogram
from service.base.types import TopicIdPartition


@dataclass(slots=True, eq=False)
class CutMetrics:
    """Counters since the start, and gauges of the last cut."""

    hold: Histogram = field(default_factory=Histogram)
    """How long gates were closed, in seconds."""
    lag_bytes: int = 0
    """Bytes of tailed partitions that neither chains nor tails have, as of the last cut; estimated within a
    segment."""
    tails_written: int = 0
    tail_bytes: int = 0
    left_out: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Partitions whose records go into no tail although their topic has them there, and why."""
