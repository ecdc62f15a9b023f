"""The roles of the Raft machine, each by itself: what is granted, believed, fetched, told and forgotten."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.metadata.raft.core import RaftCore
from service.metadata.raft.election import ElectionRoles
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendFetched,
    OutboundResponse,
    Peer,
    RestartAt,
    Send,
    SnapshotReady,
    StoreSnapshot,
    TruncateTo,
)
from service.metadata.raft.following import FollowerRole
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.leading import LeaderRole
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    BeginQuorumEpochRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    ReadLog,
    ReadSnapshot,
    Refusal,
    RemoveVoter,
    ReplicaDescription,
    UpdateVoter,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    RaftTiming,
    ReplicaState,
    Resigned,
    SnapshotFetch,
    Unattached,
)
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import Batch
from tests.unit.metadata.test_raft_core import NOW_MS, core, key, place, voter

BAD, FENCED = ErrorCode.invalid_request, ErrorCode.fenced_leader_epoch


def told(made: RaftCore) -> Any:
    """The answer that was given last."""
    return [one.answer for one in made.effects if isinstance(one, OutboundResponse)][-1]


def asked(made: RaftCore) -> list[Send]:
    return [one for one in made.effects if isinstance(one, Send)]


# -- elections


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
def test_a_vote_is_given_to_who_asks_for_it_in_good_faith(
    question: VoteRequest, error: ErrorCode, granted: bool
) -> None:
    made, election = electing()
    election.vote(7, question)
    assert (told(made).error, told(made).granted) == (error, granted)


def test_a_vote_that_is_refused_leaves_the_epoch_alone_unless_it_was_for_another_replica() -> None:
    made, election = electing()
    election.vote(7, VoteRequest(9, key(2), 9, 0))
    assert made.epoch == 4
    election.vote(7, VoteRequest(9, key(2), 4, 0, voter=key(3)))
    assert (made.epoch, made.voted) == (9, None)
    election.vote(7, VoteRequest(9, key(2), 4, 0, cluster_id="other"))
    assert told(made) == Refusal(ErrorCode.inconsistent_cluster_id)


def test_one_vote_in_an_epoch_and_none_beside_a_leader() -> None:
    made, election = electing()
    election.vote(1, VoteRequest(4, key(2), 1, 0))
    assert told(made) == VoteResponse(NONE, 4, -1, None, True)
    election.vote(2, VoteRequest(4, key(3), 1, 0))
    assert told(made) == VoteResponse(NONE, 4, -1, None, False)
    election.vote(3, VoteRequest(4, key(2), 1, 0))
    assert told(made).granted
    led, election = electing()
    led.become_follower(4, 2, None)
    assert isinstance(led.state, Unattached)
    election.vote(4, VoteRequest(4, key(3), 1, 0))
    assert told(led) == VoteResponse(NONE, 4, 2, place(2), False)
    led.become_follower(4, 2, place(2))
    election.vote(5, VoteRequest(4, key(2), 1, 0))
    assert not told(led).granted, "who follows votes for nobody"


@pytest.mark.parametrize(
    ("last_epoch", "last_offset", "granted"),
    [(1, 5, True), (1, 6, True), (1, 4, False), (2, 0, True), (0, 99, False)],
)
def test_a_vote_is_given_to_a_log_that_goes_as_far(last_epoch: int, last_offset: int, granted: bool) -> None:
    for pre_vote in (False, True):
        made, election = electing(end=5)
        election.vote(1, VoteRequest(4, key(2), last_epoch, last_offset, pre_vote))
        assert told(made).granted is granted


def test_who_hears_its_leader_gives_no_pre_vote_until_its_time_is_up() -> None:
    made, election = electing()
    made.become_follower(4, 2, place(2))
    assert isinstance(made.state, Follower)
    question = VoteRequest(4, key(3), 1, 0, pre_vote=True)
    election.vote(1, question)
    assert told(made).granted, "it has not heard it yet"
    made.state.has_fetched = True
    election.vote(1, question)
    assert not told(made).granted
    made.now_ms = made.state.deadline_ms
    election.vote(1, question)
    assert told(made).granted
    made.resume(Leader(0, (1,), NOW_MS + 9000))
    election.vote(1, question)
    assert not told(made).granted


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
def test_who_says_that_it_leads_is_believed_where_that_can_be(
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
        assert told(made).error is error
        assert (made.epoch, made.leader_id) == ((4, 2) if error is not NONE else (epoch, leader_id))


def test_a_voter_beside_a_leader_ends_this_node() -> None:
    made, election = electing()
    made.become_follower(4, 2, place(2))
    with pytest.raises(InvariantError):
        election.begin(7, BeginQuorumEpochRequest(4, 3, (place(3),)))
    unknown, election = electing()
    election.begin(7, BeginQuorumEpochRequest(4, 9, (place(9),)))
    assert told(unknown) == LeaderResponse(NONE, 4, 9, place(9))


def test_a_leader_is_reached_where_it_says_or_else_where_the_voters_are() -> None:
    for places, expected in (((place(7),), place(7)), ((), place(2))):
        made, election = electing()
        election.begin(7, BeginQuorumEpochRequest(4, 2, places))
        assert (made.leader_endpoint, told(made)) == (expected, LeaderResponse(NONE, 4, 2, expected))
        made, election = electing()
        election.end(7, EndQuorumEpochRequest(4, 2, (), places))
        assert made.leader_endpoint == expected
    made, election = electing()
    election.begin(7, BeginQuorumEpochRequest(4, 2, (), key(3)))
    assert told(made).error is ErrorCode.invalid_voter_key
    election.begin(7, BeginQuorumEpochRequest(5, 2, (), cluster_id="other"))
    assert (told(made), made.epoch) == (Refusal(ErrorCode.inconsistent_cluster_id), 4)
    election.end(7, EndQuorumEpochRequest(5, 2, (), cluster_id="other"))
    assert (told(made), made.epoch) == (Refusal(ErrorCode.inconsistent_cluster_id), 4)


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
def test_when_a_leader_goes_the_best_stands_at_once_and_the_others_later(
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
def test_what_an_answer_says_of_who_leads(answer: VoteResponse, is_settled: bool, leads: int) -> None:
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


def test_a_leader_that_is_elsewhere_is_looked_for_there_while_it_is_not_heard() -> None:
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


def test_it_is_not_told_where_it_is_itself() -> None:
    made, election = electing()
    made.resume(Leader(0, (1,), NOW_MS + 9000))
    made.leader_id, made.leader_endpoint = 1, place(1)
    election.is_settled(VoteResponse(NONE, 4, 1, place(8)))
    assert made.leader_endpoint == place(1)


def test_votes_count_for_the_question_that_was_asked() -> None:
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


def test_a_lost_election_ends_early_and_a_won_one_at_once() -> None:
    made, election = electing()
    made.become_prospective()
    made.become_candidate()
    state = made.state
    assert isinstance(state, Candidate)
    election.poll_candidacy(state)
    assert [(one.peer.node_id, one.request) for one in asked(made)] == [
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


def test_who_resigned_tells_the_others_until_its_time_is_up() -> None:
    made, election = electing()
    made.resume(Resigned(NOW_MS + 10, (key(3), key(2)), {2, 3}))
    state: Any = made.state
    election.poll_resigned(state)
    end = EndQuorumEpochRequest(4, 1, (key(3), key(2)), (place(1),), "cluster")
    assert [(one.peer, one.request) for one in asked(made)] == [
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


# -- following


def follower(end: int = 0, **options: Any) -> tuple[RaftCore, FollowerRole, Follower]:
    made = core(end=end, **options)
    made.become_follower(4, 2, place(2))
    made.flushed = end
    del made.effects[:]
    assert isinstance(made.state, Follower)
    return made, FollowerRole(made, ElectionRoles(made)), made.state


LEADER = Peer(2, place(2))


def test_a_fetch_claims_what_is_on_disk() -> None:
    made, following, state = follower(5)
    made.high_watermark = 3
    following.poll(state)
    fetch = RaftFetchRequest(key(1), 4, 5, 1, 3, 1 << 20, 500, "cluster")
    assert [(one.peer, one.request) for one in asked(made)] == [(LEADER, fetch)]
    for change in ("appending", "whole", "unflushed"):
        made, following, state = follower(5)
        if change == "appending":
            state.is_appending = True
        elif change == "whole":
            state.fetching = SnapshotFetch(SnapshotId(9, 3), 10, True)
        else:
            made.flushed = 4
        following.poll(state)
        assert not asked(made)
    made, following, state = follower(5)
    state.fetching = SnapshotFetch(SnapshotId(9, 3), 10)
    following.poll(state)
    assert asked(made)[0].request == FetchSnapshotRequest(key(1), 4, SnapshotId(9, 3), 10, 1 << 20, "cluster")


def test_who_hears_nothing_stands_or_looks_for_the_leader() -> None:
    made, following, state = follower()
    made.now_ms = state.deadline_ms
    following.poll(state)
    assert isinstance(made.state, Prospective)
    made, following, state = follower(key=key(9))
    made.now_ms = state.deadline_ms
    following.poll(state)
    assert [one.peer.node_id for one in asked(made)] == [2]
    assert asked(made)[0].request == RaftFetchRequest(key(9), 4, 0, 0, 0, 1 << 20, 0, "cluster")
    following.poll(state)
    assert len(asked(made)) == 1
    made.now_ms += 100
    following.poll(state)
    assert [one.peer.node_id for one in asked(made)] == [2, 3]


def fetched(
    made: RaftCore, following: FollowerRole, answer: RaftFetchResponse, *, epoch: int = 4, offset: int = 5
) -> None:
    following.fetched(LEADER, RaftFetchRequest(key(1), epoch, offset, 1), answer)


def test_records_are_appended_once_and_what_is_committed_is_known_with_the_last_of_them() -> None:
    made, following, state = follower(5)
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 9, 0, records=b"abc"))
    assert made.effects == [AppendFetched(4, b"abc")]
    assert (state.is_appending, state.has_fetched, state.leader_high_watermark) == (True, True, 9)
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 9, 0, records=b"abc"))
    assert len(made.effects) == 1, "it is being appended"
    state.is_appending = False
    following.advance_high_watermark(state)
    assert made.effects[1:] == [AdvanceHighWatermark(5)]
    made, following, state = follower(5)
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 3))
    assert made.effects == [AdvanceHighWatermark(3)]
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 2))
    assert state.leader_high_watermark == 3


@pytest.mark.parametrize(("epoch", "offset", "leader_id"), [(3, 5, 2), (4, 4, 2), (4, 6, 2), (4, 5, 3)])
def test_an_answer_to_another_question_says_nothing(epoch: int, offset: int, leader_id: int) -> None:
    made, following, state = follower(5)
    answer = RaftFetchResponse(NONE, 4, leader_id, place(leader_id), 9, 0, records=b"abc")
    fetched(made, following, answer, epoch=epoch, offset=offset)
    assert (made.effects, state.has_fetched) == ([], False)


def test_after_a_refusal_the_leader_is_left_alone_for_a_moment() -> None:
    made, following, state = follower(5)
    fetched(made, following, RaftFetchResponse(BAD, 4, 2, place(2)))
    assert made.calls.free_at_ms(place(2), RaftFetchRequest(key(1), 4, 5, 1)) == NOW_MS + 20
    assert not state.has_fetched


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        (EpochEnd(1, 3), 3),
        (EpochEnd(1, 4), 4),
        (EpochEnd(0, 0), 0),
        (EpochEnd(1, 5), None),
        (EpochEnd(2, 3), None),
    ],
)
def test_where_logs_part_ours_is_cut(parts: EpochEnd, end: int | None) -> None:
    made, following, state = follower(5)
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 0, 0, diverging=parts))
    assert made.effects == ([] if end is None else [TruncateTo(end)])
    assert state.has_fetched


def test_nothing_is_cut_below_the_start_of_the_log() -> None:
    made, following, _ = follower(5)
    log: Any = made.log
    log.start_offset = 2
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 0, 0, diverging=EpochEnd(0, 0)))
    assert made.effects == [TruncateTo(2)]


@pytest.mark.parametrize(
    ("snapshot", "is_one"),
    [
        (SnapshotId(9, 3), True),
        (SnapshotId(1, 0), True),
        (SnapshotId(0, 3), False),
        (SnapshotId(9, -1), False),
    ],
)
def test_a_snapshot_is_fetched_where_it_holds_anything(snapshot: SnapshotId, is_one: bool) -> None:
    made, following, state = follower(5)
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 0, 0, snapshot=snapshot))
    assert state.fetching == (SnapshotFetch(snapshot) if is_one else None)


WANTED = SnapshotId(9, 3)


def pieces(position: int = 10) -> tuple[RaftCore, FollowerRole, Follower]:
    made, following, state = follower(5)
    state.fetching = SnapshotFetch(WANTED, position)
    return made, following, state


def piece(
    following: FollowerRole, answer: FetchSnapshotResponse, *, epoch: int = 4, snapshot: SnapshotId = WANTED
) -> None:
    following.snapshot_fetched(LEADER, FetchSnapshotRequest(key(1), epoch, snapshot, 10), answer)


GOOD = FetchSnapshotResponse(NONE, 4, 2, place(2), WANTED, 100, 10, b"x" * 20)


def test_a_snapshot_comes_in_pieces() -> None:
    made, following, state = pieces()
    piece(following, GOOD)
    assert made.effects == [StoreSnapshot(WANTED, 10, b"x" * 20, False)]
    assert (state.fetching, state.has_fetched) == (SnapshotFetch(WANTED, 30), True)
    piece(following, GOOD._replace(position=30, data=b"y" * 70))
    assert made.effects[1:] == [StoreSnapshot(WANTED, 30, b"y" * 70, True)]
    assert state.fetching == SnapshotFetch(WANTED, 100, True)
    first, following, state = pieces(0)
    piece(following, GOOD._replace(size=1, position=0, data=b"z"))
    assert first.effects == [StoreSnapshot(WANTED, 0, b"z", True)]


@pytest.mark.parametrize(
    "answer",
    [
        GOOD._replace(snapshot=SnapshotId(9, 4)),
        GOOD._replace(position=11),
        GOOD._replace(data=b""),
        GOOD._replace(size=29),
        GOOD._replace(size=19),
        GOOD._replace(size=0),
        GOOD._replace(size=(16 << 30) + 1),
        GOOD._replace(data=ReadSnapshot(WANTED, 10, 20)),
        GOOD._replace(error=BAD),
    ],
)
def test_a_piece_that_cannot_be_begins_it_again(answer: FetchSnapshotResponse) -> None:
    made, following, state = pieces()
    piece(following, answer)
    assert (made.effects, state.fetching) == ([], None)
    assert made.calls.free_at_ms(place(2), RaftFetchRequest(key(1), 4, 5, 1)) == NOW_MS + 20


def test_the_largest_snapshot_that_is_believed_has_16_gib() -> None:
    made, following, _ = pieces()
    piece(following, GOOD._replace(size=16 << 30))
    assert len(made.effects) == 1


def test_a_snapshot_that_is_gone_is_asked_for_no_more() -> None:
    for answer in (GOOD._replace(error=ErrorCode.snapshot_not_found), GOOD._replace(snapshot=None)):
        made, following, state = pieces()
        piece(following, answer)
        assert (made.effects, state.fetching, state.has_fetched) == ([], None, True)
    for options in ({"epoch": 3}, {"snapshot": SnapshotId(8, 3)}):
        made, following, state = pieces()
        piece(following, GOOD, **options)
        assert (made.effects, state.fetching) == ([], SnapshotFetch(WANTED, 10))


def test_a_snapshot_that_is_whole_and_good_begins_the_log_anew() -> None:
    for fetching, event, restarts, left in (
        (SnapshotFetch(WANTED, 100, True), SnapshotReady(WANTED, True), True, None),
        (SnapshotFetch(WANTED, 100, True), SnapshotReady(WANTED, False), False, None),
        (SnapshotFetch(WANTED, 100, False), SnapshotReady(WANTED, True), False, SnapshotFetch(WANTED, 100)),
        (
            SnapshotFetch(WANTED, 100, True),
            SnapshotReady(SnapshotId(8, 3), True),
            False,
            SnapshotFetch(WANTED, 100, True),
        ),
    ):
        made, following, state = follower(5)
        state.fetching = fetching
        following.snapshot_ready(event)
        assert (made.effects == [RestartAt(WANTED), AdvanceHighWatermark(9)]) is restarts
        assert state.fetching == left
    made, following, state = follower(5)
    following.snapshot_ready(SnapshotReady(WANTED, True))
    assert made.effects == []


def test_three_refusals_within_300_ms_are_a_death() -> None:
    made, following, state = follower()
    for at_ms in (0, 100, 301):
        made.now_ms = NOW_MS + at_ms
        following.refused(LEADER)
    assert isinstance(made.state, Follower), "the first was too long ago"
    assert state.refusals == [NOW_MS + 100, NOW_MS + 301]
    made.now_ms = NOW_MS + 400
    following.refused(Peer(2, place(8)))
    assert made.state is state
    following.refused(LEADER)
    assert isinstance(made.state, Prospective)
    off, following, state = follower()
    off.timing = RaftTiming(refused_election=False)
    for _ in range(3):
        following.refused(LEADER)
    assert off.state is state
    observer, following, state = follower(key=key(9))
    for _ in range(3):
        following.refused(LEADER)
    assert (observer.state, state.deadline_ms) == (state, NOW_MS)


def test_what_a_voter_says_of_itself_under_version_0_is_said_once_to_each_leader() -> None:
    made, following, state = follower()
    following.poll(state)
    assert isinstance(asked(made)[0].request, RaftFetchRequest)
    made, following, state = follower()
    made.now_ms = state.update_due_ms = NOW_MS + 1000
    following.poll(state)
    mine = VoterNode(key(1), (place(1),))
    update = UpdateVoter(4, mine, "cluster")
    assert asked(made)[0].request == update
    assert state.update_due_ms == NOW_MS + 7000
    following.updated(update, LeaderResponse(NONE, 4, 2, place(2)))
    assert state.has_updated
    following.updated(update._replace(epoch=3), LeaderResponse(NONE, 4, 2, place(2)))
    assert not state.has_updated
    following.updated(update, LeaderResponse(BAD, 4, 2, place(2)))
    assert not state.has_updated


def test_who_moved_or_joins_by_itself_says_so_under_version_1() -> None:
    moved, following, state = follower(1, version=1)
    moved.now_ms = state.update_due_ms = NOW_MS + 1000
    following.poll(state)
    assert isinstance(asked(moved)[0].request, RaftFetchRequest), "it is where the record says"
    joins, following, state = follower(1, version=1, key=key(9))
    joins.timing = RaftTiming(auto_join=True)
    joins.now_ms = state.update_due_ms = NOW_MS + 1000
    joins.high_watermark = 1
    following.poll(state)
    mine = VoterNode(key(9), (place(1),))
    assert asked(joins)[0].request == AddVoter(mine, 2000, ack_when_committed=False, cluster_id="cluster")
    for change in ("nothing committed", "not asked to", "an observer"):
        other, following, state = follower(1, version=1, key=key(9), can_vote=change != "an observer")
        other.timing = RaftTiming(auto_join=change != "not asked to")
        other.now_ms = state.update_due_ms = NOW_MS + 1000
        other.high_watermark = int(change != "nothing committed")
        following.poll(state)
        assert isinstance(asked(other)[0].request, RaftFetchRequest), change
    wiped, following, state = follower(1, version=1, key=ReplicaKey(1, UUID(int=99)))
    wiped.timing = RaftTiming(auto_join=True)
    wiped.now_ms = state.update_due_ms = NOW_MS + 1000
    wiped.high_watermark = 1
    following.poll(state)
    remove = RemoveVoter(key(1), "cluster")
    assert asked(wiped)[0].request == remove
    following.updated(remove, VoterChangeResponse(BAD))
    assert state.update_due_ms == NOW_MS + 7000
    following.updated(remove, VoterChangeResponse(NONE))
    assert state.update_due_ms == NOW_MS + 1000


# -- leading


def leader(end: int = 5, **options: Any) -> tuple[RaftCore, LeaderRole, Leader]:
    """Node 1 leads in epoch 4 from offset 5 on, where its log ends."""
    made = core(end=end, **options)
    made.epoch, made.leader_id, made.leader_endpoint = 4, 1, place(1)
    state = Leader(end, (1, 2), NOW_MS + 3000, visible_end=end)
    made.resume(state)
    made.flushed = end
    return made, LeaderRole(made), state


def append(made: RaftCore, count: int = 1) -> None:
    log: Any = made.log
    log.append(Batch(log.end_offset, 4, tuple(range(count))))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, NONE),
        ({"max_wait_ms": -1}, BAD),
        ({"offset": -1}, BAD),
        ({"last_epoch": -1}, BAD),
        ({"last_epoch": 5}, BAD),
        ({"replica": key(1)}, BAD),
        ({"epoch": 3}, FENCED),
        ({"epoch": 5}, ErrorCode.unknown_leader_epoch),
    ],
)
def test_a_fetch_that_can_be_is_answered_by_who_leads(changes: dict[str, Any], error: ErrorCode) -> None:
    made, leading, state = leader()
    leading.fetch(7, RaftFetchRequest(key(2), 4, 3, 1)._replace(**changes))
    assert told(made).error is error
    assert (told(made).epoch, told(made).leader_id, told(made).endpoint) == (4, 1, place(1))
    if error is NONE:
        assert told(made) == RaftFetchResponse(NONE, 4, 1, place(1), -1, 0, records=ReadLog(3, 1 << 20))
        assert state.replicas == {ReplicaKey(2, UUID(int=2)): ReplicaState(3, NOW_MS, -1, 5)}


@pytest.mark.parametrize(
    ("wanted", "given"), [(0, 0), (-5, 0), (7, 7), (8 << 20, 8 << 20), ((8 << 20) + 1, 8 << 20)]
)
def test_an_answer_has_8_mib_at_most(wanted: int, given: int) -> None:
    made, leading, _ = leader()
    leading.fetch(7, RaftFetchRequest(key(2), 4, 3, 1, max_bytes=wanted))
    assert told(made).records == ReadLog(3, given)


def test_who_has_all_waits_for_more_or_for_a_mark() -> None:
    made, leading, state = leader()
    leading.fetch(7, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=500))
    assert not made.effects
    assert state.parked[7].deadline_ms == NOW_MS + 500
    leading.fetch(8, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=0))
    assert told(made).records == b""
    state.committed = 4
    leading.fetch(9, RaftFetchRequest(key(2), 4, 5, 1, high_watermark=3))
    assert told(made).high_watermark == 4
    leading.fetch(10, RaftFetchRequest(key(2), 4, 5, 1, high_watermark=4))
    assert set(state.parked) == {7, 10}
    leading.answer_parked(state)
    assert set(state.parked) == {7, 10}
    made.now_ms += 500
    leading.answer_parked(state)
    assert not state.parked
    leading.fetch(11, RaftFetchRequest(key(2), 4, 5, 1, high_watermark=4))
    append(made)
    state.visible_end = 6
    leading.answer_parked(state)
    assert told(made).records == ReadLog(5, 1 << 20)
    leading.fetch(12, RaftFetchRequest(key(2), 4, 6, 4, high_watermark=4))
    leading.dismiss(state)
    assert not state.parked


def test_when_a_follower_was_caught_up() -> None:
    made, leading, state = leader()
    leading.fetch(1, RaftFetchRequest(key(2), 4, 4, 1, max_wait_ms=0))
    (one,) = state.replicas.values()
    assert one == ReplicaState(4, NOW_MS, -1, 5)
    append(made)
    state.visible_end = 6
    made.now_ms += 10
    leading.fetch(2, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=0))
    assert one == ReplicaState(5, NOW_MS + 10, NOW_MS, 6), "it has what there was when it asked last"
    made.now_ms += 10
    leading.fetch(3, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=0))
    assert one == ReplicaState(5, NOW_MS + 20, NOW_MS, 6)
    made.now_ms += 10
    leading.fetch(4, RaftFetchRequest(key(2), 4, 6, 4, max_wait_ms=0))
    assert one == ReplicaState(6, NOW_MS + 30, NOW_MS + 30, 6)


def test_a_majority_that_is_heard_keeps_the_leader() -> None:
    made, leading, state = leader()
    made.now_ms += 1000
    leading.fetch(1, RaftFetchRequest(key(9), 4, 4, 1))
    leading.fetch(1, RaftFetchRequest(ReplicaKey(-1), 4, 4, 1))
    assert state.quorum_deadline_ms == NOW_MS + 3000
    assert list(state.replicas) == [key(9)]
    leading.fetch(1, RaftFetchRequest(key(2), 4, 4, 1))
    assert (state.quorum_deadline_ms, state.fetched_voters) == (NOW_MS + 4000, set())
    five = core(*[voter(n) for n in range(1, 6)], end=5)
    five.epoch, five.leader_id = 4, 1
    wide = Leader(5, (1, 2, 3), NOW_MS + 3000)
    five.resume(wide)
    leading = LeaderRole(five)
    for node_id in (2, 2):
        leading.update_check_quorum(wide, key(node_id))
    assert (wide.quorum_deadline_ms, wide.fetched_voters) == (NOW_MS + 3000, {2})
    five.now_ms += 50
    leading.update_check_quorum(wide, key(3))
    assert (wide.quorum_deadline_ms, wide.fetched_voters) == (NOW_MS + 3050, set())
    removed = core(*[voter(n) for n in range(2, 5)], end=5)
    gone = Leader(5, (2, 3), 7)
    removed.resume(gone)
    LeaderRole(removed).update_check_quorum(gone, key(2))
    assert gone.quorum_deadline_ms == 7, "it does not count itself"
    LeaderRole(removed).update_check_quorum(gone, key(3))
    assert gone.quorum_deadline_ms == NOW_MS + 3000


def test_what_a_majority_has_on_disk_is_committed_with_the_first_of_the_epoch() -> None:
    made, leading, state = leader()
    append(made, 3)
    made.flushed, state.visible_end = 6, 8
    leading.fetch(1, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=0))
    assert (state.committed, made.high_watermark) == (-1, 0), "the epoch begins at 5, so 6 has to be there"
    leading.fetch(1, RaftFetchRequest(key(2), 4, 8, 4, max_wait_ms=0))
    assert (state.committed, made.high_watermark) == (6, 6)
    leading.fetch(1, RaftFetchRequest(key(3), 4, 7, 4, max_wait_ms=0))
    assert state.committed == 7, "without our own disk"
    made.flushed = 99
    leading.advance(state)
    assert state.committed == 8, "and no further than the log"


def test_strangers_are_remembered_up_to_a_thousand_and_the_silent_one_goes_first() -> None:
    made, leading, state = leader()
    state.replicas[key(2)] = ReplicaState(last_fetch_ms=1)
    for node_id in range(100, 1102):
        made.now_ms += 1
        leading.replica(state, key(node_id)).last_fetch_ms = made.now_ms
    assert len(state.replicas) == 1003
    leading.replica(state, key(5000)).last_fetch_ms = made.now_ms
    assert len(state.replicas) == 1003
    assert key(100) not in state.replicas
    assert key(2) in state.replicas
    assert key(101) in state.replicas
    assert leading.replica(state, key(101)) is state.replicas[key(101)]


def test_observers_that_are_silent_for_five_minutes_are_forgotten() -> None:
    made, leading, state = leader()
    for node_id in range(100, 122):
        state.replicas[key(node_id)] = ReplicaState(last_fetch_ms=NOW_MS)
    made.now_ms += 300_000
    leading._drop_silent(state)
    assert len(state.replicas) == 22, "so few are no burden"
    state.replicas[key(2)] = ReplicaState(last_fetch_ms=NOW_MS)
    state.replicas[key(122)] = ReplicaState(last_fetch_ms=NOW_MS + 1)
    leading._drop_silent(state)
    assert set(state.replicas) == {key(2), key(122)}


def test_a_snapshot_is_given_to_who_names_one_that_is_there() -> None:
    made, leading, state = leader()
    log: Any = made.log
    log.snapshots = (SnapshotId(0, 0), SnapshotId(3, 1))
    question = FetchSnapshotRequest(key(2), 4, SnapshotId(3, 1), 7, 100)
    made.now_ms += 5
    leading.snapshot(1, question)
    assert told(made) == FetchSnapshotResponse(
        NONE, 4, 1, place(1), SnapshotId(3, 1), 0, 7, ReadSnapshot(SnapshotId(3, 1), 7, 100)
    )
    assert state.replicas == {key(2): ReplicaState(last_fetch_ms=NOW_MS + 5)}
    assert state.quorum_deadline_ms == NOW_MS + 3005
    for change, error in (
        ({"snapshot": SnapshotId(0, 0)}, ErrorCode.snapshot_not_found),
        ({"snapshot": SnapshotId(3, 2)}, ErrorCode.snapshot_not_found),
        ({"position": -1}, ErrorCode.position_out_of_range),
        ({"epoch": 3}, FENCED),
        ({"epoch": 5}, ErrorCode.unknown_leader_epoch),
    ):
        leading.snapshot(2, question._replace(**change))
        assert told(made) == FetchSnapshotResponse(error, 4, 1, place(1))
    leading.snapshot(3, question._replace(cluster_id="other"))
    assert told(made) == Refusal(ErrorCode.inconsistent_cluster_id)
    leading.snapshot(4, question._replace(position=0, replica=ReplicaKey(-1)))
    assert told(made).position == 0
    leading.snapshot(5, question._replace(replica=key(1)))
    leading.snapshot(6, question._replace(replica=key(0)))
    assert set(state.replicas) == {key(2), key(0)}


def test_a_quorum_is_described_with_observers_that_were_heard_within_five_minutes() -> None:
    made, leading, state = leader()
    state.committed = 4
    state.replicas = {
        key(2): ReplicaState(5, 10, 9, 5), key(9): ReplicaState(3, NOW_MS, 7, 5),
        key(8): ReplicaState(1, NOW_MS - 1, 1, 5),
    }  # fmt: skip
    made.now_ms += 299_999
    leading.describe(1)
    assert told(made) == DescribeQuorumResponse(
        NONE,
        4,
        1,
        4,
        (
            ReplicaDescription(key(1), 5, made.now_ms, made.now_ms),
            ReplicaDescription(key(2), 5, 10, 9),
            ReplicaDescription(key(3), -1, -1, -1),
        ),
        (ReplicaDescription(key(9), 3, NOW_MS, 7),),
        (voter(1), voter(2), voter(3)),
    )
    made.now_ms += 1
    leading.describe(2)
    assert told(made).observers == ()
    made.resume(Unattached(NOW_MS))
    leading.describe(3)
    assert told(made) == DescribeQuorumResponse(ErrorCode.not_leader_or_follower, 4, 1)


def test_a_voter_that_is_silent_for_half_its_time_is_told_who_leads() -> None:
    made, leading, state = leader()
    leading.poll(state)
    begin = BeginQuorumEpochRequest(4, 1, (place(1),), key(2), "cluster")
    assert [(one.peer.node_id, one.request) for one in asked(made)] == [
        (2, begin),
        (3, begin._replace(voter=key(3))),
    ]
    assert state.last_begin_ms == {2: NOW_MS, 3: NOW_MS}
    for send in asked(made):
        made.calls.answered(send.peer, send.call)
    state.replicas[key(3)] = ReplicaState(last_fetch_ms=NOW_MS + 1)
    made.now_ms += 999
    leading.poll(state)
    assert len(asked(made)) == 2
    made.now_ms += 1
    leading.poll(state)
    assert [one.peer.node_id for one in asked(made)[2:]] == [2]


def test_a_leader_that_nobody_hears_resigns_in_favour_of_the_longest_log() -> None:
    made, leading, state = leader()
    state.replicas = {key(2): ReplicaState(end_offset=3), key(3): ReplicaState(end_offset=4)}
    made.now_ms = state.quorum_deadline_ms - 1
    leading.poll(state)
    assert made.state is state
    made.now_ms += 1
    leading.poll(state)
    assert isinstance(made.state, Resigned)
    assert made.state.successors == (key(3), key(2))
    alone = core(voter(1), end=5)
    sole = Leader(5, (1,), NOW_MS)
    alone.resume(sole)
    LeaderRole(alone).poll(sole)
    assert (alone.state, sole.quorum_deadline_ms) == (sole, 2**62)
    log: Any = alone.log
    log.voters.add(5, VoterSet([voter(1), voter(2)]))
    LeaderRole(alone).poll(sole)
    assert sole.quorum_deadline_ms == NOW_MS + 3000


def test_of_whoever_knows_nothing_nothing_is_said() -> None:
    nothing = RaftFetchResponse(NONE, 4)
    assert (nothing.high_watermark, nothing.log_start, nothing.leader_id) == (-1, -1, -1)
    piece_of_nothing = FetchSnapshotResponse(NONE, 4)
    assert (piece_of_nothing.size, piece_of_nothing.position, piece_of_nothing.data) == (0, 0, b"")
    unheard = ReplicaState()
    assert (unheard.end_offset, unheard.last_fetch_ms, unheard.last_caught_up_ms, unheard.leader_end) == (
        -1,
    ) * 4
    fresh = Follower(deadline_ms=1, update_due_ms=2)
    assert (fresh.has_fetched, fresh.is_appending, fresh.has_updated, fresh.leader_high_watermark) == (
        False,
    ) * 3 + (-1,)
    new = Leader(5, (1,), 9)
    assert (new.committed, new.visible_end, new.visible_at_ms, new.change) == (-1, 0, None, None)


def test_controllers_wait_as_apache_kafkas_do() -> None:
    """``controller.quorum.*``, and what `KafkaRaftClient` has as constants: a MiB a fetch, half a second."""
    timing = RaftTiming()
    assert (timing.election_timeout_ms, timing.fetch_timeout_ms, timing.election_backoff_max_ms) == (
        1000,
        2000,
        1000,
    )
    assert (timing.request_timeout_ms, timing.retry_backoff_ms, timing.append_linger_ms) == (2000, 20, 0)
    assert (timing.fetch_max_bytes, timing.snapshot_max_bytes, timing.fetch_wait_ms) == (
        1_048_576,
        1_048_576,
        500,
    )
    assert (timing.refused_election, timing.auto_join) == (True, False)
