"""Counters of a node's servers and of its own connections: plain integers and histograms. [P]"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from service.base.metrics import SECONDS, Histogram, HistogramSnapshot

QUICK_S: Final = SECONDS[0]
TOTAL_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the whole time of requests; some of `SECONDS`."""
SWIFT_S: Final = TOTAL_S[0]
OF_QUORUM: Final = "quorum"
OF_CONTROLLER: Final = "controller"
OF_REPLICATION: Final = "replication"
OF_TRANSACTIONS: Final = "transactions"
OF_LAG: Final = "lag"
OF_CUTS: Final = "cuts"
"""Purposes of the node's own connections to other nodes."""

OF_PRODUCE: Final = "produce"
OF_FETCH: Final = "fetch"
OF_REQUEST: Final = "request"
OF_MUTATION: Final = "controller_mutation"
QUOTA_NAMES: Final = (OF_PRODUCE, OF_FETCH, OF_REQUEST, OF_MUTATION)


@dataclass(slots=True, eq=False)
class ArrivalMetrics:
    """Counters of the new connections of one listener."""

    accepted: int = 0
    too_many_of_address: int = 0
    """closed, as their address had as many as it may"""
    throttled_of_address: Histogram = field(default_factory=Histogram)
    """seconds that connections were held before they were closed, for the rate of their address"""
    delayed: Histogram = field(default_factory=Histogram)
    """seconds that connections waited, for the rate of the listener or of all"""


@dataclass(slots=True, eq=False)
class ApiMetrics:
    """Counters of one API over all connections. Times in seconds.

    Nearly all requests are handled within the first bound of a histogram. The server counts those in `quick`,
    the others in `slow`; `handling` adds both up.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    """bytes of responses that were begun"""
    queued: Histogram = field(default_factory=Histogram)
    """time from the begin of the loop's turn that read a request until the call of its handler"""
    quick: int = 0
    quick_s: float = 0.0
    slow: Histogram = field(default_factory=Histogram)
    later: Histogram = field(default_factory=Histogram)
    """time from the begin of the loop's turn that took up the request until its response, of requests that
    had to wait (long polls, fsync, the bucket)"""
    swift: int = 0
    swift_s: float = 0.0
    """number and time, as of `later`, of requests that were answered at once, within the first bound of
    `TOTAL_S`"""
    lengthy: Histogram = field(default_factory=lambda: Histogram(TOTAL_S))
    """time of the others that were answered at once"""

    def note_run(self, count: int, queued_s: float, handling_s: float) -> None:
        """Count requests that were handled together: each was answered at the end of all, and has held the
        loop for its share."""
        share_s = handling_s / count
        self.queued.counts[bisect_left(SECONDS, queued_s)] += count
        if queued_s > 0:  # negative if turns are not measured
            self.queued.total += queued_s * count
            handling_s += queued_s
        if handling_s <= SWIFT_S:
            self.swift += count
            self.swift_s += handling_s * count
        else:
            for _ in range(count):
                self.lengthy.observe(handling_s)
        if share_s <= QUICK_S:
            self.quick += count
            self.quick_s += share_s * count
        else:
            for _ in range(count):
                self.slow.observe(share_s)

    def total(self) -> HistogramSnapshot:
        """Return the time of all requests until their response, with one value per request."""
        at_once, later = self.lengthy.snapshot(), self.later.snapshot()
        counts = list(at_once.counts)
        counts[0] += self.swift
        for bound, count in zip((*later.bounds, float("inf")), later.counts, strict=True):
            counts[bisect_left(TOTAL_S, bound)] += count
        return HistogramSnapshot(TOTAL_S, tuple(counts), at_once.total + later.total + self.swift_s)

    def handling(self) -> HistogramSnapshot:
        """Return the time that requests held the loop, sending included, with one value per request."""
        found = self.slow.snapshot()
        counts = (found.counts[0] + self.quick, *found.counts[1:])
        return found._replace(counts=counts, total=found.total + self.quick_s)


@dataclass(slots=True, eq=False)
class ChannelMetrics:
    """Counters of the node's own connections to other nodes, for one purpose. Owned by the event loop."""

    calls: int = 0
    """requests sent"""
    sent_bytes: int = 0
    received_bytes: int = 0
    connected: int = 0
    refused: int = 0
    """connection attempts that were refused"""
    timed_out: int = 0
    """connection attempts and requests that timed out"""
    lost: int = 0
    """connections that ended with requests in flight"""
    garbage: int = 0
    """connections closed for malformed bytes, or because the peer refused the login"""


@dataclass(slots=True, eq=False)
class AuthenticationMetrics:
    """Counters of one listener's logins; names in brackets are Kafka's."""

    succeeded: int = 0
    """logins (successful-authentication-total)"""
    failed: int = 0
    """(failed-authentication-total)"""
    succeeded_again: int = 0
    """reauthentications (successful-reauthentication-total)"""
    failed_again: int = 0
    """(failed-reauthentication-total)"""
    expired: int = 0
    """connections closed because a request came after their session's end (expired-connections-killed-count)
    """
    late: int = 0
    """connections closed because they did not log in in time"""
    reauthentication: Histogram = field(default_factory=Histogram)
    """time of reauthentications (reauthentication-latency)"""


@dataclass(slots=True, eq=False)
class NetworkMetrics:
    """Counters of all listeners of a node, and of its channels. Owned by the event loop."""

    apis: dict[int, ApiMetrics] = field(default_factory=dict)
    """by API key; one for each served API"""
    channels: dict[str, ChannelMetrics] = field(default_factory=dict)
    """of the node's own connections to other nodes, by purpose"""
    arrivals: dict[str, ArrivalMetrics] = field(default_factory=dict)
    """by listener"""
    logins: dict[str, AuthenticationMetrics] = field(default_factory=dict)
    """by listener, of those where clients log in"""
    accepted: int = 0
    waited: int = 0
    """connections that came while ``max.connections`` were open"""
    received_bytes: int = 0
    wire_errors: int = 0
    """connections closed for malformed bytes"""
    handler_errors: int = 0
    idle_closed: int = 0
    late_requests: int = 0
    """connections closed because a request arrived too slowly"""
    late_responses: int = 0
    """connections closed because a response was received too slowly"""
    ended_for_memory: int = 0
    """connections closed because their request had stalled and its memory was needed"""
    device_reads: int = 0
    """prefetches of up to a megabyte by threads, of ranges that were not in the page cache"""

    @property
    def requests(self) -> int:
        """Number of handled requests of all APIs."""
        return sum(api.quick + sum(api.slow.counts) for api in self.apis.values())

    def of(self, api_key: int) -> ApiMetrics:
        """Return the counters of a served API."""
        return self.apis.get(api_key) or self.apis.setdefault(api_key, ApiMetrics())

    def logins_of(self, listener: str) -> AuthenticationMetrics:
        """Return the counters of a listener where clients log in."""
        return self.logins.setdefault(listener, AuthenticationMetrics())

    def channel(self, purpose: str) -> ChannelMetrics:
        """Return the counters of the node's own connections for `purpose`."""
        return self.channels.setdefault(purpose, ChannelMetrics())
