"""What a node says of its own health. [P]"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(Enum):
    """Of one part of a node."""

    OK = "ok"
    DEGRADED = "degraded"
    """It serves, though not all that it should."""
    FAILED = "failed"
    """It does not serve, or not yet."""


class Check(NamedTuple):
    """One part of a node: a word for it, its state, and why."""

    what: str
    state: State
    why: str = ""
