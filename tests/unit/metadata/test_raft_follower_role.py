"""A Raft follower and observer: fetches, truncation, snapshots, updates of its own voter record."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.raft.core import RaftCore
from service.metadata.raft.election import ElectionRoles
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendFetched,
    Peer,
    RestartAt,
    SnapshotReady,
    StoreSnapshot,
    TruncateTo,
)
from service.metadata.raft.following import FollowerRole
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    ReadSnapshot,
    RemoveVoter,
    UpdateVoter,
    VoterChangeResponse,
)
from service.metadata.raft.roles import Follower, Prospective, RaftTiming, SnapshotFetch
from service.metadata.raft.voters import VoterNode
from tests.unit.metadata.raft_cores import BAD, NOW_MS, core, key, place, sent_by


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
    assert [(one.peer, one.request) for one in sent_by(made)] == [(LEADER, fetch)]
    for change in ("appending", "whole", "unflushed"):
        made, following, state = follower(5)
        if change == "appending":
            state.is_appending = True
        elif change == "whole":
            state.fetching = SnapshotFetch(SnapshotId(9, 3), 10, True)
        else:
            made.flushed = 4
        following.poll(state)
        assert not sent_by(made)
    made, following, state = follower(5)
    state.fetching = SnapshotFetch(SnapshotId(9, 3), 10)
    following.poll(state)
    assert sent_by(made)[0].request == FetchSnapshotRequest(
        key(1), 4, SnapshotId(9, 3), 10, 1 << 20, "cluster"
    )


def test_a_voter_without_leader_starts_an_election_and_an_observer_searches() -> None:
    made, following, state = follower()
    made.now_ms = state.deadline_ms
    following.poll(state)
    assert isinstance(made.state, Prospective)
    made, following, state = follower(key=key(9))
    made.now_ms = state.deadline_ms
    following.poll(state)
    assert [one.peer.node_id for one in sent_by(made)] == [2]
    assert sent_by(made)[0].request == RaftFetchRequest(key(9), 4, 0, 0, 0, 1 << 20, 0, "cluster")
    following.poll(state)
    assert len(sent_by(made)) == 1
    made.now_ms += 100
    following.poll(state)
    assert [one.peer.node_id for one in sent_by(made)] == [2, 3]


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
def test_a_diverging_log_is_truncated(parts: EpochEnd, end: int | None) -> None:
    made, following, state = follower(5)
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 0, 0, diverging=parts))
    assert made.effects == ([] if end is None else [TruncateTo(end)])
    assert state.has_fetched


def test_the_log_is_not_truncated_below_its_start() -> None:
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


def test_a_snapshot_is_fetched_in_pieces() -> None:
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


def test_a_deleted_snapshot_is_not_requested_again() -> None:
    for answer in (GOOD._replace(error=ErrorCode.snapshot_not_found), GOOD._replace(snapshot=None)):
        made, following, state = pieces()
        piece(following, answer)
        assert (made.effects, state.fetching, state.has_fetched) == ([], None, True)
    for options in ({"epoch": 3}, {"snapshot": SnapshotId(8, 3)}):
        made, following, state = pieces()
        piece(following, GOOD, **options)
        assert (made.effects, state.fetching) == ([], SnapshotFetch(WANTED, 10))


def test_a_complete_valid_snapshot_restarts_the_log() -> None:
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


def test_a_static_voter_sends_update_voter_once_to_each_leader() -> None:
    made, following, state = follower()
    following.poll(state)
    assert isinstance(sent_by(made)[0].request, RaftFetchRequest)
    made, following, state = follower()
    made.now_ms = state.update_due_ms = NOW_MS + 1000
    following.poll(state)
    mine = VoterNode(key(1), (place(1),))
    update = UpdateVoter(4, mine, "cluster")
    assert sent_by(made)[0].request == update
    assert state.update_due_ms == NOW_MS + 7000
    following.updated(update, LeaderResponse(NONE, 4, 2, place(2)))
    assert state.has_updated
    following.updated(update._replace(epoch=3), LeaderResponse(NONE, 4, 2, place(2)))
    assert not state.has_updated
    following.updated(update, LeaderResponse(BAD, 4, 2, place(2)))
    assert not state.has_updated


def test_a_voter_with_a_new_endpoint_or_directory_changes_its_record() -> None:
    moved, following, state = follower(1, version=1)
    moved.now_ms = state.update_due_ms = NOW_MS + 1000
    following.poll(state)
    assert isinstance(sent_by(moved)[0].request, RaftFetchRequest), "it is where the record says"
    joins, following, state = follower(1, version=1, key=key(9))
    joins.timing = RaftTiming(auto_join=True)
    joins.now_ms = state.update_due_ms = NOW_MS + 1000
    joins.high_watermark = 1
    following.poll(state)
    mine = VoterNode(key(9), (place(1),))
    assert sent_by(joins)[0].request == AddVoter(mine, 2000, ack_when_committed=False, cluster_id="cluster")
    for change in ("nothing committed", "not asked to", "an observer"):
        other, following, state = follower(1, version=1, key=key(9), can_vote=change != "an observer")
        other.timing = RaftTiming(auto_join=change != "not asked to")
        other.now_ms = state.update_due_ms = NOW_MS + 1000
        other.high_watermark = int(change != "nothing committed")
        following.poll(state)
        assert isinstance(sent_by(other)[0].request, RaftFetchRequest), change
    wiped, following, state = follower(1, version=1, key=ReplicaKey(1, UUID(int=99)))
    wiped.timing = RaftTiming(auto_join=True)
    wiped.now_ms = state.update_due_ms = NOW_MS + 1000
    wiped.high_watermark = 1
    following.poll(state)
    remove = RemoveVoter(key(1), "cluster")
    assert sent_by(wiped)[0].request == remove
    following.updated(remove, VoterChangeResponse(BAD))
    assert state.update_due_ms == NOW_MS + 7000
    following.updated(remove, VoterChangeResponse(NONE))
    assert state.update_due_ms == NOW_MS + 1000


def test_an_answer_of_the_leader_confirms_the_view_and_an_error_does_not() -> None:
    made, following, _ = follower(5)
    made.now_ms += 700
    fetched(made, following, RaftFetchResponse(ErrorCode.unknown_leader_epoch, 4, 2, place(2)))
    assert made.confirmed_ms == 0
    fetched(made, following, RaftFetchResponse(NONE, 4, 2, place(2), 0))
    assert made.confirmed_ms == made.now_ms
