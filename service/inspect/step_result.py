"""Results of the steps of `firn bucket check`. [P]"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """The outcome of a step."""

    FINE = "ok"
    FAILED = "failed"
    ADVICE = "advice"
    LEFT_OUT = "left out"


class StepResult(NamedTuple):
    """The result of one step: what was tried, its outcome, the reason, and the permissions that it lacked."""

    what: str
    outcome: Outcome
    why: str = ""
    missing: tuple[str, ...] = ()
