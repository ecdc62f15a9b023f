"""What replicas count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class ReplicationMetrics:
    """All partitions of a node together. Owned by the event loop."""

    received_bytes: int = 0
    """of records that followers here have appended"""
    cuts_below_high_watermark: int = 0
    """how often committed records had to go: an unclean election made it so"""
    isr_shrinks: int = 0
    """how often partitions that are led here lost in-sync replicas"""
    isr_expands: int = 0
