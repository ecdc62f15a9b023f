"""Counters of produce, fetch and other handlers: plain integers that scrapers read. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from service.base.metrics import Histogram


@dataclass(slots=True, eq=False)
class ServingMetrics:
    """Counters of all partitions of a node. Owned by the event loop."""

    appended_batches: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    hot_reads: int = 0
    """partitions of fetches answered from the local tier"""
    hot_bytes: int = 0
    cold_reads: int = 0
    """partitions of fetches answered from the bucket"""
    cold_bytes: int = 0
    replica_bytes: int = 0
    """bytes sent to other replicas"""
    waiting: int = 0
    """fetches that wait now"""
    produces_waiting: int = 0
    """produce requests that wait now for other replicas"""
    wait: Histogram = field(default_factory=Histogram)
    """how long fetches waited for produced records, in seconds"""
    cold_wait: Histogram = field(default_factory=Histogram)
    """how long fetches waited for object storage, in seconds"""
    seek_wait: Histogram = field(default_factory=Histogram)
    """how long fetches waited for a disk to find an offset, in seconds"""
    errors: dict[tuple[str, ErrorCode], int] = field(default_factory=dict)
    """errors in responses, by API and code; a request may have one per partition"""

    def error(self, api: str, code: ErrorCode, count: int = 1) -> None:
        """Count errors in responses."""
        self.errors[api, code] = self.errors.get((api, code), 0) + count
