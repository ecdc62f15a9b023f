"""The core that all Raft roles share: eligibility, endpoints of peers, timeouts, persisted state."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from service.base.errors import InvariantError
from service.metadata.raft.core import RaftCore
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendControl,
    FlushLog,
    FollowLeader,
    KRaftVersion,
    KRaftVoters,
    Lead,
    LeaderChange,
    Peer,
    Persist,
    RestartAt,
    Send,
    StepDown,
    TruncateTo,
)
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.requests import RaftFetchRequest, VoteRequest
from service.metadata.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterNode, VoterSet
from tests.unit.metadata.raft_cores import NOW_MS, core, key, place, voter

INTERNAL = "INTERNAL"


# -- who is who


def test_a_voter_may_be_a_candidate_up_to_the_last_epoch() -> None:
    one = core()
    assert (one.is_voter, one.may_start_election, one.is_sole_voter) == (True, True, False)
    one.epoch = 2**31 - 3
    assert one.may_start_election
    one.epoch = 2**31 - 2
    assert not one.may_start_election
    assert core(voter(1)).is_sole_voter
    assert not core(voter(2)).is_sole_voter
    assert [one.node_id for one in core().other_voters()] == [2, 3]


def test_a_removed_voter_may_be_a_candidate_until_the_removal_commits() -> None:
    one = core(voter(1), voter(2), version=1, end=1)
    one.log.voters.add(5, VoterSet([voter(2)]))
    assert not one.is_voter
    one.high_watermark = 5
    assert one.may_start_election, "the record at 5 is not committed"
    one.high_watermark = 6
    assert not one.may_start_election
    stranger = core(voter(2), version=1)
    stranger.log.voters.add(5, VoterSet([voter(3)]))
    assert not stranger.may_start_election
    assert not core(voter(2)).may_start_election


def test_a_voter_has_moved_where_the_record_has_another_address() -> None:
    assert not core(version=1).has_moved
    moved = core(voter(1, place(9)), voter(2), version=1, end=1)
    assert moved.has_moved
    assert not core(voter(1, place(9)), voter(2)).has_moved, "the configuration is no record"
    assert not core(voter(1, place(9)), version=1, endpoints=()).has_moved
    assert not core(voter(2), version=1).has_moved, "it is no voter"


def test_others_find_a_voter_by_a_record_that_is_committed() -> None:
    assert core().is_recorded
    one = core(version=1, end=1)
    assert not one.is_recorded
    one.high_watermark = 1
    assert one.is_recorded
    moved = core(voter(1, place(9)), version=1, end=1)
    moved.high_watermark = 1
    assert not moved.is_recorded


def test_controllers_reach_each_other_by_the_listener_of_the_first_ones_name() -> None:
    one = core(endpoints=(place(1, "internal"), place(1, "OTHER")))
    both = (place(2, "OTHER"), place(3, "Internal"))
    assert one.identity.at_listener(both) == place(3, "Internal")
    assert one.identity.reached(both) == place(3, "Internal")
    assert one.identity.at_listener((place(2, "OTHER"),)) is None
    assert one.identity.reached((place(2, "OTHER"),)) == place(2, "OTHER")
    assert one.identity.reached(()) is None
    bare = core(endpoints=())
    assert bare.identity.at_listener(both) == place(2, "OTHER")
    assert one.peer(voter(4, *both)) == Peer(4, place(3, "Internal"))
    assert one.peer(VoterNode(key(4))) is None


def test_the_endpoint_of_a_leader_comes_from_it_or_from_the_voters() -> None:
    one = core()
    assert (one.endpoint_of(1), one.endpoint_of(2), one.endpoint_of(9)) == (place(1), place(2), None)
    one.leader_id, one.leader_endpoint = 2, place(7)
    assert (one.endpoint_of(2), one.endpoint_of(3)) == (place(7), place(3))
    one.leader_endpoint = None
    assert one.endpoint_of(2) == place(2)
    assert core(endpoints=()).endpoint_of(1) is None


def test_a_request_is_for_this_cluster_and_this_replica() -> None:
    one = core().identity
    assert [one.knows_cluster(named) for named in (None, "cluster", "other")] == [True, True, False]
    assert core(cluster_id=None).identity.knows_cluster("other")
    found = [one.is_me(named) for named in (ReplicaKey(-1), ReplicaKey(1), key(1), key(2), ReplicaKey(0))]
    assert found == [True, True, True, False, False]
    assert not one.is_me(ReplicaKey(1, UUID(int=9)))


# -- times


def test_a_deadline_that_is_not_reached_requests_a_tick() -> None:
    one = core()
    assert one.is_due(NOW_MS)
    assert one.deadline_ms == 2**62
    assert not one.is_due(NOW_MS + 1)
    assert one.deadline_ms == NOW_MS + 1
    one.wake_at(NOW_MS + 9)
    assert one.deadline_ms == NOW_MS + 1


def test_a_peer_gets_one_request_at_a_time() -> None:
    one, peer = core(), Peer(2, place(2))
    fetch = RaftFetchRequest(key(1), 4, 0, 0)
    assert not one.ask(None, fetch)
    assert one.ask(peer, fetch)
    assert not one.ask(peer, fetch)
    assert one.deadline_ms == NOW_MS + 2000
    assert one.ask(peer, VoteRequest(4, key(1), 0, 0))
    assert one.effects == [Send(peer, 1, fetch), Send(peer, 2, VoteRequest(4, key(1), 0, 0))]


# -- the log


def test_one_flush_at_a_time() -> None:
    one = core(end=5)
    one.flush_if_idle()
    one.flush_if_idle()
    assert one.effects == [FlushLog(5)]
    one.flush_ended(3)
    assert one.flushed == 3
    one.flush_if_idle()
    assert one.effects == [FlushLog(5), FlushLog(5)]
    one.flush_ended(5)
    one.flush_ended(4)
    assert one.flushed == 5
    one.flush_if_idle()
    assert len(one.effects) == 2


def test_an_observer_flushes_nothing_before_it_fetches() -> None:
    one = core(end=5, can_vote=False)
    one.flush_if_idle()
    assert (one.flushed, one.effects) == (5, [])


def test_the_high_watermark_never_falls_and_is_never_truncated() -> None:
    one = core(end=5)
    one.commit(3)
    one.commit(2)
    one.commit(3)
    assert (one.high_watermark, one.effects) == (3, [AdvanceHighWatermark(3)])
    with pytest.raises(InvariantError):
        one.truncate(2, "x")
    with pytest.raises(InvariantError):
        one.restart(RestartAt(SnapshotId(2, 1)))
    one.truncate(3, "x")
    assert one.effects[1:] == [TruncateTo(3)]
    one.restart(RestartAt(SnapshotId(3, 1)))
    assert one.effects[2:] == [RestartAt(SnapshotId(3, 1))]
    one.restart(RestartAt(SnapshotId(9, 2)))
    assert one.effects[3:] == [RestartAt(SnapshotId(9, 2)), AdvanceHighWatermark(9)]
    assert (one.flushed, one.log_changes) == (9, True)


def test_truncated_offsets_do_not_count_as_flushed() -> None:
    one = core(end=5)
    one.flush_if_idle()
    one.flush_ended(5)
    one.truncate(3, "x")
    assert one.flushed == 3
    one.flush_if_idle()
    assert one.effects[-1] == FlushLog(5), "the log that this model has is not cut"
    one.truncate(4, "x")
    assert one.flushed == 3
    one.flush_if_idle()
    assert one.effects[-1] == FlushLog(5), "nothing is under way any more"


# -- what is kept of a vote


def test_a_state_is_persisted_once_and_replaces_an_unannounced_one() -> None:
    one = core()
    one.become_unattached(3)
    one.vote_for(key(2))
    kept = QuorumState(3, -1, 2, (1, 2, 3))
    assert one.effects == [Persist(kept), FollowLeader(-1, 3)]
    one.persist()
    assert one.effects == [Persist(kept), FollowLeader(-1, 3)]
    one.emit(FlushLog(1))
    one.become_follower(3, 2, place(2))
    assert one.effects[2:] == [FlushLog(1), Persist(QuorumState(3, 2, 2, (1, 2, 3))), FollowLeader(2, 3)]
    known = core()
    known.set_persisted(QuorumState(3, -1, -1, (1, 2, 3)))
    known.become_unattached(3)
    assert known.effects == [FollowLeader(-1, 3)]


def test_under_kraft_version_1_the_directory_is_kept_and_no_voters() -> None:
    one = core(version=1, end=1)
    one.become_unattached(3)
    one.vote_for(key(2))
    assert one.effects[0] == Persist(QuorumState(3, -1, 2, (), UUID(int=2), 1))


def test_a_voter_has_one_vote_in_an_epoch() -> None:
    one = core()
    one.become_unattached(3)
    one.vote_for(key(2))
    one.vote_for(key(2))
    with pytest.raises(InvariantError):
        one.vote_for(key(3))
    one.become_unattached(4)
    one.vote_for(key(3))


def test_a_vote_restarts_the_election_timeout() -> None:
    one = core()
    chance: Any = one.random
    one.become_unattached(3)
    assert isinstance(one.state, Unattached)
    one.now_ms += 700
    chance.percent = 10
    one.vote_for(key(2))
    assert one.state == Unattached(NOW_MS + 1800)
    asking = core()
    asking.become_unattached(3)
    asking.become_prospective()
    assert asking.state == Prospective(NOW_MS + 1500, {1})
    asking.state.rejected.add(2)
    asking.now_ms += 700
    asking.vote_for(key(2))
    assert asking.state == Prospective(NOW_MS + 2200, {1})


def test_a_later_epoch_keeps_the_election_timeout() -> None:
    one = core()
    one.become_unattached(3, restart_timeout=True)
    one.now_ms += 700
    one.become_unattached(4)
    assert one.state == Unattached(NOW_MS + 1500)
    one.become_unattached(5, restart_timeout=True)
    assert one.state == Unattached(NOW_MS + 2200)
    one.become_follower(5, 2, place(2))
    one.now_ms += 100
    one.become_unattached(6)
    assert one.state == Unattached(NOW_MS + 2300)
    assert (one.epoch, one.leader_id, one.leader_endpoint, one.voted) == (6, -1, None, None)


def test_a_leader_is_followed_where_its_address_is_known() -> None:
    one = core()
    one.election_timeouts.lost = 5
    one.become_follower(4, 2, place(2))
    assert one.state == Follower(deadline_ms=NOW_MS + 2000, update_due_ms=NOW_MS + 6000)
    assert (one.epoch, one.leader_id, one.leader_endpoint, one.election_timeouts.lost) == (4, 2, place(2), 0)
    assert one.effects == [Persist(QuorumState(4, 2, -1, (1, 2, 3))), FollowLeader(2, 4)]
    nowhere = core()
    nowhere.election_timeouts.lost = 5
    nowhere.become_follower(4, 2, None)
    assert nowhere.state == Unattached(NOW_MS + 1500)
    assert (nowhere.leader_id, nowhere.election_timeouts.lost) == (2, 5)
    moved = core(voter(1, place(9)), voter(2), version=1, end=1)
    moved.become_follower(4, 2, place(2))
    assert moved.state == Follower(deadline_ms=NOW_MS + 2000, update_due_ms=NOW_MS)


def test_an_epoch_has_one_leader_and_it_is_another_node() -> None:
    one = core()
    with pytest.raises(InvariantError):
        one.become_follower(4, 1, place(1))
    one.become_follower(4, 2, None)
    with pytest.raises(InvariantError):
        one.become_follower(4, 3, place(3))
    one.become_follower(4, 2, place(2))
    one.become_follower(5, 3, place(3))
    assert one.leader_id == 3


def test_a_candidate_starts_an_epoch_and_votes_for_itself() -> None:
    one = core()
    one.become_unattached(3)
    one.become_candidate()
    assert (one.epoch, one.election_timeouts.lost, one.voted, one.leader_id) == (4, 1, key(1), -1)
    assert one.state == Candidate(NOW_MS + 1500, {1})
    assert one.effects == [Persist(QuorumState(4, -1, 1, (1, 2, 3))), FollowLeader(-1, 3)]


def test_a_new_leader_writes_a_leader_change_and_has_three_seconds() -> None:
    one = core(end=5)
    one.become_unattached(3)
    one.become_candidate()
    del one.effects[:]
    one.become_leader((1, 2))
    assert one.state == Leader(5, (1, 2), NOW_MS + 3000, began_ms=NOW_MS)
    assert (one.leader_id, one.leader_endpoint, one.election_timeouts.lost) == (1, place(1), 0)
    assert one.effects == [
        Persist(QuorumState(4, 1, -1, (1, 2, 3))),
        AppendControl(4, (LeaderChange(1, (1, 2, 3), (1, 2)),)),
        Lead(4),
    ]
    one.resign((key(3),))
    assert one.state == Resigned(NOW_MS + 1500, (key(3),), {2, 3})
    assert one.effects[-1] == StepDown()
    assert len(one.orphans) == 1


def elected(made: RaftCore) -> tuple[Any, ...]:
    """The control records that it begins with."""
    made.become_unattached(3)
    made.become_candidate()
    made.become_leader((1,))
    (found,) = [one for one in made.effects if isinstance(one, AppendControl)]
    return found.records[1:]


def test_a_new_leader_says_the_voters_where_the_log_does_not_or_it_has_moved() -> None:
    assert elected(core()) == ()
    assert elected(core(version=1, end=1)) == ()
    boot = core(version=1)
    boot.log.voters.restart(0, VoterSet([voter(1), voter(2)]), 1)
    assert boot.log.voters.latest_offset == -1
    assert elected(boot) == (KRaftVersion(1), KRaftVoters(VoterSet([voter(1), voter(2)])))
    moved = elected(core(voter(1, place(9)), voter(2), version=1, end=1))
    assert moved == (KRaftVersion(1), KRaftVoters(VoterSet([voter(1), voter(2)])))
    assert elected(core(voter(1, place(9)), voter(2), version=1, end=1, endpoints=())) == ()
    absent = core(voter(1), version=1, end=1)
    absent.become_unattached(3)
    absent.become_candidate()
    absent.log.voters.add(5, VoterSet([voter(2)]))
    absent.become_leader((1,))
    (found,) = [one for one in absent.effects if isinstance(one, AppendControl)]
    assert found.records == (LeaderChange(1, (2,), (1,)),)


def test_illegal_state_moves_are_refused() -> None:
    one = core()
    with pytest.raises(InvariantError):
        one.become_leader((1,))
    with pytest.raises(InvariantError):
        one.resign()
    one.become_follower(4, 2, place(2))
    with pytest.raises(InvariantError):
        one.become_candidate()
