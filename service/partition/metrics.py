"""What produce, fetch and the other handlers count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from service.base.metrics import Histogram


@dataclass(slots=True, eq=False)
class ServingMetrics:
    """All partitions of a node together. Owned by the event loop."""

    appended_batches: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    hot_reads: int = 0
    """partitions of fetches that were answered with bytes of the local tier"""
    hot_bytes: int = 0
    cold_reads: int = 0
    """the same of the bucket"""
    cold_bytes: int = 0
    replica_bytes: int = 0
    """that other replicas got"""
    waiting: int = 0
    """fetches that wait now"""
    wait: Histogram = field(default_factory=Histogram)
    """how long fetches waited for records to be produced, in seconds"""
    cold_wait: Histogram = field(default_factory=Histogram)
    """how long fetches waited for object storage, in seconds"""
    seek_wait: Histogram = field(default_factory=Histogram)
    """how long fetches waited for a disk's device to know where an offset is, in seconds"""
    errors: dict[tuple[str, ErrorCode], int] = field(default_factory=dict)
    """answers with an error, by API and code; a request may have one for each partition"""

    def error(self, api: str, code: ErrorCode, count: int = 1) -> None:
        """`count` answers with an error."""
        self.errors[api, code] = self.errors.get((api, code), 0) + count
