"""What the local tier counts: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.metrics import Histogram


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
