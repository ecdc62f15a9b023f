"""What the servers of a node count: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from typing import Final

from service.base.metrics import SECONDS, Histogram, HistogramSnapshot

QUICK_S: Final = SECONDS[0]


class ApiMetrics:
    """Requests of one API over all connections. Times in seconds.

    Nearly all requests are handled before the first bound of a histogram. Those are counted in `quick`, by
    whoever serves them, the others in `slow`; `handling` puts both together.
    """

    __slots__ = ("later", "queued", "quick", "quick_s", "received_bytes", "sent_bytes", "slow")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        """of answers that were begun"""
        self.queued = Histogram()
        """from the begin of the loop's turn that took a request in until its handler was called"""
        self.quick = 0
        self.quick_s = 0.0
        self.slow = Histogram()
        self.later = Histogram()
        """of requests whose answer had to wait (long polls, fsync, the bucket): until it was there"""

    def handling(self) -> HistogramSnapshot:
        """Time in which requests had the loop, sending included; as many as there were requests."""
        found = self.slow.snapshot()
        counts = (found.counts[0] + self.quick, *found.counts[1:])
        return found._replace(counts=counts, total=found.total + self.quick_s)


class NetworkMetrics:
    """All listeners of a node. Owned by the event loop."""

    __slots__ = (
        "accepted", "apis", "ended_for_memory", "handler_errors", "idle_closed", "late_requests",
        "late_responses", "received_bytes", "waited", "wire_errors",
    )  # fmt: skip

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}
        """by API key; there are as many as there are served APIs"""
        self.accepted = 0
        self.waited = 0
        """connections that came when ``max.connections`` were open"""
        self.received_bytes = 0
        self.wire_errors = 0
        """connections that were closed for bytes that made no sense"""
        self.handler_errors = 0
        self.idle_closed = 0
        self.late_requests = 0
        """connections that were closed because a request came too slowly"""
        self.late_responses = 0
        """connections that were closed because a response was taken too slowly"""
        self.ended_for_memory = 0
        """connections that were closed because their request had stalled and its memory was needed"""

    @property
    def requests(self) -> int:
        """Requests that were handled, of all APIs."""
        return sum(api.quick + sum(api.slow.counts) for api in self.apis.values())

    def of(self, api_key: int) -> ApiMetrics:
        """The counters of an API that is served."""
        return self.apis.get(api_key) or self.apis.setdefault(api_key, ApiMetrics())
