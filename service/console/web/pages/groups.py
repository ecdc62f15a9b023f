"""The page of all groups, in pages. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
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
from service.groups.admin_models import CLASSIC, CONSUMER, GroupRow

PER_PAGE: Final = 50
_TONES: Final = {"Stable": "good", "Empty": "", "Dead": "bad"}


class GroupsPage(NamedTuple):
    """Data of the page: `rows` of this page; `problems` of nodes that did not answer."""

    rows: Sequence[GroupRow]
    number: int
    matching: int
    total: int
    wanted: str
    problems: Sequence[str]
    problem: str | None


_COLUMNS: Final = (
    Heading("Group"), Heading("Protocol"), Heading("State"), Heading("Kind of members"),
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
        search_form("/groups", "Id holds", found.wanted, 249),
        live(
            "groups",
            problems,
            table(_COLUMNS, [_row(one) for one in found.rows], caption="Groups")
            if found.rows
            else notice("", f"No group's id contains {found.wanted!r}."),
        ),
        pager("/groups", found.number, found.number < pages, pages, q=found.wanted),
        lead=f"{words.count(found.total)} groups"
        + (f", {words.count(found.matching)} match" if found.wanted else ""),
    )


def _row(one: GroupRow) -> list[Child]:
    return [
        el("a", one.group_id or "(the empty id)", href=link("/group", id=one.group_id)),
        protocol(one.kind),
        state(one.state),
        one.protocol_type or words.NOTHING,
        one.node,
    ]


def protocol(kind: str) -> str:
    """Return the name of a group's protocol."""
    return {CLASSIC: "classic", CONSUMER: "consumer (KIP-848)"}.get(kind, kind)


def state(name: str) -> Markup:
    return badge(name, _TONES.get(name, "warn"))
