"""List of findings, as the pages of the console begin with it. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from service.console.web import words
from service.console.web.frame import badge, notice
from service.console.web.markup import Child, Markup, el
from service.health.findings import Finding, Severity

MOST_SHOWN: Final = 50
_TONES: Final[Mapping[Severity, str]] = {
    Severity.CRITICAL: "bad",
    Severity.WARNING: "warn",
    Severity.NOTICE: "",
}


def tone_of(findings: Sequence[Finding]) -> str:
    """Return the tone of the worst finding."""
    return _TONES[max(one.severity for one in findings)] if findings else ""


def finding_list(findings: Sequence[Finding], now_ms: int) -> Markup | None:
    """Return what is wrong, the worst first, each with since when, what it means and what to do."""
    if not findings:
        return None
    items = [_item(one, now_ms) for one in findings[:MOST_SHOWN]]
    rest = len(findings) - MOST_SHOWN
    return el(
        "section",
        el("ul", items, class_="findings"),
        notice("", f"{words.count(rest)} more findings.") if rest > 0 else None,
        aria_label="What is wrong",
    )


def _item(one: Finding, now_ms: int) -> Markup:
    tone = _TONES[one.severity]
    since: Child = None
    if one.since_ms is not None:
        age_s = (now_ms - one.since_ms) / 1000
        age = f" for {words.span(age_s)}" if age_s >= 1 else " just now"
        since = el("span", age, class_="since")
    return el(
        "li",
        el("p", badge(one.severity.name.lower(), tone), el("b", one.words), since),
        el("p", one.meaning, " ", one.action, " ", el("code", f"docs/health.md#{one.anchor}"), class_="note"),
        class_=f"finding {tone}".strip(),
    )
