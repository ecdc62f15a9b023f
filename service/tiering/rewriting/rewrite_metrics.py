"""Counters of rewrites: plain integers, written on the event loop and read by scrapers. [P]"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from service.remote.catalog import RewriteKind


@dataclass(slots=True, eq=False)
class RewriteMetrics:
    """Counters since the start, by rule, and gauges."""

    runs: Counter[RewriteKind] = field(default_factory=Counter)
    """Runs that were published."""
    objects_before: Counter[RewriteKind] = field(default_factory=Counter)
    """Objects that they had."""
    objects_after: Counter[RewriteKind] = field(default_factory=Counter)
    bytes_before: Counter[RewriteKind] = field(default_factory=Counter)
    bytes_after: Counter[RewriteKind] = field(default_factory=Counter)
    bytes_read: int = 0
    """Bytes read from the bucket by this broker's own worker; the others came from local logs."""
    refused: int = 0
    """Reports that could not be published: the chain had changed, or they were wrong."""
    failures: int = 0
    """Runs that this broker's own worker could not make; each is planned again."""
    given_up: int = 0
    """Intents given up before their commit."""
    running: int = 0
    """Runs that this broker's own worker makes or publishes now."""
