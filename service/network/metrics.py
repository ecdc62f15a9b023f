"""What the servers of a node count: plain integers and histograms, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from service.base.metrics import SECONDS, Histogram, HistogramSnapshot

QUICK_S: Final = SECONDS[0]


@dataclass(slots=True, eq=False)
class ApiMetrics:
    """Requests of one API over all connections. Times in seconds.

    Nearly all requests are handled before the first bound of a histogram. Those are counted in `quick`, by
    whoever serves them, the others in `slow`; `handling` puts both together.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    """of answers that were begun"""
    queued: Histogram = field(default_factory=Histogram)
    """from the begin of the loop's turn that took a request in until its handler was called"""
    quick: int = 0
    quick_s: float = 0.0
    slow: Histogram = field(default_factory=Histogram)
    later: Histogram = field(default_factory=Histogram)
    """of requests whose answer had to wait (long polls, fsync, the bucket): until it was there"""

    def handling(self) -> HistogramSnapshot:
        """Time in which requests had the loop, sending included; as many as there were requests."""
        found = self.slow.snapshot()
        counts = (found.counts[0] + self.quick, *found.counts[1:])
        return found._replace(counts=counts, total=found.total + self.quick_s)


@dataclass(slots=True, eq=False)
class NetworkMetrics:
    """All listeners of a node. Owned by the event loop."""

    apis: dict[int, ApiMetrics] = field(default_factory=dict)
    """by API key; there are as many as there are served APIs"""
    accepted: int = 0
    waited: int = 0
    """connections that came when ``max.connections`` were open"""
    received_bytes: int = 0
    wire_errors: int = 0
    """connections that were closed for bytes that made no sense"""
    handler_errors: int = 0
    idle_closed: int = 0
    late_requests: int = 0
    """connections that were closed because a request came too slowly"""
    late_responses: int = 0
    """connections that were closed because a response was taken too slowly"""
    ended_for_memory: int = 0
    """connections that were closed because their request had stalled and its memory was needed"""
    device_reads: int = 0
    """reads of up to a megabyte that threads did, as the page cache lacked what was to be sent"""

    @property
    def requests(self) -> int:
        """Requests that were handled, of all APIs."""
        return sum(api.quick + sum(api.slow.counts) for api in self.apis.values())

    def of(self, api_key: int) -> ApiMetrics:
        """The counters of an API that is served."""
        return self.apis.get(api_key) or self.apis.setdefault(api_key, ApiMetrics())


@dataclass(slots=True, eq=False)
class ChannelMetrics:
    """The node's own connections to its peers, of one purpose. Owned by the event loop."""

    calls: int = 0
    """requests that were sent"""
    sent_bytes: int = 0
    received_bytes: int = 0
    connected: int = 0
    refused: int = 0
    """tries to connect where nobody listens"""
    timed_out: int = 0
    """connections that took too long, and requests that were not answered in time"""
    lost: int = 0
    """connections that ended while something was in flight"""
    garbage: int = 0
    """connections that were ended for bytes that made no sense"""
    idle_closed: int = 0
