"""What the metadata log counts: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from service.base.metrics import Histogram


class MetadataMetrics:
    """The metadata log of a node. Written on the event loop."""

    __slots__ = ("appended_bytes", "batches", "snapshot_errors", "snapshot_time")

    def __init__(self) -> None:
        self.batches = 0
        self.appended_bytes = 0
        self.snapshot_time = Histogram()
        """how long snapshots took to be written, in seconds"""
        self.snapshot_errors = 0
