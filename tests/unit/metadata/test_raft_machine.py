"""The Raft machine by itself: what it wants done, and in which order."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError, InvariantError
from service.metadata.raft.sole import (
    Appended,
    BecomeLeader,
    Commit,
    Flush,
    Flushed,
    Persist,
    RaftMachine,
    Role,
    Start,
    Stop,
)
from service.metadata.raft.state import QuorumState


def elected(log_end_offset: int = 0) -> RaftMachine:
    machine = RaftMachine(1, (1,))
    machine.handle(Start(None, log_end_offset, -1))
    return machine


def test_a_sole_voter_votes_for_itself_then_leads_and_persists_each_step_before_the_next() -> None:
    effects = RaftMachine(1, (1,)).handle(Start(None, 0, -1))
    assert effects == (
        Persist(QuorumState(1, voted_id=1, voters=(1,))),
        Persist(QuorumState(1, leader_id=1, voters=(1,))),
        BecomeLeader(1, (1,), (1,)),
    )


@pytest.mark.parametrize(
    ("state", "last_epoch", "epoch"),
    [(None, -1, 1), (QuorumState(7, leader_id=1), 7, 8), (QuorumState(7), 3, 8), (None, 5, 6)],
)
def test_every_start_begins_an_epoch_later_than_any_before(
    state: QuorumState | None, last_epoch: int, epoch: int
) -> None:
    machine = RaftMachine(1, (1,))
    machine.handle(Start(state, 10, last_epoch))
    assert machine.epoch == epoch


def test_nothing_is_committed_before_it_is_flushed() -> None:
    machine = elected()
    assert machine.handle(Appended(1)) == (Flush(1),)
    assert machine.high_watermark == 0
    assert machine.handle(Flushed(1)) == (Commit(1),)


def test_what_is_appended_during_a_flush_shares_the_next_one() -> None:
    machine = elected()
    assert machine.handle(Appended(1)) == (Flush(1),)
    assert machine.handle(Appended(4)) == ()
    assert machine.handle(Appended(9)) == ()
    assert machine.handle(Flushed(1)) == (Commit(1), Flush(9))
    assert machine.handle(Flushed(9)) == (Commit(9),)


def test_records_of_earlier_epochs_are_committed_with_the_first_of_this_one() -> None:
    machine = elected(log_end_offset=100)
    assert machine.high_watermark == 0
    machine.handle(Appended(101))
    assert machine.handle(Flushed(101)) == (Commit(101),)


def test_a_node_that_resigned_commits_nothing_more() -> None:
    machine = elected()
    machine.handle(Appended(1))
    machine.handle(Stop())
    assert machine.role is Role.RESIGNED
    assert machine.handle(Flushed(1)) == ()
    with pytest.raises(InvariantError):
        machine.handle(Appended(2))
    with pytest.raises(InvariantError):
        machine.handle(Start(None, 2, 1))


@pytest.mark.parametrize("voters", [(2,), (1, 2, 3), ()])
def test_a_quorum_of_others_is_refused(voters: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"controller\.quorum\.voters"):
        RaftMachine(1, voters)
