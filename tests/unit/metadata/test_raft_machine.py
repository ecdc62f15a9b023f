"""The Raft machine as a whole: the order of its effects, and its answers to requests."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendControl,
    Appended,
    AppendFetched,
    Cancelled,
    Effect,
    Flushed,
    FlushLog,
    InboundRequest,
    InboundResponse,
    Initialize,
    Lead,
    LeaderChange,
    NotAppended,
    OutboundResponse,
    Persist,
    Send,
    StepDown,
    Stop,
    Tick,
    TruncateTo,
)
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.log_view import EpochIndex, ValidationKind, validate_offset_and_epoch
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    ConnectionRefused,
    EndQuorumEpochRequest,
    LeaderResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    ReadLog,
    Refusal,
    RemoveVoter,
    VersionUnsupported,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.roles import LEGAL_MOVES, RaftTiming, ReplicaIdentity, Role
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import Batch, ModelLog
from tests.unit.metadata.raft_nodes import Node, endpoint, key


def test_a_sole_voter_persists_its_vote_and_leads_at_once() -> None:
    node = Node(voters=1)
    assert node.started[:3] == [
        Persist(QuorumState(1, leader_id=1, voters=(1,))),
        AppendControl(1, (LeaderChange(1, (1,), (1,)),)),
        Lead(1),
    ]
    assert node.machine.next_deadline_ms() is None or node.machine.next_deadline_ms() == 0


@pytest.mark.parametrize(
    ("state", "end", "epoch"),
    [(None, 0, 1), (QuorumState(7, leader_id=1), 3, 8), (QuorumState(7), 3, 8), (None, 5, 2)],
)
def test_every_start_of_a_sole_voter_begins_an_epoch_later_than_any_before(
    state: QuorumState | None, end: int, epoch: int
) -> None:
    assert Node(voters=1, state=state, end=end).machine.epoch == epoch


def test_records_are_committed_after_their_flush_and_flushes_are_merged() -> None:
    node = Node(voters=1)
    assert FlushLog(1) in node.started
    assert node.machine.high_watermark == 0
    node.log.append(Batch(1, 1, (1, 2)))
    assert node.tell(Appended(3)) == []
    assert node.tell(Flushed(1)) == [FlushLog(3), AdvanceHighWatermark(1)]
    assert node.tell(Flushed(3)) == [AdvanceHighWatermark(3)]


def test_records_of_earlier_epochs_are_committed_with_the_first_of_this_one() -> None:
    node = Node(voters=1, end=100)
    assert node.machine.high_watermark == 0
    assert AdvanceHighWatermark(101) in node.tell(Flushed(101))


@pytest.mark.parametrize(
    ("state", "role"),
    [
        (None, Role.UNATTACHED),
        (QuorumState(3, leader_id=1), Role.RESIGNED),
        (QuorumState(3, voted_id=1), Role.CANDIDATE),
        (QuorumState(3, voted_id=2), Role.UNATTACHED),
        (QuorumState(3, leader_id=2), Role.FOLLOWER),
        (QuorumState(3, leader_id=9), Role.UNATTACHED),
        (QuorumState(3, leader_id=2, voted_id=1), Role.FOLLOWER),
        (QuorumState(3, leader_id=9, voted_id=1), Role.UNATTACHED),
    ],
)
def test_a_voter_starts_in_the_role_of_its_persisted_state(state: QuorumState | None, role: Role) -> None:
    node = Node(state=state)
    assert node.machine.role is role
    assert node.machine.epoch == (3 if state else 0)


def test_votes_and_leadership_are_persisted_before_they_are_announced() -> None:
    node = Node()
    effects = node.lead()
    persisted = effects.index(Persist(QuorumState(1, leader_id=1, voters=(1, 2, 3))))
    assert persisted < next(i for i, e in enumerate(effects) if isinstance(e, AppendControl))
    assert persisted < effects.index(Lead(1))
    assert node.machine.role is Role.LEADER
    assert node.sends(effects, BeginQuorumEpochRequest) or node.sends(
        node.pass_ms(10), BeginQuorumEpochRequest
    )


def test_a_peer_without_pre_vote_makes_a_candidate_at_once() -> None:
    node = Node()
    send = node.sends(node.pass_ms(2500), VoteRequest)[-1]
    effects = node.answer(send, VersionUnsupported())
    assert node.machine.role is Role.CANDIDATE
    assert Persist(QuorumState(1, voted_id=1, voters=(1, 2, 3))) in effects


def vote(epoch: int, **changes: Any) -> VoteRequest:
    return VoteRequest(epoch, key(2), 0, 0, voter=key(1), cluster_id="cluster")._replace(**changes)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (vote(4, cluster_id="another"), ErrorCode.inconsistent_cluster_id),
        (vote(4, last_offset=-1), ErrorCode.invalid_request),
        (vote(4, last_epoch=-1), ErrorCode.invalid_request),
        (vote(4, last_epoch=4), ErrorCode.invalid_request),
        (vote(4, last_epoch=5, pre_vote=True), ErrorCode.invalid_request),
        (vote(2), ErrorCode.fenced_leader_epoch),
        (vote(2, candidate=ReplicaKey(-1)), ErrorCode.fenced_leader_epoch),
        (vote(4, candidate=ReplicaKey(-1)), ErrorCode.invalid_request),
        (vote(4, voter=key(3)), ErrorCode.invalid_voter_key),
        (vote(4, voter=ReplicaKey(1, UUID(int=99))), ErrorCode.invalid_voter_key),
        (vote(4), NONE),
        (vote(4, last_epoch=4, pre_vote=True), NONE),
    ],
)
def test_invalid_vote_requests_are_refused(asked: VoteRequest, error: ErrorCode) -> None:
    node = Node(state=QuorumState(3))
    answer = node.ask(asked)
    assert answer.error is error
    assert getattr(answer, "granted", False) == (error is NONE)
    later = error in (NONE, ErrorCode.invalid_voter_key)
    assert node.machine.epoch == (4 if later else 3)


def test_a_vote_is_granted_once_and_persisted_before_the_response() -> None:
    node = Node(state=QuorumState(3))
    effects = node.tell(InboundRequest(1, vote(4)))
    kinds = [type(effect) for effect in effects if isinstance(effect, Persist | OutboundResponse)]
    assert kinds == [Persist, OutboundResponse]
    assert node.ask(vote(4, candidate=key(3))).granted is False
    assert node.ask(vote(4)).granted is True


def test_a_shorter_log_gets_no_vote() -> None:
    node = Node(state=QuorumState(3), end=10)
    assert node.ask(vote(4, last_epoch=1, last_offset=9)).granted is False
    assert node.ask(vote(4, last_epoch=1, last_offset=10, candidate=key(3))).granted is True


def test_a_follower_of_a_live_leader_grants_no_pre_vote() -> None:
    node = Node(state=QuorumState(3, leader_id=2))
    assert node.ask(vote(3, pre_vote=True, last_epoch=3)).granted is True
    (send,) = node.sends(node.started, RaftFetchRequest)
    node.answer(send, RaftFetchResponse(NONE, 3, 2, endpoint(2)))
    assert node.ask(vote(3, pre_vote=True, last_epoch=3)).granted is False
    assert node.ask(EndQuorumEpochRequest(3, 2, (key(3), key(1)))).error is NONE
    assert node.ask(vote(3, pre_vote=True, last_epoch=3)).granted is True


def test_a_leader_that_refuses_three_times_counts_as_dead() -> None:
    node = Node(state=QuorumState(3, leader_id=2))
    effects = node.started
    for _ in range(3):
        send = node.sends(effects, RaftFetchRequest)[-1]
        node.answer(send, ConnectionRefused())
        effects = node.pass_ms(30)
    assert node.machine.role is Role.PROSPECTIVE


def test_an_observer_refused_three_times_asks_other_voters() -> None:
    """Long before its fetch timeout: a broker's heartbeat goes to the next controller, which waits for it."""
    node = Node(9, state=QuorumState(3, leader_id=2))
    effects = node.started
    for _ in range(3):
        (send,) = node.sends(effects, RaftFetchRequest)[-1:]
        assert send.peer.node_id == 2
        effects = node.answer(send, ConnectionRefused()) + node.pass_ms(30)
    asked = [one.peer.node_id for one in node.sends(effects + node.pass_ms(400), RaftFetchRequest)]
    assert {1, 3} & {*asked}, asked
    assert node.machine.role is Role.FOLLOWER


def test_a_leader_without_a_majority_resigns_and_names_the_best_successor() -> None:
    node = Node()
    node.lead()
    node.tell(Flushed(1))
    fetch = RaftFetchRequest(key(3), 1, 1, 1, cluster_id="cluster")
    assert node.ask(fetch) is None, "it waits for records"
    effects = node.pass_ms(3200)
    assert node.machine.role is Role.RESIGNED
    assert any(isinstance(effect, StepDown) for effect in effects)
    ends = node.sends(effects + node.pass_ms(2500), EndQuorumEpochRequest)
    assert ends
    assert isinstance(ends[0].request, EndQuorumEpochRequest)
    assert [one.node_id for one in ends[0].request.successors] == [3, 2]


def test_a_majority_without_the_leader_can_commit() -> None:
    node = Node()
    node.lead()
    end = node.log.end_offset
    effects = node.tell(InboundRequest(1, RaftFetchRequest(key(2), 1, end, 1, cluster_id="cluster")))
    assert not [e for e in effects if isinstance(e, AdvanceHighWatermark)]
    effects = node.tell(InboundRequest(2, RaftFetchRequest(key(3), 1, end, 1, cluster_id="cluster")))
    assert AdvanceHighWatermark(end) in effects, "two of three disks have it, ours is not among them"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"max_wait_ms": -1}, ErrorCode.invalid_request),
        ({"offset": -1}, ErrorCode.invalid_request),
        ({"last_epoch": -1}, ErrorCode.invalid_request),
        ({"last_epoch": 2}, ErrorCode.invalid_request),
        ({"epoch": 0, "last_epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"epoch": 2}, ErrorCode.unknown_leader_epoch),
        ({}, NONE),
    ],
)
def test_invalid_fetches_are_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    node = Node()
    node.lead()
    asked = RaftFetchRequest(key(2), 1, 0, 0, max_wait_ms=0, cluster_id="cluster")._replace(**changes)
    answer = node.ask(asked)
    assert answer.error is error
    if error is NONE:
        assert isinstance(answer.records, ReadLog)
    elif not isinstance(answer, Refusal):
        assert (answer.leader_id, answer.endpoint) == (1, endpoint(1))


def test_a_fetch_waits_but_not_where_its_high_watermark_is_behind() -> None:
    node = Node()
    node.lead()
    node.tell(Flushed(1))
    asked = RaftFetchRequest(key(2), 1, 1, 1, high_watermark=0, cluster_id="cluster")
    assert node.ask(asked).high_watermark == 1
    assert node.ask(asked._replace(high_watermark=1)) is None
    (reply,) = [e for e in node.pass_ms(510) if isinstance(e, OutboundResponse)]
    assert isinstance(reply.answer, RaftFetchResponse)
    assert reply.answer.error is NONE


def test_waiting_fetches_are_answered_when_the_leader_stops() -> None:
    node = Node()
    node.lead()
    assert node.ask(RaftFetchRequest(key(2), 1, 1, 1, cluster_id="cluster")) is None
    (reply,) = [e for e in node.tell(Stop()) if isinstance(e, OutboundResponse)]
    assert isinstance(reply.answer, RaftFetchResponse)
    assert reply.answer.error is ErrorCode.not_leader_or_follower


def test_a_follower_truncates_where_the_logs_part_and_never_what_is_committed() -> None:
    node = Node(state=QuorumState(3, leader_id=2), end=10)
    (send,) = node.sends(node.started, RaftFetchRequest)
    told = RaftFetchResponse(NONE, 3, 2, endpoint(2), diverging=EpochEnd(1, 6))
    assert TruncateTo(6) in node.answer(send, told)
    (send,) = node.sends(node.pass_ms(1), RaftFetchRequest)
    effects = node.answer(send, RaftFetchResponse(NONE, 3, 2, endpoint(2), high_watermark=6))
    assert node.machine.high_watermark == 6
    (send,) = node.sends(effects, RaftFetchRequest)
    with pytest.raises(InvariantError, match=r"ours ends at 6 .* committed up to 6; .* stop that node"):
        node.answer(send, told._replace(diverging=EpochEnd(1, 3)))


def test_two_leaders_in_one_epoch_end_the_node() -> None:
    node = Node(state=QuorumState(3, leader_id=2))
    with pytest.raises(InvariantError, match="two leaders in epoch 3"):
        node.ask(BeginQuorumEpochRequest(3, 3, (endpoint(3),)))


def test_voters_do_not_change_under_version_0() -> None:
    node = Node()
    node.lead()
    answer = node.ask(RemoveVoter(key(3), "cluster"))
    assert answer.error is ErrorCode.request_timed_out, "nothing of its epoch is committed yet"
    node.ask(RaftFetchRequest(key(2), 1, 1, 1, cluster_id="cluster"))
    node.tell(Flushed(1))
    assert node.ask(RemoveVoter(key(3), "cluster")).error is ErrorCode.unsupported_version
    added = AddVoter(VoterNode(key(4), (endpoint(4),)), cluster_id="other")
    assert node.ask(added).error is ErrorCode.inconsistent_cluster_id
    assert Node().ask(added._replace(cluster_id=None)).error is ErrorCode.not_leader_or_follower


def test_append_linger_delays_the_flush_and_waiting_fetches() -> None:
    node = Node()
    node.machine.core.timing = replace(node.machine.core.timing, append_linger_ms=25)
    effects = node.lead()
    assert FlushLog(1) in effects, "what an epoch begins with does not wait"
    assert not fetches(node, 2, 1, high_watermark=0)
    node.tell(Flushed(1))
    assert node.machine.high_watermark == 1

    def append() -> list[Effect]:
        node.log.append(Batch(node.log.end_offset, 1, (0,)))
        return node.tell(Appended(node.log.end_offset))

    assert not fetches(node, 2, 1), "it waits for more"
    assert not append()
    node.now_ms += 20
    assert not append()
    assert not fetches(node, 3, 1), "another one, too"
    effects = node.pass_ms(5)
    assert FlushLog(3) in effects
    answers = [e.answer for e in effects if isinstance(e, OutboundResponse)]
    assert [type(one.records) for one in answers] == [ReadLog, ReadLog]
    assert not append(), "a new time begins"
    node.tell(Flushed(3))
    assert not [e for e in node.pass_ms(24) if isinstance(e, FlushLog)]
    assert FlushLog(4) in node.pass_ms(1)


def fetches(node: Node, node_id: int, offset: int, high_watermark: int = 1) -> list[Any]:
    """Return the immediate answers to a fetch; none if it waits."""
    asked = RaftFetchRequest(key(node_id), 1, offset, 1, high_watermark, cluster_id="cluster")
    node.requests += 1
    effects = node.tell(InboundRequest(node.requests, asked))
    return [e.answer for e in effects if isinstance(e, OutboundResponse) and e.id == node.requests]


def test_a_leader_of_a_later_epoch_is_followed_and_requests_of_the_old_one_are_fenced() -> None:
    node = Node()
    node.lead()
    effects = node.tell(
        InboundRequest(1, BeginQuorumEpochRequest(5, 3, (endpoint(3),), cluster_id="cluster"))
    )
    assert node.machine.role is Role.FOLLOWER
    assert StepDown() in effects
    told = [e.answer for e in effects if isinstance(e, OutboundResponse)]
    assert told == [LeaderResponse(NONE, 5, 3, endpoint(3))]
    assert node.ask(BeginQuorumEpochRequest(4, 2, (endpoint(2),))).error is ErrorCode.fenced_leader_epoch


def test_the_table_of_moves_knows_every_role() -> None:
    assert set(LEGAL_MOVES) == set(Role)
    assert all(moves <= set(Role) for moves in LEGAL_MOVES.values())
    assert Role.LEADER not in set.union(*(set(LEGAL_MOVES[r]) for r in Role if r is not Role.CANDIDATE))


def test_a_follower_position_is_compared_with_a_log_after_a_snapshot() -> None:
    log = ModelLog(VoterSet())
    log.append(Batch(0, 1, tuple(range(10))))
    log.append(Batch(10, 3, tuple(range(10))))
    assert validate_offset_and_epoch(log, 0, 0).fit is ValidationKind.VALID
    assert validate_offset_and_epoch(log, 10, 1).fit is ValidationKind.VALID
    assert validate_offset_and_epoch(log, 12, 1).diverging == EpochEnd(1, 10)
    assert validate_offset_and_epoch(log, 12, 2).diverging == EpochEnd(1, 10)
    assert validate_offset_and_epoch(log, 21, 3).diverging == EpochEnd(3, 20)
    log.snapshots = (SnapshotId(10, 1), SnapshotId(15, 3))
    log.start_offset = 10
    log.epochs = EpochIndex([(3, 10)], base=1, start_offset=10)
    newest = SnapshotId(15, 3)
    assert validate_offset_and_epoch(log, 0, 0).snapshot == newest
    assert validate_offset_and_epoch(log, 9, 1).snapshot == newest
    assert validate_offset_and_epoch(log, 10, 2).snapshot == newest
    assert validate_offset_and_epoch(log, 12, 0).snapshot == newest
    assert validate_offset_and_epoch(log, 10, 1).fit is ValidationKind.VALID
    assert validate_offset_and_epoch(log, 20, 3).fit is ValidationKind.VALID


def test_an_observer_that_looks_for_its_leader_claims_what_is_on_its_disk() -> None:
    """It may be a voter by a record that only the leader has; seed 20244 of the machines world."""
    node = Node(9, end=3, state=QuorumState(1, leader_id=2))
    (send,) = node.sends(node.pass_ms(0) + node.tell(Tick()) + node.started, RaftFetchRequest)[:1]
    node.log.append(Batch(3, 1, (3,)))
    node.answer(send, RaftFetchResponse(NONE, 1, 2, endpoint(2), 3, 0, records=(object(),)))  # type: ignore[arg-type]
    node.tell(Appended(4))
    sent = node.sends(node.pass_ms(5000), RaftFetchRequest)
    assert {one.request.offset for one in sent} == {3}, "nobody has told that the rest is flushed"
    node.tell(Flushed(4))
    sent = node.sends(node.pass_ms(5000), RaftFetchRequest)
    assert {one.request.offset for one in sent} == {4}


def test_a_leader_is_followed_once_its_endpoint_is_known() -> None:
    """Seed 349 of the machines world: an empty observer that starts with a leader in its state."""
    log = ModelLog(VoterSet())
    machine = RaftMachine(
        ReplicaIdentity(key(9), "cluster", (), (endpoint(1),)), log, RaftTiming(), Random(1)
    )
    effects = machine.handle(Initialize(QuorumState(20, leader_id=1)), 0)
    assert machine.role is Role.UNATTACHED
    (send,) = [one for one in effects if isinstance(one, Send)]
    machine.handle(
        InboundResponse(send.peer, send.call, RaftFetchResponse(NONE, 20, 1, endpoint(1), 5, 0)), 10
    )
    assert machine.role is Role.FOLLOWER
    assert machine.leader_endpoint == endpoint(1)


def test_an_expired_pre_vote_restarts_at_once_and_a_lost_one_waits() -> None:
    """Kafka 4.3 ``QuorumState.transitionToUnattached``: the time of a pre-vote goes on unless it was lost."""

    def standing() -> tuple[Node, list[Send]]:
        node = Node(1, end=3)
        waiting: Any = node.machine.core.state
        node.now_ms = waiting.deadline_ms
        sent = node.sends(node.tell(Tick()), VoteRequest)
        assert node.machine.role is Role.PROSPECTIVE
        return node, sent

    node, sent = standing()
    before: Any = node.machine.core.state
    node.now_ms = before.deadline_ms
    node.tell(Tick())
    assert node.machine.role is Role.PROSPECTIVE
    assert node.machine.core.state is not before

    node, sent = standing()
    for one in sent:
        node.answer(one, VoteResponse(NONE, node.machine.epoch))
    after: Any = node.machine.core.state
    assert node.machine.role is Role.UNATTACHED
    assert after.deadline_ms >= node.now_ms + 1000


def test_granting_a_vote_restarts_an_own_pre_vote() -> None:
    """Kafka 4.3 ``QuorumState.prospectiveAddVotedState``: pre-votes from before do not count with it."""
    node = Node(1, end=3, voters=5, state=QuorumState(4))
    send = next(one for one in node.sends(node.pass_ms(2500), VoteRequest) if one.peer.node_id == 3)
    node.answer(send, VoteResponse(NONE, 4, granted=True))
    state: Any = node.machine.core.state
    assert state.granted == {1, 3}
    answer = node.ask(VoteRequest(4, key(2), 1, 3))
    assert (answer.error, answer.granted) == (NONE, True)
    state = node.machine.core.state
    assert (node.machine.role, state.granted) == (Role.PROSPECTIVE, {1})


def test_a_refused_pre_vote_is_requested_again() -> None:
    """Its log may be the shorter one: then it cannot win, and we need not wait for our time to be up."""
    node = Node(1, end=3)
    sent = {one.peer.node_id: one for one in node.sends(node.pass_ms(2500), VoteRequest)}
    node.answer(sent[3], ConnectionRefused())
    node.answer(sent[2], VoteResponse(NONE, node.machine.epoch))
    assert node.machine.role is Role.PROSPECTIVE
    assert not [one for one in node.sends(node.pass_ms(90), VoteRequest) if one.peer.node_id == 2]
    (again,) = [one for one in node.sends(node.pass_ms(20), VoteRequest) if one.peer.node_id == 2]
    node.answer(again, VoteResponse(NONE, node.machine.epoch, granted=True))
    assert node.machine.role is Role.CANDIDATE


def test_an_observer_that_lost_its_leader_grants_a_pre_vote() -> None:
    """An observer here, which is a voter to the one who asks, does not stand by itself."""
    node = Node(4, state=QuorumState(3, leader_id=2))
    (send,) = node.sends(node.started, RaftFetchRequest)
    node.answer(send, RaftFetchResponse(NONE, 3, 2, endpoint(2)))
    assert node.ask(vote(3, pre_vote=True, last_epoch=3, voter=key(4))).granted is False
    node.now_ms += 2000
    assert node.ask(vote(3, pre_vote=True, last_epoch=3, voter=key(4))).granted is True


def test_api_versions_names_the_supported_kraft_versions() -> None:
    assert Node().ask(ApiVersionsRequest()) == ApiVersionsResponse(NONE, 0, 1)


def test_a_restart_remembers_the_vote_and_the_leader() -> None:
    voted = Node(state=QuorumState(3, voted_id=0))
    assert voted.ask(vote(3, last_epoch=2)).granted is False
    assert voted.ask(vote(4)).granted is True
    led = Node(state=QuorumState(3, leader_id=0))
    assert led.ask(vote(3, last_epoch=2)).leader_id == 0
    assert Node(state=QuorumState(3, leader_id=-1)).ask(vote(3, last_epoch=2)).leader_id == -1
    assert Node(state=QuorumState(1, voted_id=2), end=3).machine.epoch == 1
    older = Node(state=QuorumState(0, voted_id=2), end=3)
    assert older.machine.epoch == 1
    assert older.ask(vote(1, candidate=key(3), last_offset=9, last_epoch=0, pre_vote=True)).granted is False


def test_records_that_were_not_appended_are_fetched_again_after_a_pause() -> None:
    node = Node(state=QuorumState(3, leader_id=2))
    (send,) = node.sends(node.started, RaftFetchRequest)
    effects = node.answer(send, RaftFetchResponse(NONE, 3, 2, endpoint(2), 5, 0, records=b"abc"))
    assert AppendFetched(3, b"abc") in effects
    assert not node.sends(node.pass_ms(10), RaftFetchRequest)
    assert not node.sends(node.tell(NotAppended()), RaftFetchRequest)
    assert not node.sends(node.pass_ms(19), RaftFetchRequest)
    assert node.sends(node.pass_ms(1), RaftFetchRequest)


def test_a_cancelled_request_is_not_answered() -> None:
    node = Node()
    node.lead()
    epoch = node.machine.epoch
    assert node.ask(RaftFetchRequest(key(3), epoch, 1, epoch, max_wait_ms=500)) is None
    node.tell(Cancelled(node.requests))
    assert not [one for one in node.pass_ms(600) if isinstance(one, OutboundResponse)]


def test_a_resigned_leader_that_stops_begins_no_epoch() -> None:
    node = Node()
    node.lead()
    epoch = node.machine.epoch
    node.tell(Stop())
    node.pass_ms(10_000)
    assert (node.machine.role, node.machine.epoch) == (Role.RESIGNED, epoch)
