"""Counters of a coordinator's runtime: plain integers and histograms that scrapers read. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.metrics import Histogram


@dataclass(slots=True, eq=False)
class RuntimeMetrics:
    """Counters of all partitions of one coordinator on this node. Owned by the event loop; times in
    seconds."""

    batches: int = 0
    """flushed"""
    records: int = 0
    """of flushed batches"""
    failed_batches: int = 0
    timeouts: int = 0
    """writes that were not committed in time"""
    waiting: int = 0
    """decisions that now wait for the high watermark"""
    linger: Histogram = field(default_factory=Histogram)
    """from a batch's first decision to its flush"""
    flush: Histogram = field(default_factory=Histogram)
    """the append itself"""
    purgatory: Histogram = field(default_factory=Histogram)
    """from a decision to its commit"""
    load: Histogram = field(default_factory=Histogram)
    """of a partition"""
    loaded_records: int = 0

    def appended_alone(self, records: int, took_ms: int) -> None:
        """Count a batch of one decision, which waited for nothing but its append."""
        self.batches += 1
        self.records += records
        self.linger.counts[0] += 1
        if took_ms:
            self.flush.observe(took_ms / 1000)
            self.purgatory.observe(took_ms / 1000)
        else:
            self.flush.counts[0] += 1
            self.purgatory.counts[0] += 1
