"""The page of a group: members, their assignments, and its position in each partition. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
    changes,
    empty,
    facts,
    failed,
    live,
    notice,
    page,
    pager,
    section,
    table,
)
from service.console.web.markup import Child, Markup, el, link
from service.console.web.pages.groups import lag_line, protocol, state
from service.groups.admin_models import GroupInfo, MemberInfo, PartitionProgress, Partitions

PER_PAGE: Final = 100
MOST_MEMBERS: Final = 200
MOST_NAMED: Final = 12
"""Most partitions of one topic that are named; more are counted."""
MOST_TOPICS: Final = 8

Place = tuple[str, int]


class GroupPage(NamedTuple):
    """Data of the page: `lags` has (ms, lag) by partition, `past` of the whole group; `problem`: why there
    is no `info`."""

    group_id: str
    info: GroupInfo | None
    lags: Mapping[Place, Sequence[tuple[int, int]]] = {}
    number: int = 1
    problem: str | None = None
    status: int = 200
    past: Sequence[tuple[int, int]] = ()


_MEMBERS: Final = (
    Heading("Member"), Heading("Client"), Heading("Host"), Heading("Epoch", True), Heading("Subscribed to"),
    Heading("Assigned"), Heading("Target"),
)  # fmt: skip
_POSITIONS: Final = (
    Heading("Topic"), Heading("Partition", True), Heading("Committed", True), Heading("End", True),
    Heading("Lag", True), Heading("Lag over time"), Heading("Member"),
)  # fmt: skip


def render(context: PageContext, found: GroupPage) -> str:
    title = found.group_id or "(the empty id)"
    if found.info is None:
        problem = found.problem or ""
        head = "No such group" if found.status == 404 else "The cluster does not answer"
        return page(context, title, "/groups", failed(head, problem), _back())
    info = found.info
    pages = max(-(-len(info.positions) // PER_PAGE), 1)
    here = info.positions[(found.number - 1) * PER_PAGE : found.number * PER_PAGE]
    return page(
        context,
        title,
        "/groups",
        changes(
            context,
            ("Reset offsets", link("/change/reset-offsets", group=found.group_id)),
            ("Delete offsets", link("/change/delete-offsets", group=found.group_id)),
            ("Delete the group", link("/change/delete-group", group=found.group_id)),
        ),
        live("group", _facts(info, found.past)),
        live("positions", _positions(found, here)),
        pager("/group", found.number, found.number < pages, pages, id=found.group_id),
        live("members", _members(info)),
        lead=protocol(info.row.kind),
    )


def _back() -> Markup:
    return el("p", el("a", "All groups", href="/groups"))


def _facts(info: GroupInfo, past: Sequence[tuple[int, int]]) -> list[Child]:
    pairs: list[tuple[str, Child]] = [
        ("State", state(info.row.state)),
        ("Lag", words.count(info.lag) + (" or more" if info.cut else "")),
        ("Lag over time", lag_line(past)),
        ("Members", words.count(len(info.members))),
        ("Assignor", info.protocol or words.NOTHING),
        ("Coordinator", el("a", f"node {info.row.node}", href=link("/configuration", node=info.row.node))),
    ]
    if info.epoch is not None:
        pairs.append(("Epoch", f"{info.epoch}, assignment of {info.assignment_epoch}"))
    return [facts(*pairs)]


def _positions(found: GroupPage, here: Sequence[PartitionProgress]) -> Markup:
    info = found.info
    assert info is not None
    if not here:
        return empty("No partitions", "The group has committed nothing, and its members have no partitions.")
    shared = Counter(one.client_id for one in info.members)
    clients = {one.member_id: one.client_id for one in info.members if shared[one.client_id] == 1}
    more = notice("", f"{words.count(info.cut)} more partitions were not queried.") if info.cut else None
    return section(
        "Partitions",
        more,
        table(_POSITIONS, [_position(found, one, clients) for one in here], caption="Partitions"),
        note="Lag: offsets from the committed one to the end. History begins with the first view.",
    )


def _position(found: GroupPage, one: PartitionProgress, clients: Mapping[str, str]) -> list[Child]:
    end: Child = words.count(one.end)
    if one.end is None:
        end = badge("does not exist", "warn")
    lag = words.count(one.lag)
    return [
        el("a", one.topic, href=link("/topic", name=one.topic, partition=one.partition)),
        one.partition,
        words.count(one.committed),
        end,
        lag,
        lag_line(found.lags.get((one.topic, one.partition), ())),
        words.NOTHING if one.member_id is None else clients.get(one.member_id) or one.member_id,
    ]


def _members(info: GroupInfo) -> Child:
    if not info.members:
        return section("Members", notice("", "The group has no members now; its offsets are kept."))
    shown = info.members[:MOST_MEMBERS]
    rest = len(info.members) - len(shown)
    return section(
        "Members",
        table(_MEMBERS, [_member(one) for one in shown], caption="Members"),
        notice("", f"{words.count(rest)} more members.") if rest else None,
    )


def _member(one: MemberInfo) -> list[Child]:
    marks: list[Child] = []
    if one.instance_id is not None:
        marks += [" ", badge(f"static: {one.instance_id}")]
    if one.epoch is not None and one.is_classic:
        marks += [" ", badge("classic protocol")]
    subscribed = _names(one.topics)
    if one.regex is not None:
        subscribed = f"/{one.regex}/" + (f", {subscribed}" if one.topics else "")
    return [
        [one.member_id, marks],
        one.client_id or words.NOTHING,
        one.client_host + (f", rack {one.rack_id}" if one.rack_id else ""),
        words.count(one.epoch),
        subscribed,
        badge("does not parse", "warn") if one.problem is not None else _partitions(one.assigned),
        "the same"
        if one.target == one.assigned
        else words.NOTHING
        if one.target is None
        else _partitions(one.target),
    ]


def _names(topics: Sequence[str]) -> str:
    rest = f" and {len(topics) - MOST_TOPICS} more" if len(topics) > MOST_TOPICS else ""
    return (", ".join(topics[:MOST_TOPICS]) or words.NOTHING) + rest


def _partitions(found: Partitions) -> str:
    """Return `flights 0, 1, 2; other 5`, shortened if there are many."""
    parts = []
    for topic, numbers in found[:MOST_TOPICS]:
        rest = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
        parts.append(f"{topic} {', '.join(map(str, numbers[:MOST_NAMED]))}{rest}")
    rest = f"; {len(found) - MOST_TOPICS} more topics" if len(found) > MOST_TOPICS else ""
    return "; ".join(parts) + rest or words.NOTHING
