"""Counters of transactions: plain integers and histograms that scrapers read. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.metrics import Histogram


@dataclass(slots=True, eq=False)
class TransactionMetrics:
    """Counters of all shards of a node. Owned by the event loop; times in seconds."""

    timeouts: int = 0
    """aborts of transactions that were open for too long"""
    end: Histogram = field(default_factory=Histogram)
    """from a committed decision to the committed completion: the time of the markers"""
