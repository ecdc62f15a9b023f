"""The small parts of the Raft machine: calls, control records, epochs, voters, what is on disk of a vote."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.metadata.batches import ControlRecord, ControlType, MetadataBatch
from service.metadata.endpoint import Endpoint
from service.metadata.raft import events
from service.metadata.raft.control import (
    VoterRecords,
    apply_voter_record,
    control_messages,
    encode_records,
    learn,
)
from service.metadata.raft.events import Peer, Send
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.log_view import (
    EpochIndex,
    LogView,
    ValidationKind,
    ValidOffsetAndEpoch,
    real_snapshots,
    validate_offset_and_epoch,
)
from service.metadata.raft.request_manager import RequestManager
from service.metadata.raft.requests import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    RaftFetchRequest,
    RaftRequest,
    VoteRequest,
)
from service.metadata.raft.state import QuorumState, decode_state, encode_state
from service.metadata.raft.voters import VoterHistory, VoterNode, VoterSet

PLACE, OTHER = Endpoint("CONTROLLER", "host", 9093), Endpoint("CONTROLLER", "other", 9093)
PEER = Peer(2, PLACE)


def key(node_id: int, directory: int = 0) -> ReplicaKey:
    return ReplicaKey(node_id, UUID(int=directory))


# -- calls

FETCH = RaftFetchRequest(key(1), 4, 17, 3)
VOTE = VoteRequest(4, key(1), 3, 17)


def test_an_address_gets_one_call_at_a_time() -> None:
    calls = RequestManager(2_000, 20)
    assert calls.free_at_ms(PLACE, FETCH) == 0
    assert calls.send(PEER, FETCH, 1_000) == Send(PEER, 1, FETCH)
    assert calls.free_at_ms(PLACE, FETCH) == 3_000
    assert calls.free_at_ms(OTHER, FETCH) == 0
    assert calls.answered(PEER, 1) == FETCH
    assert calls.free_at_ms(PLACE, FETCH) == 0
    assert calls.answered(PEER, 1) is None, "it was answered before"
    assert calls.send(PEER, FETCH, 2_000).call == 2


def test_a_response_to_an_abandoned_call_is_ignored() -> None:
    calls = RequestManager(2_000, 20)
    calls.send(PEER, FETCH, 0)
    calls.send(PEER, VOTE, 0)
    assert calls.answered(PEER, 1) is None
    assert calls.answered(PEER, 3) is None
    assert calls.answered(Peer(2, OTHER), 2) is None
    assert calls.answered(PEER, 2) == VOTE


def test_a_peer_that_failed_is_left_alone_for_a_moment_by_elections_too() -> None:
    calls = RequestManager(2_000, 20)
    calls.send(PEER, FETCH, 0)
    calls.pause(PEER, 500)
    for asked in (FETCH, VOTE, BeginQuorumEpochRequest(4, 2), EndQuorumEpochRequest(4, 2)):
        assert calls.free_at_ms(PLACE, asked) == 520
    assert calls.answered(PEER, 0) is None


@pytest.mark.parametrize(
    ("under_way", "asked", "waits"),
    [
        (FETCH, FETCH, True),
        (FETCH, VOTE, False),
        (FETCH, BeginQuorumEpochRequest(4, 2), False),
        (FETCH, EndQuorumEpochRequest(4, 2), False),
        (VOTE, FETCH, True),
        (VOTE, VOTE, True),
        (VOTE, VOTE._replace(last_offset=99), True),
        (VOTE, VOTE._replace(epoch=5), False),
        (VOTE, VOTE._replace(pre_vote=True), False),
        (VOTE, BeginQuorumEpochRequest(4, 2), False),
        (BeginQuorumEpochRequest(4, 2), BeginQuorumEpochRequest(4, 2), True),
        (BeginQuorumEpochRequest(4, 2), BeginQuorumEpochRequest(5, 2), False),
        (BeginQuorumEpochRequest(4, 2), EndQuorumEpochRequest(4, 2), False),
        (EndQuorumEpochRequest(4, 2), EndQuorumEpochRequest(4, 2, (key(3),)), True),
    ],
)
def test_election_requests_wait_only_for_each_other(
    under_way: RaftRequest, asked: RaftRequest, waits: bool
) -> None:
    calls = RequestManager(2_000, 20)
    calls.send(PEER, under_way, 1_000)
    assert calls.free_at_ms(PLACE, asked) == (3_000 if waits else 0)


# -- control records

VOTERS = VoterSet([VoterNode(key(1, 7), (PLACE,), 0, 1), VoterNode(key(2), (OTHER, PLACE), 1, 1)])


def test_a_snapshot_has_voters_under_kraft_version_1_only() -> None:
    assert control_messages(VoterRecords(VOTERS, 0)) == ()
    assert control_messages(VoterRecords(None, 1)) == ()
    version, voters = control_messages(VoterRecords(VOTERS, 1))
    assert (version.version, version.k_raft_version) == (0, 1)
    assert voters.version == 0
    first, second = voters.voters
    assert (first.voter_id, first.voter_directory_id) == (1, UUID(int=7))
    assert (second.voter_id, second.voter_directory_id) == (2, None)
    assert [(one.name, one.host, one.port) for one in second.endpoints] == [
        ("CONTROLLER", "other", 9093),
        ("CONTROLLER", "host", 9093),
    ]
    feature = second.k_raft_version_feature
    assert (feature.min_supported_version, feature.max_supported_version) == (1, 1)


def test_control_records_are_written_in_version_0() -> None:
    wanted = (events.LeaderChange(2, (1, 2, 3), (2, 3)), events.KRaftVersion(1), events.KRaftVoters(VOTERS))
    change, version, voters = encode_records(wanted)
    assert (change.version, change.leader_id) == (0, 2)
    assert [one.voter_id for one in change.voters] == [1, 2, 3]
    assert [one.voter_id for one in change.granting_voters] == [2, 3]
    assert (version, voters) == control_messages(VoterRecords(VOTERS, 1))


def test_voter_records_are_read_as_they_were_written() -> None:
    version, voters = control_messages(VoterRecords(VOTERS, 1))
    said = apply_voter_record(ControlRecord(ControlType.KRAFT_VERSION, version, b""), VoterRecords())
    assert said == VoterRecords(None, 1)
    assert apply_voter_record(ControlRecord(ControlType.KRAFT_VOTERS, voters, b""), said) == VoterRecords(
        VOTERS, 1
    )
    (change,) = encode_records([events.LeaderChange(2, (1,), (1,))])
    assert apply_voter_record(ControlRecord(ControlType.LEADER_CHANGE, change, b""), said) == said
    for kind in (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS):
        with pytest.raises(CorruptionError):
            apply_voter_record(ControlRecord(kind, None, b""), said)
    assert apply_voter_record(ControlRecord(ControlType.SNAPSHOT_HEADER, None, b""), said) == said


def test_a_record_counts_at_its_own_offset() -> None:
    history = VoterHistory(VoterSet())
    version, voters = control_messages(VoterRecords(VOTERS, 1))
    (change,) = encode_records([events.LeaderChange(2, (1,), (1,))])
    rows = [
        ControlRecord(ControlType.LEADER_CHANGE, change, b""),
        ControlRecord(ControlType.KRAFT_VERSION, version, b""),
        ControlRecord(ControlType.KRAFT_VOTERS, voters, b""),
    ]
    learn(history, MetadataBatch(10, 12, 4, 0, tuple(rows), ()))
    assert (history.latest, history.latest_offset, history.version) == (VOTERS, 12, 1)
    assert [history.at(end) for end in (11, 12, 13)] == [(None, 0), (None, 1), (VOTERS, 1)]


# -- epochs


def test_epochs_begin_where_their_first_record_is() -> None:
    index = EpochIndex([(1, 0), (1, 5), (4, 10), (4, 12), (6, 20)])
    assert index.latest == 6
    assert [index.epoch_below(offset) for offset in (0, 1, 10, 11, 20, 21)] == [0, 1, 1, 4, 4, 6]
    ends = {epoch: index.end_of(epoch, 30) for epoch in range(8)}
    assert ends == {
        0: EpochEnd(0, 0), 1: EpochEnd(1, 10), 2: EpochEnd(1, 10), 3: EpochEnd(1, 10), 4: EpochEnd(4, 20),
        5: EpochEnd(4, 20), 6: EpochEnd(6, 30), 7: EpochEnd(6, 30),
    }  # fmt: skip
    index.truncate(20)
    assert (index.latest, index.end_of(6, 20)) == (4, EpochEnd(4, 20))
    index.truncate(0)
    assert (index.latest, index.end_of(6, 0)) == (0, EpochEnd(0, 0))


def test_the_last_epoch_below_the_start_offset_is_kept() -> None:
    index = EpochIndex([(1, 0), (4, 10), (6, 20)])
    index.forget_before(15)
    assert [index.epoch_below(offset) for offset in (15, 20, 21)] == [4, 4, 6]
    assert index.end_of(4, 30) == EpochEnd(4, 20)
    assert index.end_of(3, 30) == EpochEnd(3, 15), "it lies below the start"
    assert index.end_of(9, 30) == EpochEnd(6, 30)
    index.forget_before(20)
    assert (index.latest, index.epoch_below(20), index.end_of(4, 30)) == (6, 4, EpochEnd(4, 20))
    index.forget_before(10)
    assert index.end_of(3, 30) == EpochEnd(3, 20), "a start does not go back"


def test_an_epoch_index_restarts_at_a_snapshot() -> None:
    index = EpochIndex([(1, 0), (4, 10)])
    index.restart(SnapshotId(50, 7))
    assert (index.latest, index.epoch_below(50)) == (7, 7)
    assert (index.end_of(7, 50), index.end_of(3, 50)) == (EpochEnd(7, 50), EpochEnd(3, 50))
    index.note(7, 50)
    assert index.end_of(7, 60) == EpochEnd(7, 60)
    index.note(8, 60)
    assert (index.end_of(7, 70), index.latest) == (EpochEnd(7, 60), 8)


class Log:
    """A log that began with a snapshot of epoch 2 at 10, and has epochs 2, 4 from 20 and 5 from 30, to 40."""

    def __init__(self, *snapshots: SnapshotId, start: int = 10) -> None:
        self.start_offset, self.end_offset = start, 40
        self.epochs = EpochIndex([(2, 0)] if start == 0 else (), base=2 if start else 0, start_offset=start)
        self.epochs.note(4, 20)
        self.epochs.note(5, 30)
        self.voters = VoterHistory(VoterSet())
        self.snapshots = snapshots


OLD, NEW = SnapshotId(10, 2), SnapshotId(30, 4)


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (40, 5, ValidOffsetAndEpoch(ValidationKind.VALID)),
        (35, 5, ValidOffsetAndEpoch(ValidationKind.VALID)),
        (30, 4, ValidOffsetAndEpoch(ValidationKind.VALID)),
        (20, 2, ValidOffsetAndEpoch(ValidationKind.VALID)),
        (10, 2, ValidOffsetAndEpoch(ValidationKind.VALID)),
        (41, 5, ValidOffsetAndEpoch(ValidationKind.DIVERGING, diverging=EpochEnd(5, 40))),
        (40, 6, ValidOffsetAndEpoch(ValidationKind.DIVERGING, diverging=EpochEnd(5, 40))),
        (31, 4, ValidOffsetAndEpoch(ValidationKind.DIVERGING, diverging=EpochEnd(4, 30))),
        (25, 3, ValidOffsetAndEpoch(ValidationKind.DIVERGING, diverging=EpochEnd(2, 20))),
        (21, 2, ValidOffsetAndEpoch(ValidationKind.DIVERGING, diverging=EpochEnd(2, 20))),
        (9, 2, ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=NEW)),
        (0, 0, ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=NEW)),
        (0, 4, ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=NEW)),
        (10, 3, ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=NEW)),
        (10, 1, ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=NEW)),
        (25, 1, ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=NEW)),
    ],
)
def test_a_follower_offset_and_epoch_are_validated_against_the_log(
    offset: int, epoch: int, expected: ValidOffsetAndEpoch
) -> None:
    log: LogView = Log(OLD, NEW)
    assert validate_offset_and_epoch(log, offset, epoch) == expected


def test_an_empty_log_continues_any_log() -> None:
    log = Log(start=0)
    assert validate_offset_and_epoch(log, 0, 0) == ValidOffsetAndEpoch(ValidationKind.VALID)
    assert validate_offset_and_epoch(log, 1, 0).fit is ValidationKind.DIVERGING
    assert validate_offset_and_epoch(log, 0, 1).fit is ValidationKind.DIVERGING
    bootstrap = SnapshotId(0, 0)
    assert real_snapshots(Log(bootstrap, SnapshotId(1, 1))) == (SnapshotId(1, 1),)
    assert validate_offset_and_epoch(Log(bootstrap, start=0), 0, 0) == ValidOffsetAndEpoch(
        ValidationKind.VALID
    )


# -- voters


def voter(node_id: int, directory: int = 0, *places: Endpoint) -> VoterNode:
    return VoterNode(key(node_id, directory), places)


def test_a_set_of_voters() -> None:
    found = VoterSet([voter(3, 9, PLACE, OTHER), voter(1), voter(2, 8)])
    assert (found.ids, len(found), found.majority) == ((1, 2, 3), 3, 2)
    assert [VoterSet(map(voter, range(n))).majority for n in range(1, 7)] == [1, 2, 2, 3, 3, 4]
    assert [found.get(one) for one in (3, 9)] == [voter(3, 9, PLACE, OTHER), None]
    assert found.has(key(2, 8))
    assert not found.has(key(2, 7))
    assert found.has(key(1, 7)), "its directory is not known"
    assert not found.has(key(9))
    assert found.with_voter(voter(2, 7)).get(2) == voter(2, 7)
    assert found.with_voter(voter(5)).ids == (1, 2, 3, 5)
    assert found.without(key(2, 7)) == found
    assert found.without(key(2, 8)).ids == (1, 3)
    assert len({found, VoterSet(found.voters), VoterSet()}) == 2
    assert hash(found) == hash(VoterSet(reversed(found.voters)))
    assert found != found.voters


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ([(1, 7), (2, 8)], [(1, 7), (2, 8)], 0),
        ([(1, 7), (2, 8)], [(1, 7)], 1),
        ([(1, 7)], [(1, 7), (2, 8)], 1),
        ([(1, 7)], [(1, 9)], 2),
        ([(1, 0)], [(1, 9)], 0),
        ([(1, 9)], [(1, 0)], 0),
        ([(1, 0), (2, 8)], [(1, 9), (2, 7)], 2),
        ([(1, 7), (2, 8)], [(3, 7), (4, 8)], 4),
    ],
)
def test_the_difference_of_two_voter_sets_is_counted(
    one: list[tuple[int, int]], other: list[tuple[int, int]], count: int
) -> None:
    assert VoterSet(voter(*row) for row in one).differences(VoterSet(voter(*row) for row in other)) == count


def test_voters_count_from_their_record_on_and_are_taken_back_with_it() -> None:
    static, first, second = VoterSet([voter(1)]), VoterSet([voter(2)]), VoterSet([voter(3)])
    history = VoterHistory(static)
    assert (history.latest, history.previous, history.latest_offset, history.version) == (
        static,
        None,
        None,
        0,
    )
    history.add_version(4, 1)
    history.add(5, first)
    assert (history.latest, history.previous, history.latest_offset, history.version) == (first, None, 5, 1)
    history.add(9, second)
    assert (history.latest, history.previous, history.latest_offset) == (second, first, 9)
    assert [history.at(end) for end in (4, 5, 6, 9, 10)] == [
        (None, 0), (None, 1), (first, 1), (first, 1), (second, 1),
    ]  # fmt: skip
    history.truncate(9)
    assert (history.latest, history.version) == (first, 1)
    history.truncate(4)
    assert (history.latest, history.version) == (static, 0)


def test_the_last_voter_set_below_the_start_offset_is_kept() -> None:
    history = VoterHistory(VoterSet())
    sets = [VoterSet([voter(n)]) for n in range(4)]
    for n, one in enumerate(sets):
        history.add(10 * n, one)
    history.forget_before(20)
    assert [history.at(end)[0] for end in (11, 21, 31)] == [sets[1], sets[2], sets[3]]
    assert history.at(10) == (None, 0)
    history.forget_before(0)
    assert history.latest == sets[3]
    history.restart(50, sets[1], 1)
    assert (history.latest, history.latest_offset, history.version) == (sets[1], 49, 1)
    assert history.at(49) == (None, 0)
    assert history.at(50) == (sets[1], 1)
    history.restart(60, None, 0)
    assert (history.latest, history.latest_offset, history.version) == (VoterSet(), None, 0)


# -- quorum-state


def test_a_vote_is_written_as_kafka_does() -> None:
    state = QuorumState(5, 2, 3, (1, 2))
    assert json.loads(encode_state(state)) == {
        "clusterId": "", "leaderId": 2, "leaderEpoch": 5, "votedId": 3, "appliedOffset": 0,
        "currentVoters": [{"voterId": 1}, {"voterId": 2}], "data_version": 0,
    }  # fmt: skip
    newer = QuorumState(5, -1, 3, (), UUID(int=77), 1)
    assert json.loads(encode_state(newer)) == {
        "leaderId": -1, "leaderEpoch": 5, "votedId": 3, "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAATQ",
        "data_version": 1,
    }  # fmt: skip
    for one in (state, newer, QuorumState(0), QuorumState(2**31 - 2)):
        assert decode_state(encode_state(one)) == one
    assert QuorumState(7) == QuorumState(7, -1, -1, (), UUID(int=0), 0)


@pytest.mark.parametrize(
    "change",
    [
        {"leaderEpoch": -1},
        {"leaderEpoch": 2**31 - 1},
        {"data_version": 2},
        {"data_version": -1},
        {"leaderId": None},
        {"currentVoters": [{}]},
    ],
)
def test_a_vote_that_cannot_be_is_damage(change: dict[str, object]) -> None:
    fields = json.loads(encode_state(QuorumState(5, 2, 3, (1, 2))))
    with pytest.raises(CorruptionError):
        decode_state(json.dumps({**fields, **change}).encode())


def test_voters_may_be_left_out() -> None:
    fields = json.loads(encode_state(QuorumState(5, 2, 3, (1,))))
    absent: tuple[object, ...] = (None, [])
    for voters in absent:
        assert decode_state(json.dumps({**fields, "currentVoters": voters}).encode()).voters == ()
