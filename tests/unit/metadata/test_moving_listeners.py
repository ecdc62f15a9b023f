"""Controllers with two listeners, some using the first and some the second: whom is a peer told to go to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.metadata.endpoint import Endpoint
from service.metadata.raft.core import endpoint_for
from service.metadata.raft.events import Initialize
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.messages_out import to_request
from service.metadata.raft.requests import VoteRequest, VoteResponse
from service.metadata.raft.roles import RaftTiming, ReplicaIdentity
from service.metadata.raft.runtime import Quorum
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import ModelLog
from tests.unit.metadata.raft_nodes import key

OLD, NEW = "CONTROLLER", "SECURED"


def at(node_id: int, listener: str) -> Endpoint:
    return Endpoint(listener, f"n{node_id}", 9093 if listener == OLD else 9193)


def both(node_id: int, first: str) -> tuple[Endpoint, ...]:
    return tuple(at(node_id, one) for one in (first, OLD if first == NEW else NEW))


def machine(first: str, leader_id: int, voters: Iterable[VoterNode]) -> RaftMachine:
    """Node 1, which uses `first`, in an epoch of that leader."""
    found = RaftMachine(
        ReplicaIdentity(key(1), "cluster", both(1, first)),
        ModelLog(VoterSet(voters)),
        RaftTiming(),
        Random(1),
    )
    found.handle(Initialize(QuorumState(5, leader_id=leader_id)), 0)
    return found


VOTERS = [VoterNode(key(i), both(i, OLD)) for i in (1, 2, 3)]


@pytest.mark.parametrize("first", [OLD, NEW])
@pytest.mark.parametrize("asked_at", [OLD, NEW])
def test_a_peer_is_told_the_leaders_endpoint_of_the_listener_it_came_to(first: str, asked_at: str) -> None:
    following = machine(first, 2, VOTERS).core
    own = following.endpoint_of(2)
    assert own == at(2, first)
    assert endpoint_for(following, asked_at, 2, own) == at(2, asked_at)
    assert endpoint_for(following, asked_at.lower(), 1, at(1, first)) == at(1, asked_at), "itself"


def test_a_leader_without_such_a_listener_is_told_without_an_address() -> None:
    voters = [VoterNode(key(1), both(1, OLD)), VoterNode(key(2), (at(2, OLD),))]
    core = machine(OLD, 2, voters).core
    assert endpoint_for(core, NEW, 2, at(2, OLD)) is None
    assert endpoint_for(core, NEW, 9, at(9, OLD)) is None
    assert endpoint_for(core, OLD, 2, None) is None


def test_a_leader_that_is_told_without_an_endpoint_is_reached_at_our_own_listener() -> None:
    node = machine(NEW, -1, VOTERS)
    node.election.learn(3, 6, None)
    assert node.core.leader_endpoint == at(3, NEW)


def test_a_message_that_comes_to_the_second_listener_is_answered_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka's messages in and out; what the machine answers is known here."""
    quorum = object.__new__(Quorum)
    quorum._machine = machine(OLD, 2, VOTERS)
    quorum._clock = SystemClock()

    async def ask(request: object) -> VoteResponse:
        return VoteResponse(ErrorCode.none, 5, 2, at(2, OLD))

    monkeypatch.setattr(quorum, "ask", ask)
    vote = VoteRequest(5, key(3), 0, 0, voter=key(1), cluster_id="cluster")
    api_key, version, message = to_request(vote)
    for listener, port in (("", 9093), (OLD, 9093), (NEW, 9193)):
        answer = asyncio.run(quorum.handle(api_key, version, message, listener))
        assert [(one.node_id, one.port) for one in answer.node_endpoints] == [(2, port)]
