"""What the readers of the cold tier count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from service.base.metrics import Histogram

KINDS: Final = (
    "delete", "get", "get_range", "get_suffix", "get_tagged", "head", "list", "put", "put_if_absent",
    "put_if_match", "put_stream",
)  # fmt: skip
"""Kinds of calls, as `stores.store.ObjectStore` has them."""


@dataclass(slots=True, eq=False)
class ReadMetrics:
    """Counters since the start. Written under the lock of `Flights`."""

    hits: int = 0
    """Things asked for that were in memory."""
    misses: int = 0
    disk_hits: int = 0
    """Chunks that were on this machine's disk."""
    read_ahead: int = 0
    """Downloads that were begun before anybody asked."""
    downloaded_bytes: int = 0
    """Of chunks."""
    requests: int = 0
    """Tries of downloads."""
    retries: int = 0
    """Tries that were not a download's first."""
    hedges: int = 0
    """Second tries, made while the first one was under way for long."""
    hedges_won: int = 0
    """Second tries that came first."""
    refused: int = 0
    """Downloads that were not begun as the store was failing, or refuses the object."""
    failures: int = 0
    """Downloads that were given up."""


@dataclass(slots=True, eq=False)
class CallMetrics:
    """Calls of one kind."""

    time: Histogram = field(default_factory=Histogram)
    """how long they took, in seconds, failed ones too"""
    sent_bytes: int = 0
    received_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """by the kind of error, as `stores.errors` names them"""


@dataclass(slots=True, eq=False)
class StoreMetrics:
    """Calls of one client of the store, counted by the threads that make them."""

    calls: dict[str, CallMetrics] = field(default_factory=lambda: {kind: CallMetrics() for kind in KINDS})
    problem: str | None = None
    """what the store, or the way to it, failed with last; None once a call was answered since"""
