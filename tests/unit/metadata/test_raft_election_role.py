"""Raft elections: which votes are granted, which leader is believed, how an election ends."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.metadata.raft.core import RaftCore
from service.metadata.raft.election import ElectionRoles
from service.metadata.raft.events import Peer
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.requests import (
    NONE,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    LeaderResponse,
    Refusal,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tests.unit.metadata.raft_cores import BAD, FENCED, NOW_MS, core, key, last_answer, place, sent_by


def electing(epoch: int = 4, **options: Any) -> tuple[RaftCore, ElectionRoles]:
    made = core(**options)
    made.become_unattached(epoch, restart_timeout=True)
    return made, ElectionRoles(made)


@pytest.mark.parametrize(
    ("question", "error", "granted"),
    [
        (VoteRequest(5, key(2), 4, 0), NONE, True),
        (VoteRequest(5, key(2), 4, -1), BAD, False),
        (VoteRequest(5, key(2), -1, 0), BAD, False),
        (VoteRequest(5, key(2), 0, 0), NONE, True),
        (VoteRequest(5, key(2), 5, 0), BAD, False),
        (VoteRequest(5, key(2), 5, 0, pre_vote=True), NONE, True),
        (VoteRequest(5, key(2), 6, 0, pre_vote=True), BAD, False),
        (VoteRequest(3, key(2), 2, 0), FENCED, False),
        (VoteRequest(5, key(1), 4, 0), BAD, False),
        (VoteRequest(5, ReplicaKey(-1), 4, 0), BAD, False),
        (VoteRequest(2**31 - 3, key(2), 4, 0), NONE, True),
        (VoteRequest(2**31 - 2, key(2), 4, 0), BAD, False),
        (VoteRequest(5, key(2), 4, 0, voter=key(1)), NONE, True),
        (VoteRequest(5, key(2), 4, 0, voter=key(3)), ErrorCode.invalid_voter_key, False),
        (VoteRequest(5, key(2), 4, 0, cluster_id="cluster"), NONE, True),
    ],
)
def test_a_vote_is_granted_to_a_valid_request_only(
    question: VoteRequest, error: ErrorCode, granted: bool
) -> None:
    made, election = electing()
    election.vote(7, question)
    assert (last_answer(made).error, last_answer(made).granted) == (error, granted)


def test_a_refused_vote_keeps_the_epoch_unless_it_named_another_voter() -> None:
    made, election = electing()
    election.vote(7, VoteRequest(9, key(2), 9, 0))
    assert made.epoch == 4
    election.vote(7, VoteRequest(9, key(2), 4, 0, voter=key(3)))
    assert (made.epoch, made.voted) == (9, None)
    election.vote(7, VoteRequest(9, key(2), 4, 0, cluster_id="other"))
    assert last_answer(made) == Refusal(ErrorCode.inconsistent_cluster_id)


def test_a_voter_grants_one_vote_in_an_epoch_and_none_beside_a_leader() -> None:
    made, election = electing()
    election.vote(1, VoteRequest(4, key(2), 1, 0))
    assert last_answer(made) == VoteResponse(NONE, 4, -1, None, True)
    election.vote(2, VoteRequest(4, key(3), 1, 0))
    assert last_answer(made) == VoteResponse(NONE, 4, -1, None, False)
    election.vote(3, VoteRequest(4, key(2), 1, 0))
    assert last_answer(made).granted
    led, election = electing()
    led.become_follower(4, 2, None)
    assert isinstance(led.state, Unattached)
    election.vote(4, VoteRequest(4, key(3), 1, 0))
    assert last_answer(led) == VoteResponse(NONE, 4, 2, place(2), False)
    led.become_follower(4, 2, place(2))
    election.vote(5, VoteRequest(4, key(2), 1, 0))
    assert not last_answer(led).granted, "who follows votes for nobody"


@pytest.mark.parametrize(
    ("last_epoch", "last_offset", "granted"),
    [(1, 5, True), (1, 6, True), (1, 4, False), (2, 0, True), (0, 99, False)],
)
def test_a_vote_is_granted_to_a_log_that_is_at_least_as_long(
    last_epoch: int, last_offset: int, granted: bool
) -> None:
    for pre_vote in (False, True):
        made, election = electing(end=5)
        election.vote(1, VoteRequest(4, key(2), last_epoch, last_offset, pre_vote))
        assert last_answer(made).granted is granted


def test_a_follower_that_hears_its_leader_grants_no_pre_vote() -> None:
    made, election = electing()
    made.become_follower(4, 2, place(2))
    assert isinstance(made.state, Follower)
    question = VoteRequest(4, key(3), 1, 0, pre_vote=True)
    election.vote(1, question)
    assert last_answer(made).granted, "it has not heard it yet"
    made.state.has_fetched = True
    election.vote(1, question)
    assert not last_answer(made).granted
    made.now_ms = made.state.deadline_ms
    election.vote(1, question)
    assert last_answer(made).granted
    made.resume(Leader(0, (1,), NOW_MS + 9000))
    election.vote(1, question)
    assert not last_answer(made).granted


@pytest.mark.parametrize(
    ("leader_id", "epoch", "error"),
    [
        (3, 3, FENCED),
        (1, 4, BAD),
        (1, 5, BAD),
        (-1, 5, BAD),
        (2, 4, NONE),
        (9, 4, BAD),
        (9, 5, NONE),
        (3, 5, NONE),
        (2, 2**31 - 3, NONE),
        (2, 2**31 - 2, BAD),
    ],
)
def test_a_claim_of_leadership_is_accepted_if_it_is_possible(
    leader_id: int, epoch: int, error: ErrorCode
) -> None:
    """This node, 1, follows 2 in epoch 4; 9 is no voter."""
    for kind in ("begin", "end"):
        made, election = electing()
        made.become_follower(4, 2, place(2))
        if kind == "begin":
            election.begin(7, BeginQuorumEpochRequest(epoch, leader_id, (place(leader_id),)))
        else:
            election.end(7, EndQuorumEpochRequest(epoch, leader_id, (), (place(leader_id),)))
        assert last_answer(made).error is error
        assert (made.epoch, made.leader_id) == ((4, 2) if error is not NONE else (epoch, leader_id))


def test_a_second_leader_in_an_epoch_stops_the_node() -> None:
    made, election = electing()
    made.become_follower(4, 2, place(2))
    with pytest.raises(InvariantError):
        election.begin(7, BeginQuorumEpochRequest(4, 3, (place(3),)))
    unknown, election = electing()
    election.begin(7, BeginQuorumEpochRequest(4, 9, (place(9),)))
    assert last_answer(unknown) == LeaderResponse(NONE, 4, 9, place(9))


def test_a_leader_is_reached_where_it_says_or_else_where_the_voters_are() -> None:
    for places, expected in (((place(7),), place(7)), ((), place(2))):
        made, election = electing()
        election.begin(7, BeginQuorumEpochRequest(4, 2, places))
        assert (made.leader_endpoint, last_answer(made)) == (expected, LeaderResponse(NONE, 4, 2, expected))
        made, election = electing()
        election.end(7, EndQuorumEpochRequest(4, 2, (), places))
        assert made.leader_endpoint == expected
    made, election = electing()
    election.begin(7, BeginQuorumEpochRequest(4, 2, (), key(3)))
    assert last_answer(made).error is ErrorCode.invalid_voter_key
    election.begin(7, BeginQuorumEpochRequest(5, 2, (), cluster_id="other"))
    assert (last_answer(made), made.epoch) == (Refusal(ErrorCode.inconsistent_cluster_id), 4)
    election.end(7, EndQuorumEpochRequest(5, 2, (), cluster_id="other"))
    assert (last_answer(made), made.epoch) == (Refusal(ErrorCode.inconsistent_cluster_id), 4)


@pytest.mark.parametrize(
    ("successors", "wait_ms"),
    [
        ((1, 2, 3), 0),
        ((2, 1, 3), 250),
        ((2, 3, 1), 500),
        ((2, 3, 4, 1), 500),
        ((2, 1), 500),
        ((2, 1, 3, 4, 5), 62),
        ((2, 3), 1000),
        ((2,), 1000),
        ((), 11),
    ],
)
def test_successors_of_a_resigned_leader_start_elections_in_order(
    successors: tuple[int, ...], wait_ms: int
) -> None:
    made, election = electing()
    made.become_follower(4, 2, place(2))
    assert isinstance(made.state, Follower)
    made.state.has_fetched = True
    election.end(7, EndQuorumEpochRequest(4, 2, tuple(map(key, successors))))
    assert made.state.deadline_ms == NOW_MS + wait_ms
    assert not made.state.has_fetched


@pytest.mark.parametrize(
    ("answer", "is_settled", "leads"),
    [
        (VoteResponse(NONE, 3, 2, place(2)), True, -1),
        (VoteResponse(ErrorCode.unknown_leader_epoch, 5, 2, place(2)), True, -1),
        (VoteResponse(NONE, 4), False, -1),
        (VoteResponse(NONE, 4, 2, place(2)), True, 2),
        (VoteResponse(NONE, 4, 0, None), True, 0),
        (VoteResponse(NONE, 5), True, -1),
        (VoteResponse(NONE, 5, 3, place(3)), True, 3),
        (VoteResponse(FENCED, 5, 3, place(3)), True, 3),
        (VoteResponse(ErrorCode.not_leader_or_follower, 4), True, -1),
        (VoteResponse(BAD, 4), True, -1),
        (VoteResponse(ErrorCode.snapshot_not_found, 4), False, -1),
    ],
)
def test_a_vote_response_names_the_leader(answer: VoteResponse, is_settled: bool, leads: int) -> None:
    made, election = electing()
    assert election.is_settled(answer) is is_settled
    assert made.leader_id == leads
    assert made.epoch == (
        answer.epoch if answer.epoch > 4 and answer.error is not ErrorCode.unknown_leader_epoch else 4
    )


def following_at(deadline_ms: int, *, has_fetched: bool) -> tuple[RaftCore, ElectionRoles, Follower]:
    made, election = electing()
    made.become_follower(4, 2, place(2))
    state = made.state
    assert isinstance(state, Follower)
    state.deadline_ms, state.has_fetched = deadline_ms, has_fetched
    state.refusals[:] = [NOW_MS]
    return made, election, state


def test_a_new_endpoint_of_an_unheard_leader_is_used() -> None:
    news = VoteResponse(NONE, 4, 2, place(8))
    for deadline_ms, has_fetched, believed in (
        (5, True, True),
        (1, False, True),
        (NOW_MS + 1, True, False),
        (NOW_MS, True, True),
    ):
        made, election, state = following_at(deadline_ms, has_fetched=has_fetched)
        assert not election.is_settled(news)
        assert made.leader_endpoint == (place(8) if believed else place(2))
        assert state.refusals == ([] if believed else [NOW_MS])
        assert state.deadline_ms == (NOW_MS + 2000 if believed else deadline_ms)
    for other in (
        news._replace(leader_id=3),
        news._replace(endpoint=None),
        news._replace(endpoint=place(2)),
        news._replace(epoch=3),
    ):
        made, election, state = following_at(5, has_fetched=True)
        election.is_settled(other)
        assert (made.leader_endpoint, state.deadline_ms) == (place(2), 5)
    asking, election = electing()
    asking.resume(Prospective(NOW_MS + 9, {1}))
    asking.leader_id, asking.leader_endpoint = 2, place(2)
    election.is_settled(news)
    assert asking.leader_endpoint == place(8)


def test_a_leader_ignores_an_endpoint_for_itself() -> None:
    made, election = electing()
    made.resume(Leader(0, (1,), NOW_MS + 9000))
    made.leader_id, made.leader_endpoint = 1, place(1)
    election.is_settled(VoteResponse(NONE, 4, 1, place(8)))
    assert made.leader_endpoint == place(1)


def test_votes_count_only_for_the_request_they_answer() -> None:
    made, election = electing()
    made.become_prospective()
    state: Any = made.state
    peer = Peer(2, place(2))
    yes, no = VoteResponse(NONE, 4, granted=True), VoteResponse(NONE, 4)
    election.voted(peer, VoteRequest(4, key(1), 0, 0), yes)
    election.voted(peer, VoteRequest(3, key(1), 0, 0, pre_vote=True), yes)
    assert state.granted == {1}
    election.voted(peer, VoteRequest(4, key(1), 0, 0, pre_vote=True), no)
    assert (state.granted, state.rejected, state.again_ms) == ({1}, {2}, {2: NOW_MS + 100})
    election.voted(peer, VoteRequest(4, key(1), 0, 0, pre_vote=True), yes)
    assert (state.granted, state.rejected) == ({1, 2}, set())
    made.become_candidate()
    standing: Any = made.state
    election.voted(peer, VoteRequest(5, key(1), 0, 0, pre_vote=True), VoteResponse(NONE, 5, granted=True))
    assert standing.granted == {1}
    election.voted(peer, VoteRequest(5, key(1), 0, 0), VoteResponse(NONE, 5))
    assert standing.rejected == {2}
    election.voted(peer, VoteRequest(5, key(1), 0, 0), VoteResponse(NONE, 5, granted=True))
    assert (standing.granted, standing.rejected) == ({1, 2}, set())


def test_an_election_ends_when_its_outcome_is_certain() -> None:
    made, election = electing()
    made.become_prospective()
    made.become_candidate()
    state = made.state
    assert isinstance(state, Candidate)
    election.poll_candidacy(state)
    assert [(one.peer.node_id, one.request) for one in sent_by(made)] == [
        (n, VoteRequest(5, key(1), 0, 0, False, key(n), "cluster")) for n in (2, 3)
    ]
    state.rejected.add(2)
    election.poll_candidacy(state)
    assert not state.is_backing_off, "one of three may still be won over"
    state.absent.add(3)
    election.poll_candidacy(state)
    assert (state.is_backing_off, state.deadline_ms) == (True, NOW_MS + 21)
    election.poll_candidacy(state)
    assert state.deadline_ms == NOW_MS + 21
    made.now_ms += 21
    election.poll_candidacy(state)
    assert isinstance(made.state, Prospective)
    made.state.granted.add(3)
    election.poll_candidacy(made.state)
    assert isinstance(made.state, Candidate)
    made.state.granted.add(3)
    election.poll_candidacy(made.state)
    assert isinstance(made.state, Leader)
    assert made.state.granted == (1, 3)


def test_a_resigned_leader_repeats_end_quorum_epoch_until_its_deadline() -> None:
    made, election = electing()
    made.resume(Resigned(NOW_MS + 10, (key(3), key(2)), {2, 3}))
    state: Any = made.state
    election.poll_resigned(state)
    end = EndQuorumEpochRequest(4, 1, (key(3), key(2)), (place(1),), "cluster")
    assert [(one.peer, one.request) for one in sent_by(made)] == [
        (Peer(2, place(2)), end),
        (Peer(3, place(3)), end),
    ]
    election.acknowledged(Peer(2, place(2)), LeaderResponse(NONE, 4))
    assert state.unacknowledged == {3}
    election.acknowledged(Peer(3, place(3)), LeaderResponse(BAD, 4))
    assert state.unacknowledged == {3}
    made.now_ms += 10
    election.poll_resigned(state)
    assert isinstance(made.state, Unattached)
    assert made.epoch == 5
