"""What the readers of the cold tier count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass


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
