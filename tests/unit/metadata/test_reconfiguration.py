"""Voters that are added, removed and updated: which of several reasons refuses them, and when that ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft import messages
from service.metadata.raft.events import (
    AppendControl,
    Effect,
    Flushed,
    InboundRequest,
    KRaftVersion,
    KRaftVoters,
    Lead,
    OutboundResponse,
    Tick,
)
from service.metadata.raft.keys import NO_DIRECTORY, ReplicaKey
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CallFailed,
    LeaderResponse,
    RaftFetchRequest,
    Refusal,
    RemoveVoter,
    UpdateVoter,
    UpgradeKRaftVersion,
    VoterChangeResponse,
)
from service.metadata.raft.roles import Leader, Role
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import Batch
from tests.unit.metadata.raft_nodes import Node, endpoint, key

TIMED_OUT = ErrorCode.request_timed_out


def voter(node_id: int, **more: Any) -> VoterNode:
    return VoterNode(key(node_id), (endpoint(node_id),), **more)


def leading(*voters: int, commits: bool = True) -> Node:
    """Node 1 leads `voters` under kraft.version 1; `commits`: they have what it has."""
    node = Node(voters=1)
    node.log.append(node_batch(node, KRaftVersion(1), KRaftVoters(VoterSet(map(voter, voters or (1,))))))
    node.tell(Tick())
    assert node.machine.role is Role.LEADER
    if commits:
        commit(node)
    return node


def node_batch(node: Node, *records: Any) -> Batch:
    return Batch(node.log.end_offset, node.machine.epoch, records)


def commit(node: Node) -> list[Effect]:
    """The disk has everything, and so have all voters."""
    effects = []
    for _ in range(3):
        effects += node.tell(Flushed(node.log.end_offset))
        for one in node.machine.voters:
            if one.node_id != 1:
                effects += fetch(node, one.node_id)
    return effects


def fetch(node: Node, node_id: int, offset: int | None = None) -> list[Effect]:
    end, epoch = node.log.end_offset, node.machine.epoch
    node.requests += 1
    at = end if offset is None else offset
    asked = RaftFetchRequest(key(node_id), epoch, at, epoch if at else 0, max_wait_ms=0, cluster_id="cluster")
    return node.tell(InboundRequest(node.requests, asked))


def state_of(node: Node) -> Leader:
    state = node.machine.core.state
    assert isinstance(state, Leader)
    return state


def begin(node: Node, asked: Any) -> tuple[int, list[Effect]]:
    node.requests += 1
    return node.requests, node.tell(InboundRequest(node.requests, asked))


def answers(effects: list[Effect], request: int) -> list[Any]:
    return [one.answer for one in effects if isinstance(one, OutboundResponse) and one.id == request]


def versions_of(node: Node, effects: list[Effect], answer: Any) -> list[Effect]:
    (send,) = node.sends(effects, ApiVersionsRequest)
    return node.answer(send, answer)


SPEAKS = ApiVersionsResponse(NONE, 0, 1)


def test_a_voter_is_added_once_that_is_committed_by_the_new_majority() -> None:
    node = leading()
    fetch(node, 2)
    request, effects = begin(node, AddVoter(voter(2), cluster_id="cluster"))
    assert not answers(effects, request)
    effects = versions_of(node, effects, SPEAKS)
    assert node.machine.voters.ids == (1, 2), "it counts once it is appended"
    effects += node.tell(Flushed(node.log.end_offset))
    assert not answers(effects, request), "one of two"
    effects = fetch(node, 2)
    assert answers(effects, request) == [VoterChangeResponse(NONE)]
    assert state_of(node).change is None


def test_an_add_voter_without_ack_is_answered_before_its_commit() -> None:
    node = leading()
    fetch(node, 2)
    asked = AddVoter(voter(2), ack_when_committed=False)
    request, effects = begin(node, asked)
    effects = versions_of(node, effects, SPEAKS)
    assert answers(effects, request) == [VoterChangeResponse(NONE)]
    assert node.ask(RemoveVoter(key(2))).error is TIMED_OUT, "it is pending all the same"
    commit(node)
    assert node.ask(AddVoter(voter(2))).error is ErrorCode.duplicate_voter


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (AddVoter(voter(2), cluster_id="other"), ErrorCode.inconsistent_cluster_id),
        (AddVoter(voter(2)._replace(key=ReplicaKey(-1, UUID(int=2)))), ErrorCode.invalid_request),
        (AddVoter(voter(2)._replace(key=ReplicaKey(2, NO_DIRECTORY))), ErrorCode.invalid_request),
        (AddVoter(voter(2)._replace(endpoints=())), ErrorCode.invalid_request),
        (
            AddVoter(voter(2)._replace(endpoints=(Endpoint("OTHER", "n2", 9093),))),
            ErrorCode.invalid_request,
        ),
        (AddVoter(voter(1)), ErrorCode.duplicate_voter),
        (AddVoter(voter(1)._replace(key=ReplicaKey(1, UUID(int=77)))), ErrorCode.duplicate_voter),
        (RemoveVoter(key(1), "other"), ErrorCode.inconsistent_cluster_id),
        (RemoveVoter(ReplicaKey(1, NO_DIRECTORY)), ErrorCode.invalid_request),
        (RemoveVoter(ReplicaKey(-4, UUID(int=4))), ErrorCode.invalid_request),
        (RemoveVoter(key(3)), ErrorCode.voter_not_found),
        (RemoveVoter(ReplicaKey(1, UUID(int=77))), ErrorCode.voter_not_found),
        (RemoveVoter(key(1)), ErrorCode.voter_not_found),
    ],
)
def test_changes_that_cannot_be(asked: Any, error: ErrorCode) -> None:
    """The last one: the only voter stays."""
    node = leading()
    end = node.log.end_offset
    assert node.ask(asked).error is error
    assert node.log.end_offset == end
    assert node.machine.voters.ids == (1,)


def test_a_voter_is_reached_by_the_listener_of_our_first_ones_name() -> None:
    module = messages.module_of(80, 1, "request")

    def asked(*listeners: tuple[str, str, int]) -> Any:
        made = tuple(module.Listener(name=name, host=host, port=port) for name, host, port in listeners)
        return messages.of_request(
            80,
            1,
            messages.make(
                module,
                "AddRaftVoterRequest",
                cluster_id="cluster",
                timeout=timedelta(seconds=1),
                voter_id=2,
                voter_directory_id=UUID(int=2),
                listeners=made,
            ),
        )

    node = leading()
    fetch(node, 2)
    assert node.ask(asked(("elsewhere", "n2", 1), ("else", "n2", 2))).error is ErrorCode.invalid_request
    _, effects = begin(node, asked(("elsewhere", "n2", 1), ("Controller", "n2", 7), ("controller", "n2", 9)))
    (send,) = node.sends(effects, ApiVersionsRequest)
    assert send.peer.endpoint == Endpoint("CONTROLLER", "n2", 9)
    node.answer(send, SPEAKS)
    (_, added) = node.machine.voters
    assert added.endpoints == (Endpoint("ELSEWHERE", "n2", 1), Endpoint("CONTROLLER", "n2", 9))
    peer = node.machine.core.peer(added)
    assert peer is not None
    assert peer.endpoint.port == 9


def test_several_reasons_against_a_voter_change_are_checked_in_order() -> None:
    """Cluster, leadership, what the request lacks; then what the log says, then who votes."""
    follower = Node()
    bad = AddVoter(voter(1)._replace(endpoints=()), cluster_id="other")
    assert follower.ask(bad).error is ErrorCode.inconsistent_cluster_id
    assert follower.ask(bad._replace(cluster_id=None)).error is ErrorCode.not_leader_or_follower
    node = Node()
    node.lead()
    assert node.ask(bad._replace(cluster_id=None)).error is ErrorCode.invalid_request
    assert node.ask(AddVoter(voter(1))).error is TIMED_OUT, "nothing of its epoch is committed"
    node.ask(RaftFetchRequest(key(2), 1, 1, 1, cluster_id="cluster"))
    node.tell(Flushed(1))
    assert node.ask(AddVoter(voter(1))).error is ErrorCode.unsupported_version
    assert node.ask(RemoveVoter(key(9))).error is ErrorCode.unsupported_version
    node = leading(1, 2)
    fetch(node, 3)
    _, effects = begin(node, AddVoter(voter(3)))
    versions_of(node, effects, SPEAKS)
    assert node.ask(AddVoter(voter(1))).error is TIMED_OUT
    node.now_ms += 2_100
    request, effects = begin(node, RemoveVoter(key(9)))
    (answer,) = answers(effects, request)
    assert (answer.error, "under way" in answer.message) == (TIMED_OUT, False), "its time is up"
    assert state_of(node).change is None
    commit(node)
    assert node.ask(RemoveVoter(key(9))).error is ErrorCode.voter_not_found


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CallFailed(), TIMED_OUT),
        (Refusal(ErrorCode.unsupported_version), TIMED_OUT),
        (ApiVersionsResponse(ErrorCode.unsupported_version), TIMED_OUT),
        (ApiVersionsResponse(NONE), ErrorCode.invalid_request),
        (ApiVersionsResponse(NONE, 2, 3), ErrorCode.invalid_request),
    ],
)
def test_a_new_voter_must_support_the_kraft_version(answer: Any, error: ErrorCode) -> None:
    node = leading()
    fetch(node, 2)
    request, effects = begin(node, AddVoter(voter(2)))
    effects = versions_of(node, effects, answer)
    assert [one.error for one in answers(effects, request)] == [error]
    assert node.machine.voters.ids == (1,)
    assert state_of(node).change is None


def test_a_new_voter_has_fetched_what_there_is() -> None:
    node = leading()
    request, effects = begin(node, AddVoter(voter(2)))
    effects = versions_of(node, effects, SPEAKS)
    assert [one.error for one in answers(effects, request)] == [TIMED_OUT], "it has never been seen"
    fetch(node, 2, 0)
    node.now_ms += 1000
    request, effects = begin(node, AddVoter(voter(2)))
    effects = versions_of(node, effects, SPEAKS)
    assert [one.error for one in answers(effects, request)] == [TIMED_OUT], "it is behind"
    fetch(node, 2)
    node.now_ms += 3_600_000
    request, effects = begin(node, AddVoter(voter(2)))
    effects = versions_of(node, effects, SPEAKS)
    assert [one.error for one in answers(effects, request)] == [TIMED_OUT], "that was an hour ago"


def test_a_voter_change_that_times_out_may_still_commit() -> None:
    node = leading(1, 2)
    request, effects = begin(node, RemoveVoter(key(2)))
    assert not answers(effects, request)
    assert node.machine.voters.ids == (1,)
    effects = node.pass_ms(2_000)
    assert [one.error for one in answers(effects, request)] == [TIMED_OUT]
    commit(node)
    assert node.machine.voters.ids == (1,)


def test_a_leader_that_removed_itself_leads_until_that_is_committed() -> None:
    node = leading(1, 2, 3)
    request, effects = begin(node, RemoveVoter(key(1)))
    assert node.machine.role is Role.LEADER
    effects = node.tell(Flushed(node.log.end_offset)) + fetch(node, 2)
    assert node.machine.role is Role.LEADER, "one of two"
    effects += fetch(node, 3)
    assert answers(effects, request) == [VoterChangeResponse(NONE)]
    assert node.machine.role is Role.RESIGNED


def update(node: Node, one: VoterNode, **more: Any) -> ErrorCode:
    request, effects = begin(node, UpdateVoter(more.pop("epoch", node.machine.epoch), one, **more))
    (answer,) = answers(effects, request)
    assert isinstance(answer, LeaderResponse)
    assert (answer.epoch, answer.leader_id) == (node.machine.epoch, node.machine.leader_id)
    error: ErrorCode = answer.error
    return error


def test_several_reasons_against_update_voter_are_checked_in_order() -> None:
    node = leading(1, 2)
    good, epoch = voter(2), node.machine.epoch
    nobody = good._replace(key=ReplicaKey(2, NO_DIRECTORY))
    assert update(node, nobody, epoch=0, cluster_id="other") is ErrorCode.inconsistent_cluster_id
    assert update(node, nobody, epoch=epoch - 1) is ErrorCode.fenced_leader_epoch
    assert update(node, nobody, epoch=epoch + 1) is ErrorCode.unknown_leader_epoch
    elsewhere = (Endpoint("OTHER", "n2", 9093),)
    begun, effects = begin(node, RemoveVoter(key(2)))  # under way: what is malformed is so all the same
    assert not answers(effects, begun)
    for one in (
        nobody,
        good._replace(endpoints=()),
        good._replace(endpoints=elsewhere),
        good._replace(min_version=-1),
        good._replace(min_version=2, max_version=1),
    ):
        assert update(node, one) is ErrorCode.invalid_request
    assert update(node, good._replace(min_version=2, max_version=2)) is TIMED_OUT
    node.now_ms += 2_100
    assert update(node, good._replace(min_version=2, max_version=2)) is TIMED_OUT, "not committed"
    commit(node)
    assert update(node, good._replace(min_version=2, max_version=2)) is ErrorCode.invalid_request
    assert update(node, good) is ErrorCode.voter_not_found


def test_update_voter_writes_changes_and_counts_as_heard() -> None:
    node = leading(1, 2)
    node.now_ms += 2_900
    end = node.log.end_offset
    assert update(node, voter(2)) is NONE
    assert node.log.end_offset == end, "nothing new"
    node.pass_ms(2_000)
    assert node.machine.role is Role.LEADER, "a majority was heard 2 s ago"
    assert update(node, voter(2)._replace(endpoints=(endpoint(5),))) is NONE
    assert node.machine.voters.get(2) == voter(2)._replace(endpoints=(endpoint(5),))
    assert update(node, voter(2)) is TIMED_OUT, "the last one is not committed"
    node.pass_ms(3_100)
    assert node.machine.role is not Role.LEADER


def test_kraft_version_is_not_raised_before_all_voters_sent_update_voter() -> None:
    node = Node()
    assert node.ask(UpgradeKRaftVersion(1)).error is ErrorCode.not_leader_or_follower
    node.lead()
    node.tell(Flushed(1))
    for other in (2, 3):
        fetch(node, other)
    for version in (2, -1):
        assert node.ask(UpgradeKRaftVersion(version)).error is ErrorCode.invalid_update_version
    assert node.ask(UpgradeKRaftVersion(0)).error is NONE, "as it is"
    assert node.ask(UpgradeKRaftVersion(1)).error is ErrorCode.invalid_update_version
    assert update(node, voter(2)) is NONE
    assert update(node, voter(3, max_version=0)) is NONE
    answer = node.ask(UpgradeKRaftVersion(1))
    assert (answer.error, answer.message) == (
        ErrorCode.invalid_update_version,
        "Voters [3] have not said where they are, or that they speak kraft.version 1.",
    )
    assert update(node, voter(3)) is NONE
    assert update(node, voter(1)._replace(endpoints=(endpoint(9),))) is NONE, "who says so is not this node"
    assert node.ask(UpgradeKRaftVersion(1, validate_only=True)).error is NONE
    assert node.log.voters.version == 0
    request, effects = begin(node, UpgradeKRaftVersion(1))
    assert answers(effects, request) == [VoterChangeResponse(NONE)]
    (written,) = [one for one in effects if isinstance(one, AppendControl)]
    assert written.records == (KRaftVersion(1), KRaftVoters(VoterSet(map(voter, (1, 2, 3)))))
    assert node.log.voters.version == 1
    assert node.ask(UpgradeKRaftVersion(1)).error is NONE
    assert node.ask(UpgradeKRaftVersion(0)).error is ErrorCode.invalid_update_version
    assert not [one for one in effects if isinstance(one, Lead)]
