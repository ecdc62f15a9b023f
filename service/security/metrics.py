"""Counters of authorization: plain integers that scrapers read. [P]"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class AuthorizationMetrics:
    """Answers of an authorizer, by API key; -1 where no request was named."""

    allowed: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    denied: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    failed: int = 0
    """questions that ended with a bug, and so were denied"""
