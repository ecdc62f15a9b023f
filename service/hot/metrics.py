"""What the local tier counts: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from typing import Protocol

from service.base.metrics import Histogram


class Ended(Protocol):
    """A future that is done."""

    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...


class HotMetrics:
    """All logs of a node together. Written on the event loop."""

    __slots__ = ("flush_errors", "flush_time")

    def __init__(self) -> None:
        self.flush_time = Histogram()
        """how long flushes of a log took, in seconds, waiting for a thread included"""
        self.flush_errors = 0

    def flushed(self, flush: Ended, took_ms: int) -> None:
        """A flush is over, one way or the other."""
        self.flush_time.observe(took_ms / 1000)
        if not flush.cancelled() and flush.exception() is not None:
            self.flush_errors += 1
