"""What the readers of the cold tier count: plain integers, read by whoever scrapes. [P]"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
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
    """Downloads that were not begun as the store was failing."""
    failures: int = 0
    """Downloads that were given up."""
