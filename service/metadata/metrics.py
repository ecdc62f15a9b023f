"""What the metadata log counts: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.base.metrics import Histogram


@dataclass(slots=True, eq=False)
class MetadataMetrics:
    """The metadata log of a node. Written on the event loop."""

    batches: int = 0
    appended_bytes: int = 0
    snapshot_time: Histogram = field(default_factory=Histogram)
    """how long snapshots took to be written, in seconds"""
    snapshot_errors: int = 0
