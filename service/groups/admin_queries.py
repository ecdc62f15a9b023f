"""Queries of commands and the console about groups: blocking and read-only.

The list of all groups names a group's coordinator; FindCoordinator is not used, as it would create the topic
of groups. Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import Cluster
from service.groups.admin_models import (
    CLASSIC,
    CONSUMER,
    GroupInfo,
    GroupRow,
    Listing,
    MemberInfo,
    PartitionProgress,
    Partitions,
)
from service.groups.admin_requests import (
    describe_classic_groups,
    describe_consumer_groups,
    fetch_committed,
    offsets_in,
)
from service.groups.protocol import (
    CONSUMER_PROTOCOL,
    MalformedEmbedded,
    decode_assignment,
    decode_subscription,
)
from service.wire.api import ApiKey, request_module

_CLASSIC_MEMBER: Final = 0
NODE_WAIT_S: Final = 5.0
"""timeout for the groups of one node"""
_AT_ONCE: Final = 16


def list_groups(cluster: Cluster) -> Listing:
    """Return the groups of all nodes, queried concurrently, as one may hang. Raises if no node answers."""
    nodes = [one.node_id for one in cluster.describe().nodes if not one.is_fenced]
    if not nodes:
        return Listing(())
    with ThreadPoolExecutor(min(len(nodes), _AT_ONCE)) as pool:
        answers = dict(zip(nodes, pool.map(partial(_groups_of, cluster), nodes), strict=True))
    failures = {node: answer for node, answer in answers.items() if isinstance(answer, Exception)}
    if len(failures) == len(nodes):
        raise failures[nodes[0]]
    found = [row for answer in answers.values() if not isinstance(answer, Exception) for row in answer]
    return Listing(tuple(sorted(found)), tuple(f"node {node}: {e}" for node, e in failures.items()))


def _groups_of(cluster: Cluster, node: int) -> list[GroupRow] | RequestError | OSError:
    """Return the groups of one node, or its error."""
    module = request_module(ApiKey.LIST_GROUPS)
    try:
        with cluster.apart(node, NODE_WAIT_S) as client:
            response = client.request(ApiKey.LIST_GROUPS, module.ListGroupsRequest())
        _raise_for(response.error_code, None, f"groups of node {node}")
    except TimeoutError:
        return TimeoutError(f"no answer within {NODE_WAIT_S:g} s")
    except (RequestError, OSError) as e:
        return e
    return [
        GroupRow(g.group_id, node, g.group_state, g.group_type.lower() or CLASSIC, g.protocol_type)
        for g in response.groups
    ]


def find_group(listing: Listing, group_id: str) -> GroupRow:
    """Return the group's row. Raises `RequestError` (GROUP_ID_NOT_FOUND) if no node has it."""
    for row in listing.rows:
        if row.group_id == group_id:
            return row
    elsewhere = f" ({'; '.join(listing.problems)})" if listing.problems else ""
    raise RequestError(ErrorCode.group_id_not_found, f"there is no group {group_id}{elsewhere}")


def describe_group(cluster: Cluster, row: GroupRow, most: int | None = None) -> GroupInfo:
    """Return a group with its members and its progress in the first `most` of its partitions (None: all)."""
    info = _consumer(cluster, row) if row.kind == CONSUMER else _classic(cluster, row)
    owners = {
        (topic, partition): member.member_id
        for member in info.members
        for topic, partitions in member.assigned
        for partition in partitions
    }
    committed = committed_offsets(cluster, row.node, row.group_id)
    places = sorted(owners.keys() | committed.keys())
    looked_up = places if most is None else places[:most]
    ends = cluster.ends(looked_up)
    positions = tuple(
        PartitionProgress(*place, committed.get(place), ends.get(place), owners.get(place))
        for place in looked_up
    )
    return info._replace(positions=positions, cut=len(places) - len(looked_up))


def committed_offsets(cluster: Cluster, coordinator: int, group_id: str) -> dict[tuple[str, int], int]:
    """Return the offsets that a group has committed, by topic and partition."""
    (group,) = fetch_committed(cluster, coordinator, (group_id,))
    _raise_for(group.error_code, None, f"offsets of {group_id}")
    return offsets_in(group)


def _consumer(cluster: Cluster, row: GroupRow) -> GroupInfo:
    (group,) = describe_consumer_groups(cluster, row.node, (row.group_id,))
    _raise_for(group.error_code, group.error_message, f"group {row.group_id}")
    members = tuple(
        MemberInfo(
            m.member_id, m.instance_id, m.rack_id, m.client_id, m.client_host,
            m.member_type == _CLASSIC_MEMBER, m.member_epoch, tuple(m.subscribed_topic_names),
            m.subscribed_topic_regex or None, _named(m.assignment), _named(m.target_assignment),
        )
        for m in group.members
    )  # fmt: skip
    now = row._replace(state=group.group_state)
    return GroupInfo(now, group.assignor_name, group.group_epoch, group.assignment_epoch, members)


def _named(assignment: Any) -> Partitions:
    return tuple(sorted((t.topic_name, tuple(sorted(t.partitions))) for t in assignment.topic_partitions))


def _classic(cluster: Cluster, row: GroupRow) -> GroupInfo:
    (group,) = describe_classic_groups(cluster, row.node, (row.group_id,))
    _raise_for(group.error_code, group.error_message, f"group {row.group_id}")
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    members = tuple(_classic_member(one, is_consumer) for one in group.members)
    now = row._replace(state=group.group_state, protocol_type=group.protocol_type)
    return GroupInfo(now, group.protocol_data, None, None, members)


def _classic_member(member: Any, is_consumer: bool) -> MemberInfo:
    """Decode what a member of a `consumer` group wrote for other clients; empty during a rebalance."""
    topics: tuple[str, ...] = ()
    assigned: Partitions = ()
    problem = None
    try:
        if is_consumer and member.member_metadata:
            topics = decode_subscription(bytes(member.member_metadata)).topics
        if is_consumer and member.member_assignment:
            assigned = _merged(decode_assignment(bytes(member.member_assignment)).partitions)
    except MalformedEmbedded as e:
        problem = str(e)
    return MemberInfo(
        member.member_id, member.group_instance_id, None, member.client_id, member.client_host, True, None,
        topics, None, assigned, None, problem,
    )  # fmt: skip


def _merged(partitions: Iterable[tuple[str, Sequence[int]]]) -> Partitions:
    """Merge repeated topics and sort: a client may have split a topic."""
    by_topic: dict[str, set[int]] = {}
    for topic, numbers in partitions:
        by_topic.setdefault(topic, set()).update(numbers)
    return tuple((topic, tuple(sorted(numbers))) for topic, numbers in sorted(by_topic.items()))


def _raise_for(code: ErrorCode, message: str | None, what: str) -> None:
    if code != ErrorCode.none:
        name = ErrorCode(code).name.upper()
        raise RequestError(ErrorCode(code), f"{what}: {message} ({name})" if message else f"{what}: {name}")
