"""Counters of the cold tier's readers: plain integers, read by scrapers. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from service.base.metrics import Histogram

KINDS: Final = (
    "delete", "get", "get_range", "get_suffix", "get_tagged", "head", "list", "put", "put_if_absent",
    "put_if_match", "put_stream",
)  # fmt: skip
"""Kinds of calls, the methods of `stores.store.ObjectStore`."""


@dataclass(slots=True, eq=False)
class ReadMetrics:
    """Counters since the start. Written under the lock of `DownloadManager`."""

    hits: int = 0
    """Requests answered from memory."""
    misses: int = 0
    disk_hits: int = 0
    """Chunks that were on this machine's disk."""
    read_ahead: int = 0
    """Downloads started before any read needed them."""
    downloaded_bytes: int = 0
    """Of chunks."""
    requests: int = 0
    """Attempts of downloads."""
    retries: int = 0
    """Attempts after the first one of a download."""
    hedges: int = 0
    """Hedged attempts, made while the first one took long."""
    hedges_won: int = 0
    """Hedged attempts that finished first."""
    refused: int = 0
    """Downloads not started because the breaker is open, or the store refuses the object."""
    failures: int = 0
    """Downloads that failed."""


@dataclass(slots=True, eq=False)
class CallMetrics:
    """Calls of one kind."""

    time: Histogram = field(default_factory=Histogram)
    """durations in seconds, failed calls included"""
    sent_bytes: int = 0
    received_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """by class name of the error, see `stores.errors`"""


@dataclass(slots=True, eq=False)
class StoreMetrics:
    """Calls of one client of the store, counted by the threads that make them."""

    calls: dict[str, CallMetrics] = field(default_factory=lambda: {kind: CallMetrics() for kind in KINDS})
    problem: str | None = None
    """last error of the store, or of the way to it; None once a call was answered since"""
    since_ms: int | None = None
    """wall clock at the first of the errors that no answer has interrupted"""
    called_ms: int = 0
    """monotonic clock at the end of the last call"""

    def add(self, other: StoreMetrics) -> None:
        """Add the calls of another process of this node, which ended just now."""
        for kind, its in other.calls.items():
            own = self.calls[kind]
            own.time.add(its.time)
            own.sent_bytes += its.sent_bytes
            own.received_bytes += its.received_bytes
            for error, count in its.errors.items():
                own.errors[error] = own.errors.get(error, 0) + count
        if other.called_ms:
            self.since_ms = None if other.problem is None else self.since_ms or other.since_ms
            self.problem, self.called_ms = other.problem, other.called_ms


@dataclass
class TailLoadMetrics:
    """Loading of a restored cluster's tails by this node. `problems`: partitions that could not be loaded,
    and why, until they are."""

    bytes: int = 0
    failures: int = 0
    problems: dict[str, str] = field(default_factory=dict)
