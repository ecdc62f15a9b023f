"""What the local tier counts: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from service.base.metrics import Histogram


class HotMetrics:
    """All logs of a node together. Written on the event loop."""

    __slots__ = ("flush_errors", "flush_time")

    def __init__(self) -> None:
        self.flush_time = Histogram()
        """how long flushes of a log took, in seconds, waiting for a thread included"""
        self.flush_errors = 0
