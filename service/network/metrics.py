"""What the servers of a node count: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from service.base.metrics import SECONDS, Histogram

_FIRST: Final = SECONDS[0]


class ApiMetrics:
    """Requests of one API over all connections. Times in seconds."""

    __slots__ = ("handling", "later", "queued", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        """of answers that were begun"""
        self.queued = Histogram()
        """from the begin of the loop's turn that took the request in until its handler was called"""
        self.handling = Histogram()
        """time in which the request had the loop, sending included; as many as there were requests"""
        self.later = Histogram()
        """of requests whose answer had to wait (long polls, fsync, the bucket): until it was there"""

    def count(self, queued_s: float, handling_s: float) -> None:
        """One request, on the path of all of them: most are over before the first bound.

        `queued_s` may be less than nothing where nobody measures the loop's turns.
        """
        queued, handling = self.queued, self.handling
        if queued_s <= _FIRST:
            queued.counts[0] += 1
        else:
            queued.counts[bisect_left(SECONDS, queued_s)] += 1
        if queued_s > 0:
            queued.total += queued_s
        handling.counts[0 if handling_s <= _FIRST else bisect_left(SECONDS, handling_s)] += 1
        handling.total += handling_s


class NetworkMetrics:
    """All listeners of a node. Owned by the event loop."""

    __slots__ = (
        "accepted", "apis", "handler_errors", "idle_closed", "received_bytes", "requests", "waited",
        "wire_errors",
    )  # fmt: skip

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}
        """by API key; there are as many as there are served APIs"""
        self.accepted = 0
        self.waited = 0
        """connections that came when ``max.connections`` were open"""
        self.requests = 0
        self.received_bytes = 0
        self.wire_errors = 0
        """connections that were closed for bytes that made no sense"""
        self.handler_errors = 0
        self.idle_closed = 0

    def of(self, api_key: int) -> ApiMetrics:
        """The counters of an API that is served."""
        return self.apis.get(api_key) or self.apis.setdefault(api_key, ApiMetrics())
