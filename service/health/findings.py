"""A finding: a problem of a node or a cluster in words, and its JSON. [P]

Surfaces (`/readyz`, `firn cluster describe`, the console, metrics, alerts) show `words` unchanged and judge
nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

MOST_TOLD: Final = 100
"""Most findings that are taken from one node."""
_MOST_LETTERS: Final = 2000


class Severity(IntEnum):
    """Severity of a finding."""

    NOTICE = 1
    """nothing is wrong yet"""
    WARNING = 2
    """everything is served, but a reserve is used up, or something does not go on"""
    CRITICAL = 3
    """something is not served, is not known, or may be lost"""


class Finding(NamedTuple):
    """A problem. `subject`: node or cluster that has it; `since_ms`: when it began (wall clock), None where
    nobody knows; `anchor`: heading in docs/health.md."""

    severity: Severity
    subject: str
    since_ms: int | None
    words: str
    meaning: str
    action: str
    anchor: str


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings without doubles, the most severe first. Of two of one kind with the same words the
    one that began first stays."""
    chosen: dict[tuple[str, str], Finding] = {}
    for one in findings:
        known = chosen.get((one.anchor, one.words))
        if known is None or _began(one) < _began(known):
            chosen[one.anchor, one.words] = one
    return tuple(sorted(chosen.values(), key=lambda one: (-one.severity, one.anchor, one.words)))


def _began(one: Finding) -> float:
    return float("inf") if one.since_ms is None else one.since_ms


def as_json(one: Finding) -> dict[str, object]:
    """Return the JSON of a finding, as `/readyz` and `firn cluster describe --json` have it."""
    return {**one._asdict(), "severity": one.severity.name.lower()}


def from_json(told: Any) -> tuple[Finding, ...]:
    """Parse findings that another node has told. Raises `ValueError`, `LookupError`, `TypeError` or
    `AttributeError` for what are none."""
    return tuple(_parsed(one) for one in list(told)[:MOST_TOLD])


def _parsed(told: Mapping[str, Any]) -> Finding:
    since = told["since_ms"]
    if since is not None and (type(since) is not int or not 0 <= since < 1 << 62):
        raise ValueError("since_ms is no time")
    subject, words, meaning, action, anchor = (
        _text(told[name]) for name in ("subject", "words", "meaning", "action", "anchor")
    )
    severity = Severity[_text(told["severity"]).upper()]
    return Finding(severity, subject, since, words, meaning, action, anchor)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is expected")
    return value[:_MOST_LETTERS]
