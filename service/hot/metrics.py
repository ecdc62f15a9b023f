"""Metrics of the local tier: plain integers and histograms, read at a scrape. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from service.base.metrics import Histogram
from service.hot.disk_watermarks import DiskState


@dataclass(slots=True, eq=False)
class HotMetrics:
    """All logs of a node together. Written on the event loop."""

    flush_time: Histogram = field(default_factory=Histogram)
    """Duration of a log's flush in seconds, with the wait for a thread."""
    flush_errors: int = 0
    cleanings: int = 0
    cleaning_errors: int = 0
    cleaned_bytes_read: int = 0
    cleaned_bytes_written: int = 0
    erased_records: int = 0
    """Records that erasures have taken out of local logs."""
    erasure_bytes_read: int = 0
    erasure_bytes_written: int = 0
    erasure_failures: int = 0
    """Attempts that failed: at an order's document, or in a log."""
    unerased_replicas: int = 0
    """Replicas here that lack an order of erasure, or have not told of it, counted for each order."""
    erasure_problems: dict[str, str] = field(default_factory=dict)
    """Orders, or orders in replicas, that this node keeps open, and why."""
    erasure_waits: Mapping[tuple[UUID, tuple[UUID, int]], str] = field(default_factory=dict)
    """Why each order waits in each replica here that lacks it, by order, topic and partition."""
    uncleanable_logs: int = 0
    """Logs that are set aside now, as their compaction failed."""
    disks: dict[Path, DiskState] = field(default_factory=dict)
    """State of each log directory that is not offline."""
    disk_freed_segments: int = 0
    """Local copies that were deleted before local retention."""
    disk_freed_bytes: int = 0
    disk_sealed_segments: int = 0
    """Segments that were sealed early, to be copied."""
    disk_throttle_time: Histogram = field(default_factory=Histogram)
    """Throttle time of producers after a request, in seconds."""
    disk_refused_batches: int = 0
