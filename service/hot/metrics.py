"""What the local tier counts: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.base.metrics import Histogram
from service.hot.watermarks import DiskState


@dataclass(slots=True, eq=False)
class HotMetrics:
    """All logs of a node together. Written on the event loop."""

    flush_time: Histogram = field(default_factory=Histogram)
    """How long flushes of a log took, in seconds, waiting for a thread included."""
    flush_errors: int = 0
    cleanings: int = 0
    cleaning_errors: int = 0
    cleaned_bytes_read: int = 0
    cleaned_bytes_written: int = 0
    uncleanable_logs: int = 0
    """Set aside now, as they failed to be cleaned."""
    disks: dict[Path, DiskState] = field(default_factory=dict)
    """Where log directories stand on the ladder; those that are offline are not there."""
    disk_freed_segments: int = 0
    """Local copies that went before local retention let them."""
    disk_freed_bytes: int = 0
    disk_sealed_segments: int = 0
    """Sealed early, to be copied."""
    disk_throttle_time: Histogram = field(default_factory=Histogram)
    """How long producers had to wait after a request, in seconds."""
    disk_refused_batches: int = 0
