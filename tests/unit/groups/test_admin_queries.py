"""Answers of a cluster about groups: nodes that do not answer, members with malformed data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v10.response import OffsetFetchResponsePartitions

from service.base.errors import RequestError
from service.client.admin import Cluster
from service.client.admin_models import ClusterInfo, NodeInfo
from service.groups.admin_models import CLASSIC, CONSUMER, GroupRow, Listing, PartitionProgress, as_json
from service.groups.admin_queries import describe_group, find_group, list_groups
from service.groups.protocol import Assignment, Subscription, encode_assignment, encode_subscription
from service.wire.api import ApiKey, response_module
from service.wire.offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)


class Node:
    """Answers by API, or what it fails with."""

    def __init__(self, answers: Mapping[int, Any] | Exception) -> None:
        self.answers = answers

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, api_key: int, message: Any, *, newest: int | None = None) -> Any:
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers[api_key]


class Nodes:
    """The part of a `Cluster` that is asked about groups."""

    def __init__(self, *nodes: Node, ends: Mapping[tuple[str, int], int] | None = None) -> None:
        self.nodes = nodes
        self.known_ends = ends or {}

    def describe(self) -> ClusterInfo:
        told = [NodeInfo(n, "h", 1, None, False) for n in range(len(self.nodes))]
        return ClusterInfo("c", 0, (*told, NodeInfo(99, "h", 1, None, True)))

    def client(self, broker: int) -> Node:
        return self.nodes[broker]

    def apart(self, broker: int, timeout_s: float) -> Node:
        return self.nodes[broker]

    def ends(self, places: Any) -> dict[tuple[str, int], int]:
        return {place: self.known_ends[place] for place in places if place in self.known_ends}


def cluster(*nodes: Node, ends: Mapping[tuple[str, int], int] | None = None) -> Cluster:
    return cast("Cluster", Nodes(*nodes, ends=ends))


def groups_of(*rows: tuple[str, str], error: ErrorCode = ErrorCode.none) -> Node:
    module = response_module(ApiKey.LIST_GROUPS)
    listed = tuple(
        module.ListedGroup(group_id=name, protocol_type="consumer", group_state="Stable", group_type=kind)
        for name, kind in rows
    )
    response = module.ListGroupsResponse(throttle_time=None, error_code=error, groups=listed)
    return Node({ApiKey.LIST_GROUPS: response})


def test_groups_of_all_nodes_in_the_order_of_their_ids() -> None:
    found = list_groups(cluster(groups_of(("b", "Classic"), ("d", "")), groups_of(("a", "Consumer"))))
    assert [(one.group_id, one.node, one.kind) for one in found.rows] == [
        ("a", 1, CONSUMER), ("b", 0, CLASSIC), ("d", 0, CLASSIC),
    ]  # fmt: skip
    assert found.problems == ()


@pytest.mark.parametrize(
    "other",
    [Node(ConnectionError("refused")), groups_of(error=ErrorCode.coordinator_load_in_progress)],
    ids=["away", "loading"],
)
def test_a_node_that_does_not_tell_is_named_and_the_others_are_shown(other: Node) -> None:
    found = list_groups(cluster(other, groups_of(("a", "Consumer"))))
    assert [one.group_id for one in found.rows] == ["a"]
    (problem,) = found.problems
    assert problem.startswith("node 0: ")
    with pytest.raises(RequestError, match=r"no group b \(node 0: "):
        find_group(found, "b")
    with pytest.raises((RequestError, ConnectionError)):
        list_groups(cluster(other))


def test_a_group_that_no_node_has() -> None:
    with pytest.raises(RequestError) as caught:
        find_group(Listing(()), "nobody")
    assert caught.value.code == ErrorCode.group_id_not_found


def classic(*members: tuple[str, bytes, bytes], protocol_type: str = "consumer") -> Node:
    module = response_module(ApiKey.DESCRIBE_GROUPS)
    described = module.DescribedGroup(
        error_code=ErrorCode.none,
        group_id="g",
        group_state="Stable",
        protocol_type=protocol_type,
        protocol_data="range",
        members=tuple(
            module.DescribedGroupMember(
                member_id=name, client_id="c", client_host="/h", member_metadata=said, member_assignment=has
            )
            for name, said, has in members
        ),
    )
    at = OffsetFetchResponsePartitions(
        partition_index=1, committed_offset=5, metadata="", error_code=ErrorCode.none
    )
    never = OffsetFetchResponsePartitions(
        partition_index=2, committed_offset=-1, metadata="", error_code=ErrorCode.none
    )
    committed = OffsetFetchResponseGroup(
        group_id="g", topics=(OffsetFetchResponseTopics(name="t", partitions=(at, never)),)
    )
    return Node(
        {
            ApiKey.DESCRIBE_GROUPS: module.DescribeGroupsResponse(throttle_time=None, groups=(described,)),
            ApiKey.OFFSET_FETCH: OffsetFetchResponse(throttle_time=cast("Any", None), groups=(committed,)),
        }
    )


ROW = GroupRow("g", 0, "Stable", CLASSIC, "consumer")
WANTS = encode_subscription(Subscription(1, ("t",)))
HAS = encode_assignment(Assignment(1, (("t", (1,)), ("t", (0, 1)))))


def test_positions_are_of_what_is_committed_and_of_what_members_have() -> None:
    info = describe_group(cluster(classic(("m", WANTS, HAS)), ends={("t", 0): 9, ("t", 1): 9}), ROW)
    assert info.members[0].assigned == (("t", (0, 1)),)
    assert info.positions == (PartitionProgress("t", 0, None, 9, "m"), PartitionProgress("t", 1, 5, 9, "m"))
    assert info.lag == 4
    told = as_json(info)
    assert told["lag"] == 4
    assert told["members"][0]["assigned"] == {"t": (0, 1)}  # type: ignore[index]


def test_so_many_positions_are_looked_up_and_the_others_counted() -> None:
    info = describe_group(cluster(classic(("m", WANTS, HAS)), ends={("t", 0): 9}), ROW, 1)
    assert len(info.positions) == 1
    assert info.cut == 1


@pytest.mark.parametrize("said", [b"\x00", b"\x00\x01\x7f\xff\xff\xff", b"\xff\xff"])
def test_a_member_with_a_malformed_assignment_hides_no_other(said: bytes) -> None:
    info = describe_group(cluster(classic(("bad", WANTS, said), ("good", WANTS, HAS))), ROW)
    assert [one.problem is None for one in info.members] == [False, True]
    assert info.positions[0].member_id == "good"
    assert info.positions[1].end is None


def test_members_of_other_protocols_are_not_read() -> None:
    info = describe_group(cluster(classic(("m", b"\xff", b"\xff"), protocol_type="connect")), ROW)
    assert (info.members[0].topics, info.members[0].assigned, info.members[0].problem) == ((), (), None)
