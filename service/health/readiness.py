"""Checks of a node's parts, as `/readyz` has them: what is found of each part. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from service.health.findings import Finding, Severity
from service.health.kinds import BY_ANCHOR


class HealthState(Enum):
    """Health of one part of a node."""

    OK = "ok"
    DEGRADED = "degraded"
    """The part serves, but not fully."""
    FAILED = "failed"
    """The part does not serve, or not yet."""


class Check(NamedTuple):
    """Health of one part of a node: the part's name, its state, and the words of its findings."""

    what: str
    state: HealthState
    why: str = ""


class NodeHealth(NamedTuple):
    """Health of a node: its findings, and the parts that it has, with findings or without."""

    parts: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def checks(self) -> tuple[Check, ...]:
        return checks_of(self.parts, self.findings)

    @property
    def is_ready(self) -> bool:
        return not any(_is_failure(one) for one in self.findings)


def checks_of(parts: Sequence[str], findings: Iterable[Finding]) -> tuple[Check, ...]:
    """Return a check for each part, and for each further one with findings. A notice leaves its part ok."""
    found: dict[str, list[Finding]] = {part: [] for part in parts}
    for one in findings:
        found.setdefault(BY_ANCHOR[one.anchor].part, []).append(one)
    return tuple(Check(part, _state(of), "; ".join(one.words for one in of)) for part, of in found.items())


def _state(findings: Sequence[Finding]) -> HealthState:
    if any(_is_failure(one) for one in findings):
        return HealthState.FAILED
    is_worse = any(one.severity > Severity.NOTICE for one in findings)
    return HealthState.DEGRADED if is_worse else HealthState.OK


def _is_failure(one: Finding) -> bool:
    return BY_ANCHOR[one.anchor].is_failure
