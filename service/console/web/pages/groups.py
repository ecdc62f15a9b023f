"""The page of all groups, in pages. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
    choices,
    empty,
    failed,
    live,
    notice,
    page,
    pager,
    search_form,
    table,
)
from service.console.web.markup import Child, Markup, el, link
from service.groups.admin_models import CLASSIC, CONSUMER, GroupRow, GroupSummary

PER_PAGE: Final = 50
SORTS: Final = ("id", "lag")
BY_LAG: Final = "lag"
_SORTED: Final = (("id", "By id"), ("lag", "By lag"))
_TONES: Final = {"Stable": "good", "Empty": "", "Dead": "bad"}


class GroupsPage(NamedTuple):
    """Data of the page: `rows` of this page; `problems` of nodes that did not answer; `lags`: (ms, lag)."""

    rows: Sequence[GroupRow]
    number: int
    matching: int
    total: int
    wanted: str
    problems: Sequence[str]
    problem: str | None
    summaries: Mapping[str, GroupSummary] = {}
    lags: Mapping[str, Sequence[tuple[int, int]]] = {}
    sort: str = "id"


_COLUMNS: Final = (
    Heading("Group"), Heading("State"), Heading("Members", True), Heading("Lag", True, "records to read"),
    Heading("Lag over time"), Heading("Protocol"),
    Heading("Coordinator", True, "The node that leads the group's partition of __consumer_offsets"),
)  # fmt: skip


def render(context: PageContext, found: GroupsPage) -> str:
    if found.problem is not None:
        return page(context, "Groups", "/groups", failed("The cluster does not answer", found.problem))
    problems = [notice("bad", f"Groups of a node are missing: {words_}") for words_ in found.problems]
    if found.total == 0:
        return page(
            context,
            "Groups",
            "/groups",
            problems,
            empty(
                "No groups yet",
                "A group exists as soon as a consumer with a group.id subscribes or commits an offset.",
            ),
        )
    pages = max(-(-found.matching // PER_PAGE), 1)
    return page(
        context,
        "Groups",
        "/groups",
        el(
            "div",
            search_form(
                "/groups",
                "Id contains",
                found.wanted,
                249,
                el("input", type="hidden", name="sort", value=found.sort) if found.sort != SORTS[0] else None,
            ),
            choices("Sort", "/groups", "sort", found.sort, _SORTED, q=found.wanted),
            class_="tools",
        ),
        live(
            "groups",
            problems,
            table(_COLUMNS, [_row(found, one) for one in found.rows], caption="Groups")
            if found.rows
            else notice("", f"No group's id contains {found.wanted!r}."),
        ),
        pager("/groups", found.number, found.number < pages, pages, q=found.wanted, sort=found.sort),
        lead=words.counted(found.total, "group")
        + (f", {words.count(found.matching)} match" if found.wanted else ""),
    )


def _row(found: GroupsPage, one: GroupRow) -> list[Child]:
    summary = found.summaries.get(one.group_id)
    lag: Child = words.NOTHING
    if summary is not None:
        lag = words.count(summary.lag) + (" or more" if summary.cut else "")
        if summary.problem is not None:
            lag = badge("not known", "warn")
    return [
        el("a", one.group_id or "(the empty id)", href=link("/group", id=one.group_id)),
        state(one.state),
        words.count(None if summary is None else summary.members),
        el("span", lag, title=None if summary is None else summary.problem),
        lag_line(found.lags.get(one.group_id, ())),
        protocol(one.kind),
        one.node,
    ]


def lag_line(points: Sequence[tuple[int, int]]) -> Child:
    """Return the lag over the sampled time as a line, with a text for screen readers."""
    if len(points) < 2:
        return el("span", words.NOTHING, title="Not enough samples yet")
    first_ms, last_ms = points[0][0], points[-1][0]
    most, width = max(max(lag for _, lag in points), 1), max(last_ms - first_ms, 1)
    drawn = " ".join(
        f"{120 * (ms - first_ms) / width:.1f},{22 - 20 * max(lag, 0) / most:.1f}" for ms, lag in points
    )
    summary = f"{points[0][1]:,} to {points[-1][1]:,}, at most {most:,}, in {words.span(width / 1000)}"
    return el(
        "svg", el("title", summary), el("polyline", points=drawn, class_="series-0"), viewBox="0 0 120 24",
        preserveAspectRatio="none", class_="spark lag", role="img", aria_label=summary,
    )  # fmt: skip


def protocol(kind: str) -> str:
    """Return the name of a group's protocol."""
    return {CLASSIC: "classic", CONSUMER: "consumer (KIP-848)"}.get(kind, kind)


def state(name: str) -> Markup:
    return badge(name, _TONES.get(name, "warn"))
