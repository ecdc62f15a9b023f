"""Counters of replication: plain integers that scrapers read. [P]"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class ReplicationMetrics:
    """Counters of all partitions of a node together. Owned by the event loop."""

    received_bytes: int = 0
    """bytes of records that followers here have appended"""
    cuts_below_high_watermark: int = 0
    """truncations that removed committed records, after an unclean leader election"""
    isr_shrinks: int = 0
    """how often partitions that are led here lost in-sync replicas"""
    isr_expands: int = 0
