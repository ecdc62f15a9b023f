"""Queries of lists of groups: members and lag of many groups with few requests. Blocking and read-only.

Raises `RequestError`, `StorageError` and `OSError` of a whole query; the error of one group, or of one node,
is in the summaries of its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import Cluster
from service.client.admin_models import Place
from service.groups.admin_models import CLASSIC, CONSUMER, GroupRow, GroupSummary, TopicLag
from service.groups.admin_requests import (
    describe_classic_groups,
    describe_consumer_groups,
    fetch_committed,
    offsets_in,
)
from service.groups.protocol import CONSUMER_PROTOCOL, MalformedEmbedded, decode_assignment

_AT_ONCE: Final = 100
"""Most groups of one request."""


class _Group:
    """Partial summary of one group while the queries are under way."""

    def __init__(self, row: GroupRow) -> None:
        self.row = row
        self.members: int | None = None
        self.owned: set[Place] = set()
        self.committed: dict[Place, int] = {}
        self.problem: str | None = None

    @property
    def places(self) -> set[Place]:
        return self.owned | self.committed.keys()


def summarize_groups(cluster: Cluster, rows: Sequence[GroupRow], most_places: int) -> dict[str, GroupSummary]:
    """Return members and lag by group id; the ends of at most `most_places` partitions are looked up."""
    groups = {row.group_id: _Group(row) for row in rows}
    by_node: dict[int, list[_Group]] = {}
    for one in groups.values():
        by_node.setdefault(one.row.node, []).append(one)
    for node, found in by_node.items():
        for at in range(0, len(found), _AT_ONCE):
            _of_node(cluster, node, found[at : at + _AT_ONCE])
    places = sorted({place for one in groups.values() for place in one.places})[:most_places]
    looked_up = frozenset(places)
    ends = cluster.ends(places)
    return {group_id: _summary(one, ends, looked_up) for group_id, one in groups.items()}


def _of_node(cluster: Cluster, node: int, groups: Sequence[_Group]) -> None:
    steps: tuple[tuple[str, Callable[[Cluster, int, Sequence[_Group]], None]], ...] = (
        (CONSUMER, _consumer), (CLASSIC, _classic),
    )  # fmt: skip
    try:
        for kind, describe in steps:
            if some := [one for one in groups if one.row.kind == kind]:
                describe(cluster, node, some)
        if some := [one for one in groups if one.row.kind in (CONSUMER, CLASSIC)]:
            _offsets(cluster, node, some)
    except (RequestError, OSError) as e:
        for one in groups:
            one.problem = one.problem or str(e)


def _answered(
    groups: Sequence[_Group], ask: Callable[[tuple[str, ...]], Any]
) -> Iterator[tuple[_Group, Any]]:
    """Yield the groups with what `ask` answers of their ids; note the errors of the others."""
    known = {one.row.group_id: one for one in groups}
    for answer in ask(tuple(known)):
        if (one := known.get(answer.group_id)) is None:
            continue
        if answer.error_code == ErrorCode.none:
            yield one, answer
        else:
            one.problem = ErrorCode(answer.error_code).name.upper()


def _consumer(cluster: Cluster, node: int, groups: Sequence[_Group]) -> None:
    for one, answer in _answered(groups, partial(describe_consumer_groups, cluster, node)):
        one.members = len(answer.members)
        for member in answer.members:
            for topic in member.assignment.topic_partitions:
                one.owned.update((topic.topic_name, partition) for partition in topic.partitions)


def _classic(cluster: Cluster, node: int, groups: Sequence[_Group]) -> None:
    for one, answer in _answered(groups, partial(describe_classic_groups, cluster, node)):
        one.members = len(answer.members)
        if answer.protocol_type == CONSUMER_PROTOCOL:
            for member in answer.members:
                one.owned.update(_assigned(member))


def _assigned(member: Any) -> Iterable[Place]:
    """Return the partitions of a classic member; none where its assignment is malformed."""
    if not member.member_assignment:
        return ()
    try:
        found = decode_assignment(bytes(member.member_assignment)).partitions
    except MalformedEmbedded:
        return ()
    return [(topic, partition) for topic, partitions in found for partition in partitions]


def _offsets(cluster: Cluster, node: int, groups: Sequence[_Group]) -> None:
    for one, answer in _answered(groups, partial(fetch_committed, cluster, node)):
        one.committed = offsets_in(answer)


def _summary(group: _Group, ends: Mapping[Place, int], looked_up: frozenset[Place]) -> GroupSummary:
    topics: dict[str, TopicLag] = {}
    for topic, partition in sorted(group.places):
        before = topics.get(topic) or TopicLag(topic, 0, None)
        committed, end = group.committed.get((topic, partition)), ends.get((topic, partition))
        lag = before.lag
        if committed is not None and end is not None:
            lag = (lag or 0) + max(end - committed, 0)
        topics[topic] = TopicLag(topic, before.partitions + 1, lag)
    known = [one.lag for one in topics.values() if one.lag is not None]
    return GroupSummary(
        group.row,
        group.members,
        sum(known) if known else None,
        tuple(topics.values()),
        len(group.places - looked_up),
        group.problem,
    )
