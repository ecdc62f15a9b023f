"""A Raft leader: answers to fetches, commits, check-quorum, snapshots, resignation."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.raft.core import RaftCore
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.leading import LeaderRole
from service.metadata.raft.requests import (
    NONE,
    BeginQuorumEpochRequest,
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    ReadLog,
    ReadSnapshot,
    Refusal,
    ReplicaDescription,
)
from service.metadata.raft.roles import Leader, ReplicaState, Resigned, Unattached
from service.metadata.raft.voters import VoterSet
from simulator.machines.model import Batch
from tests.unit.metadata.raft_cores import BAD, FENCED, NOW_MS, core, key, last_answer, place, sent_by, voter


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
def test_a_leader_answers_valid_fetches_and_refuses_others(changes: dict[str, Any], error: ErrorCode) -> None:
    made, leading, state = leader()
    leading.fetch(7, RaftFetchRequest(key(2), 4, 3, 1)._replace(**changes))
    assert last_answer(made).error is error
    assert (last_answer(made).epoch, last_answer(made).leader_id, last_answer(made).endpoint) == (
        4,
        1,
        place(1),
    )
    if error is NONE:
        assert last_answer(made) == RaftFetchResponse(
            NONE, 4, 1, place(1), -1, 0, records=ReadLog(3, 1 << 20)
        )
        assert state.replicas == {ReplicaKey(2, UUID(int=2)): ReplicaState(3, NOW_MS, -1, 5)}


@pytest.mark.parametrize(
    ("wanted", "given"), [(0, 0), (-5, 0), (7, 7), (8 << 20, 8 << 20), ((8 << 20) + 1, 8 << 20)]
)
def test_an_answer_has_8_mib_at_most(wanted: int, given: int) -> None:
    made, leading, _ = leader()
    leading.fetch(7, RaftFetchRequest(key(2), 4, 3, 1, max_bytes=wanted))
    assert last_answer(made).records == ReadLog(3, given)


def test_a_caught_up_fetch_waits_for_records_or_a_high_watermark() -> None:
    made, leading, state = leader()
    leading.fetch(7, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=500))
    assert not made.effects
    assert state.parked[7].deadline_ms == NOW_MS + 500
    leading.fetch(8, RaftFetchRequest(key(2), 4, 5, 1, max_wait_ms=0))
    assert last_answer(made).records == b""
    state.committed = 4
    leading.fetch(9, RaftFetchRequest(key(2), 4, 5, 1, high_watermark=3))
    assert last_answer(made).high_watermark == 4
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
    assert last_answer(made).records == ReadLog(5, 1 << 20)
    leading.fetch(12, RaftFetchRequest(key(2), 4, 6, 4, high_watermark=4))
    leading.dismiss(state)
    assert not state.parked


def test_the_last_caught_up_time_is_that_of_the_earlier_fetch() -> None:
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


def test_a_leader_stays_while_it_hears_a_majority() -> None:
    made, leading, state = leader()
    made.now_ms += 1000
    leading.fetch(1, RaftFetchRequest(key(9), 4, 4, 1))
    leading.fetch(1, RaftFetchRequest(ReplicaKey(-1), 4, 4, 1))
    assert made.confirmed_ms == 0, "those confirm nothing"
    assert state.quorum_deadline_ms == NOW_MS + 3000
    assert list(state.replicas) == [key(9)]
    leading.fetch(1, RaftFetchRequest(key(2), 4, 4, 1))
    assert (state.quorum_deadline_ms, state.fetched_voters) == (NOW_MS + 4000, set())
    assert made.confirmed_ms == NOW_MS + 1000
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


def test_a_majority_on_disk_commits_from_the_epochs_first_record_on() -> None:
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


def test_a_leader_remembers_a_thousand_observers_and_drops_the_oldest() -> None:
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


def test_an_existing_snapshot_is_served_to_whoever_requests_it() -> None:
    made, leading, state = leader()
    log: Any = made.log
    log.snapshots = (SnapshotId(0, 0), SnapshotId(3, 1))
    question = FetchSnapshotRequest(key(2), 4, SnapshotId(3, 1), 7, 100)
    made.now_ms += 5
    leading.snapshot(1, question)
    assert last_answer(made) == FetchSnapshotResponse(
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
        assert last_answer(made) == FetchSnapshotResponse(error, 4, 1, place(1))
    leading.snapshot(3, question._replace(cluster_id="other"))
    assert last_answer(made) == Refusal(ErrorCode.inconsistent_cluster_id)
    leading.snapshot(4, question._replace(position=0, replica=ReplicaKey(-1)))
    assert last_answer(made).position == 0
    leading.snapshot(5, question._replace(replica=key(1)))
    leading.snapshot(6, question._replace(replica=key(0)))
    assert set(state.replicas) == {key(2), key(0)}


def test_describe_quorum_lists_observers_of_the_last_five_minutes() -> None:
    made, leading, state = leader()
    state.committed = 4
    state.replicas = {
        key(2): ReplicaState(5, 10, 9, 5), key(9): ReplicaState(3, NOW_MS, 7, 5),
        key(8): ReplicaState(1, NOW_MS - 1, 1, 5),
    }  # fmt: skip
    made.now_ms += 299_999
    leading.describe(1)
    assert last_answer(made) == DescribeQuorumResponse(
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
    assert last_answer(made).observers == ()
    made.resume(Unattached(NOW_MS))
    leading.describe(3)
    assert last_answer(made) == DescribeQuorumResponse(ErrorCode.not_leader_or_follower, 4, 1)


def test_a_leader_sends_begin_quorum_epoch_to_silent_voters() -> None:
    made, leading, state = leader()
    leading.poll(state)
    begin = BeginQuorumEpochRequest(4, 1, (place(1),), key(2), "cluster")
    assert [(one.peer.node_id, one.request) for one in sent_by(made)] == [
        (2, begin),
        (3, begin._replace(voter=key(3))),
    ]
    assert state.last_begin_ms == {2: NOW_MS, 3: NOW_MS}
    for send in sent_by(made):
        made.calls.answered(send.peer, send.call)
    state.replicas[key(3)] = ReplicaState(last_fetch_ms=NOW_MS + 1)
    made.now_ms += 999
    leading.poll(state)
    assert len(sent_by(made)) == 2
    made.now_ms += 1
    leading.poll(state)
    assert [one.peer.node_id for one in sent_by(made)[2:]] == [2]


def test_a_leader_without_a_majority_resigns_to_the_longest_log() -> None:
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


def test_a_leader_knows_how_long_each_voter_is_silent_also_one_that_never_fetched() -> None:
    _, leading, state = leader()
    state.began_ms = NOW_MS - 4_000
    leading.fetch(7, RaftFetchRequest(key(2), 4, 3, 1))
    assert leading.silence(state, voter(2), NOW_MS + 500) == (500, True)
    assert leading.silence(state, voter(3), NOW_MS + 500) == (4_500, False)
