"""What the readers of the cold tier count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.base.metrics import Histogram

KINDS: Final = (
    "delete", "get", "get_range", "get_suffix", "get_tagged", "head", "list", "put", "put_if_absent",
    "put_if_match", "put_stream",
)  # fmt: skip
"""Kinds of calls, as `stores.store.ObjectStore` has them."""


@dataclass(slots=True)
class ReadMetrics:
    """Counters since the start. Written under the lock of `Flights`."""

    hits: int = 0
    """Things asked for that were in memory."""
    misses: int = 0
    read_ahead: int = 0
    """Downloads that were begun before anybody asked."""
    downloaded_bytes: int = 0
    """Of chunks."""
    retries: int = 0
    failures: int = 0
    """Downloads that were given up."""


class CallMetrics:
    """Calls of one kind."""

    __slots__ = ("errors", "received_bytes", "sent_bytes", "time")

    def __init__(self) -> None:
        self.time = Histogram()
        """how long they took, in seconds, failed ones too"""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.errors: dict[str, int] = {}
        """by the kind of error, as `stores.errors` names them"""


class StoreMetrics:
    """Calls of one client of the store, counted by the threads that make them."""

    __slots__ = ("calls", "last_answer_ms", "last_failure", "last_failure_ms")

    def __init__(self) -> None:
        self.calls: dict[str, CallMetrics] = {kind: CallMetrics() for kind in KINDS}
        self.last_answer_ms: int | None = None
        """when a call last did what it should, or was answered with what lies in the store; monotonic"""
        self.last_failure_ms: int | None = None
        self.last_failure = ""
        """what the store, or the way to it, last failed with"""

    @property
    def problem(self) -> str | None:
        """Why the store is not to be reached; None where the last call found it, or there was none."""
        if self.last_failure_ms is None or self.last_failure_ms <= (self.last_answer_ms or 0):
            return None
        return self.last_failure
