"""What produce, fetch and the other handlers count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.base.metrics import Histogram


class ServingMetrics:
    """All partitions of a node together. Owned by the event loop."""

    __slots__ = (
        "appended_batches", "appended_bytes", "appended_records", "cold_bytes", "cold_reads", "cold_wait",
        "errors", "hot_bytes", "hot_reads", "wait", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appended_batches = 0
        self.appended_records = 0
        self.appended_bytes = 0
        self.hot_reads = 0
        """partitions of fetches that were answered with bytes of the local tier"""
        self.hot_bytes = 0
        self.cold_reads = 0
        """the same of the bucket"""
        self.cold_bytes = 0
        self.waiting = 0
        """fetches that wait now"""
        self.wait = Histogram()
        """how long fetches waited for records to be produced, in seconds"""
        self.cold_wait = Histogram()
        """how long fetches waited for object storage, in seconds"""
        self.errors: dict[tuple[str, ErrorCode], int] = {}
        """answers with an error, by API and code; a request may have one for each partition"""

    def error(self, api: str, code: ErrorCode, count: int = 1) -> None:
        """`count` answers with an error."""
        self.errors[api, code] = self.errors.get((api, code), 0) + count
