"""Health checks of a node and their states. [P]"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class HealthState(Enum):
    """Health of one part of a node."""

    OK = "ok"
    DEGRADED = "degraded"
    """The part serves, but not fully."""
    FAILED = "failed"
    """The part does not serve, or not yet."""


class Check(NamedTuple):
    """Health of one part of a node: the part's name, its state, and the reason."""

    what: str
    state: HealthState
    why: str = ""
