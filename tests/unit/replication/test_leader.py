"""A partition's leader: commits, the ISR, and proposals to change it."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.replication.ack_queue import Waiter
from service.replication.leader import (
    AGAIN,
    MOVED,
    NOTHING,
    PROPOSES,
    Accepted,
    BrokerStatus,
    IsrMember,
    LeaderSettings,
    Outcome,
    ReplicaSession,
    Unknown,
)
from tests.unit.replication.leaders import LAG_MS, NOW_MS, SETTLE_MS, Cluster, Log

# -- the high watermark


def test_the_high_watermark_is_the_smallest_end_of_the_isr() -> None:
    cluster = Cluster()
    cluster.append(10)
    assert cluster.fetch(2, 10)[1] == NOTHING
    assert cluster.fetch(3, 4)[1] == MOVED
    assert cluster.leader.high_watermark == 4
    assert cluster.fetch(3, 10)[1] == MOVED
    assert cluster.leader.high_watermark == 10


def test_a_sole_replica_commits_as_it_appends() -> None:
    cluster = Cluster((1,), (1,))
    assert cluster.append(3) == MOVED
    assert cluster.leader.high_watermark == 3
    assert cluster.leader.min_isr == 1


def test_the_high_watermark_stays_below_min_isr() -> None:
    cluster = Cluster((1,))
    cluster.append(10)
    cluster.now_ms += LAG_MS + 1
    assert cluster.leader.tick(cluster.now_ms) == NOTHING
    assert cluster.leader.check_replicas() is ErrorCode.not_enough_replicas
    assert cluster.leader.configure(1, cluster.now_ms) == MOVED
    assert cluster.leader.high_watermark == 10


def test_the_high_watermark_never_falls() -> None:
    cluster = Cluster()
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 10)
    assert cluster.fetch(3, 2, broker_epoch=999)[1] == NOTHING
    assert cluster.leader.high_watermark == 10


def test_a_proposed_replica_holds_the_high_watermark() -> None:
    cluster = Cluster((1, 2))
    cluster.append(10)
    cluster.fetch(2, 10)
    assert cluster.leader.high_watermark == 10
    assert cluster.fetch(3, 10)[1] & PROPOSES
    cluster.append(5)
    cluster.fetch(2, 15)
    assert cluster.leader.high_watermark == 10
    assert cluster.fetch(3, 15)[1] == MOVED


def test_a_lagging_or_replaced_replica_does_not_hold_the_high_watermark() -> None:
    cluster = Cluster((1, 2), min_isr=1)
    cluster.brokers[3] = BrokerStatus(103, is_active=False)
    cluster.append(10)
    cluster.fetch(3, 10)
    cluster.brokers[3] = BrokerStatus(104, is_active=True)
    cluster.append(5)
    cluster.fetch(2, 15)
    assert cluster.leader.high_watermark == 15, "the process that fetched is not the one that is registered"
    cluster.fetch(3, 12, broker_epoch=104)
    cluster.append(5)
    cluster.fetch(2, 20)
    assert cluster.leader.high_watermark == 15
    cluster.now_ms += LAG_MS + 1
    cluster.fetch(2, 20)
    assert cluster.leader.tick(cluster.now_ms) & MOVED
    assert cluster.leader.high_watermark == 20


def test_a_new_leader_has_not_reached_its_epoch_until_all_before_it_is_committed() -> None:
    cluster = Cluster(log=Log(20), high_watermark=7)
    assert not cluster.leader.has_reached_its_epoch
    cluster.fetch(2, 20)
    cluster.fetch(3, 20)
    assert cluster.leader.has_reached_its_epoch


def test_the_high_watermark_it_starts_with_lies_in_the_log() -> None:
    assert Cluster(log=Log(20), high_watermark=99).leader.high_watermark == 20
    assert Cluster(log=Log(20, start=5), high_watermark=0).leader.high_watermark == 5


def test_fetches_of_an_earlier_leader_epoch_do_not_count() -> None:
    cluster = Cluster()
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.image(1, 2, 3, leader_epoch=7)
    cluster.fetch(3, 10)
    assert cluster.leader.high_watermark == 0
    assert cluster.leader.epoch_start == 10
    cluster.fetch(2, 10)
    assert cluster.leader.high_watermark == 10


def test_a_fetch_may_move_the_watermark_and_propose_an_isr() -> None:
    assert (MOVED | PROPOSES | AGAIN).bit_count() == 3
    cluster = Cluster((1, 2))
    cluster.append(10)
    cluster.fetch(2, 10)
    assert cluster.fetch(3, 10)[1] == PROPOSES
    cluster.append(5)
    cluster.fetch(2, 15)
    assert cluster.fetch(3, 15)[1] == MOVED


# -- fetches


def heard(cluster: Cluster, offset: int = 10) -> tuple[ReplicaSession, ReplicaSession]:
    """The session by which broker 3 fetched last, and another one of it."""
    one, other = ReplicaSession(cluster.now_ms), ReplicaSession(cluster.now_ms)
    cluster.append(20)
    cluster.fetch(3, offset, session=one)
    return one, other


def test_an_abandoned_fetch_session_does_not_count_as_progress() -> None:
    cluster = Cluster()
    one, other = heard(cluster)
    counts = cluster.leader.counts
    assert counts(cluster.asks(3, 10), one, is_named=False)
    assert counts(cluster.asks(3, 4), one, is_named=True), "it may well begin anew"
    assert not counts(cluster.asks(3, 10), other, is_named=False), "it repeats what it said long ago"
    assert not counts(cluster.asks(3, 9), other, is_named=True), "less than is known of the same process"
    assert counts(cluster.asks(3, 10), other, is_named=True)
    assert counts(cluster.asks(3, 4, broker_epoch=104), other, is_named=True), "of a newer process"
    assert not counts(cluster.asks(3, 4, broker_epoch=102), other, is_named=True)
    assert counts(cluster.asks(3, 4), None, is_named=False), "it has no session"
    assert counts(cluster.asks(2, 0), other, is_named=False), "nobody was heard of it"
    assert counts(cluster.asks(9, 0), other, is_named=False), "a stranger"


def test_a_session_that_is_silent_for_half_the_lag_time_is_followed_by_another() -> None:
    cluster = Cluster()
    one, other = heard(cluster)
    assert not cluster.leader.is_left_to(3, one)
    assert not cluster.leader.is_left_to(9, other)
    other.last_fetch_ms = one.last_fetch_ms + 15_000
    assert not cluster.leader.is_left_to(3, other)
    assert not cluster.leader.counts(cluster.asks(3, 4), other, is_named=False)
    other.last_fetch_ms += 1
    assert cluster.leader.is_left_to(3, other)
    assert cluster.leader.counts(cluster.asks(3, 4), other, is_named=False)
    cluster.leader.detach(3, other)
    other.last_fetch_ms = one.last_fetch_ms
    assert not cluster.leader.is_left_to(3, other), "it is not its to end"
    cluster.leader.detach(3, one)
    assert cluster.leader.is_left_to(3, other)


def test_after_a_proposal_that_may_be_decided_yet_a_node_waits_two_seconds() -> None:
    cluster = Cluster((1, 2))
    cluster.leader._settings = LeaderSettings(LAG_MS)
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 10)
    proposal = cluster.leader.proposal
    assert proposal is not None
    lost_ms = cluster.now_ms
    assert cluster.leader.answered(proposal.number, Unknown(), lost_ms, lost_ms) == AGAIN
    refused = ErrorCode.ineligible_replica
    assert cluster.leader.answered(proposal.number, refused, lost_ms + 1_999, lost_ms + 1_999) == AGAIN
    assert cluster.leader.proposal is proposal
    assert not cluster.leader.answered(proposal.number, refused, lost_ms + 2_000, lost_ms + 2_000) & AGAIN
    assert cluster.leader.proposal is not proposal


def test_a_refused_fetch_makes_no_progress() -> None:
    cluster = Cluster()
    cluster.append(10)
    cases = {
        cluster.asks(2, 10)._replace(leader_epoch=4): ErrorCode.fenced_leader_epoch,
        cluster.asks(2, 10)._replace(leader_epoch=6): ErrorCode.unknown_leader_epoch,
        cluster.asks(9, 10): ErrorCode.unknown_leader_epoch,
        cluster.asks(9, 10)._replace(leader_epoch=-1): ErrorCode.not_leader_or_follower,
        cluster.asks(2, 11): ErrorCode.offset_out_of_range,
        cluster.asks(2, 10, last_epoch=9): ErrorCode.offset_out_of_range,
        cluster.asks(2, 10, broker_epoch=101): ErrorCode.not_leader_or_follower,
    }
    for asked, error in cases.items():
        verdict, happened = cluster.leader.fetched(asked, None, cluster.now_ms)
        assert (verdict.error, happened) == (error, NOTHING), asked
    follower = cluster.leader.follower(2)
    assert follower is not None
    assert follower.end_offset == -1


def test_progress_is_not_taken_from_a_log_that_has_parted_nor_from_a_look() -> None:
    cluster = Cluster(log=Log(10, ((1, 0), (3, 6))))
    verdict, happened = cluster.leader.fetched(cluster.asks(2, 10, last_epoch=2), None, cluster.now_ms)
    assert (verdict.diverging, happened) == ((1, 6), NOTHING)
    assert cluster.leader.judge(cluster.asks(2, 10)).error is ErrorCode.none
    follower = cluster.leader.follower(2)
    assert follower is not None
    assert follower.end_offset == -1


def test_a_fetch_of_a_newer_broker_epoch_counts() -> None:
    cluster = Cluster((1, 2))
    cluster.append(10)
    verdict, happened = cluster.fetch(3, 10, broker_epoch=200)
    assert verdict.error is ErrorCode.none
    assert not happened & PROPOSES, "it joins when the image knows it"
    cluster.brokers[3] = BrokerStatus(200, is_active=True)
    assert cluster.leader.reevaluate(cluster.now_ms) & PROPOSES


def test_the_low_watermark_ignores_fenced_replicas() -> None:
    cluster = Cluster(log=Log(20, start=9))
    assert cluster.leader.low_watermark() == -1
    for replica, start in ((2, 4), (3, 6)):
        asked = cluster.asks(replica, 20)._replace(start_offset=start)
        cluster.leader.fetched(asked, None, cluster.now_ms)
    assert cluster.leader.low_watermark() == 4
    cluster.brokers[2] = BrokerStatus(102, is_active=False)
    assert cluster.leader.low_watermark() == 4, "it is shutting down"
    cluster.brokers[2] = BrokerStatus(102, is_active=False, is_fenced=True)
    assert cluster.leader.low_watermark() == 6


# -- the in-sync replicas


def test_a_replica_at_the_high_watermark_and_epoch_start_joins_the_isr() -> None:
    cluster = Cluster((1, 2), log=Log(20), high_watermark=7)
    assert not cluster.fetch(3, 19)[1] & PROPOSES
    assert cluster.fetch(3, 20)[1] & PROPOSES
    proposal = cluster.leader.proposal
    assert proposal is not None
    assert proposal.isr == (IsrMember(1, 101), IsrMember(2, -1), IsrMember(3, 103))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 50)


@pytest.mark.parametrize(
    "known", [None, BrokerStatus(103, is_active=False), BrokerStatus(104, is_active=True)]
)
def test_a_fenced_or_replaced_broker_does_not_join_the_isr(known: BrokerStatus | None) -> None:
    cluster = Cluster((1, 2))
    if known is None:
        del cluster.brokers[3]
    else:
        cluster.brokers[3] = known
    cluster.fetch(3, 0, broker_epoch=-1 if known is None or not known.is_active else 105)
    assert cluster.leader.proposal is None


def test_a_lagging_replica_leaves_the_isr_and_a_caught_up_one_stays() -> None:
    cluster = Cluster()
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 9)
    cluster.now_ms += LAG_MS
    assert cluster.leader.tick(cluster.now_ms) == NOTHING
    cluster.now_ms += 1
    assert cluster.leader.tick(cluster.now_ms) == PROPOSES
    assert cluster.leader.proposal is not None
    assert [one.broker_id for one in cluster.leader.proposal.isr] == [1, 2]


def test_idle_fetches_of_its_session_keep_a_follower_in_sync() -> None:
    cluster, session = Cluster((1, 2), (1, 2)), ReplicaSession()
    cluster.append(10)
    cluster.fetch(2, 10, session=session)
    for _ in range(10):
        cluster.now_ms += LAG_MS // 2
        session.last_fetch_ms = cluster.now_ms
    cluster.append(5)
    cluster.now_ms += LAG_MS
    assert cluster.leader.tick(cluster.now_ms) == NOTHING
    cluster.now_ms += 1
    assert cluster.leader.tick(cluster.now_ms) == PROPOSES


def test_a_session_that_ended_confirms_nothing() -> None:
    cluster, session = Cluster((1, 2), (1, 2)), ReplicaSession()
    cluster.append(10)
    cluster.fetch(2, 10, session=session)
    cluster.leader.detach(2, session)
    session.last_fetch_ms = cluster.now_ms + LAG_MS
    cluster.append(5)
    cluster.now_ms += LAG_MS + 1
    assert cluster.leader.tick(cluster.now_ms) == PROPOSES


def test_a_replica_that_left_the_isr_must_fetch_before_it_rejoins() -> None:
    cluster = Cluster(min_isr=1)
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 5)
    cluster.now_ms += LAG_MS + 1
    cluster.fetch(2, 10)
    assert cluster.leader.tick(cluster.now_ms) == PROPOSES
    assert cluster.image(1, 2) == MOVED
    assert cluster.leader.high_watermark == 10
    assert cluster.fetch(3, 9)[1] == NOTHING
    assert cluster.fetch(3, 10)[1] == PROPOSES


def test_a_replica_removed_by_the_controller_does_not_hold_the_watermark() -> None:
    """It lives, and its disk has no room: the controller took it out, and it asks for nothing more."""
    cluster = Cluster()
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 10)
    assert cluster.image(1, 2) == NOTHING, "it is not proposed either"
    cluster.append(5)
    assert cluster.fetch(2, 15)[1] == MOVED
    assert cluster.leader.high_watermark == 15
    assert cluster.fetch(3, 10)[1] == NOTHING
    cluster.append(5)
    assert cluster.fetch(2, 20)[1] == MOVED, "it has to reach the high watermark first"
    assert cluster.fetch(3, 20)[1] == PROPOSES
    assert cluster.image(1, 2, 3) == NOTHING
    cluster.append(5)
    assert cluster.fetch(2, 25)[1] == NOTHING


def test_a_refused_and_silent_replica_does_not_hold_the_watermark() -> None:
    cluster, number = pending()
    cluster.now_ms -= LAG_MS
    refusal = ErrorCode.ineligible_replica
    assert cluster.leader.answered(number, refusal, cluster.now_ms, cluster.now_ms) == MOVED
    assert cluster.leader.high_watermark == 15
    assert cluster.leader.tick(cluster.now_ms) == NOTHING


def test_a_refused_replica_is_proposed_again_once_its_session_fetches() -> None:
    """For this partition it has nothing to ask."""
    cluster, session = Cluster((1, 2)), ReplicaSession(NOW_MS)
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 10, session=session)
    proposal = cluster.leader.proposal
    assert proposal is not None
    refusal = ErrorCode.ineligible_replica
    assert cluster.leader.answered(proposal.number, refusal, cluster.now_ms, cluster.now_ms) == NOTHING
    assert cluster.leader.tick(cluster.now_ms) == NOTHING
    session.last_fetch_ms = NOW_MS + 500
    cluster.now_ms = NOW_MS + 600
    assert cluster.leader.tick(cluster.now_ms) == PROPOSES


def test_one_isr_proposal_is_pending_and_both_isrs_count() -> None:
    cluster = Cluster((1, 2), (1, 2, 3, 4))
    cluster.append(10)
    cluster.fetch(2, 10)
    assert cluster.fetch(3, 10)[1] & PROPOSES
    assert not cluster.fetch(4, 10)[1] & PROPOSES
    assert cluster.leader.counted == {1, 2, 3}
    cluster.append(5)
    cluster.fetch(2, 15)
    cluster.fetch(4, 15)
    cluster.now_ms += LAG_MS + 1
    assert not cluster.leader.tick(cluster.now_ms) & PROPOSES
    assert cluster.leader.high_watermark == 10
    assert cluster.image(1, 2) & MOVED, "the image is without 3: only the old set counts"
    assert cluster.leader.high_watermark == 15


def test_min_isr_counts_the_old_set_while_a_proposal_is_pending() -> None:
    cluster = Cluster((1,))
    assert cluster.fetch(2, 0)[1] & PROPOSES
    assert cluster.leader.check_replicas() is ErrorCode.not_enough_replicas
    assert cluster.leader.is_under_min_isr
    cluster.image(1, 2)
    assert cluster.leader.check_replicas() is ErrorCode.none


def test_a_leaving_replica_holds_the_watermark_until_the_image_changes() -> None:
    cluster = Cluster(min_isr=1)
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.now_ms += LAG_MS + 1
    cluster.fetch(2, 10)
    assert cluster.leader.tick(cluster.now_ms) == PROPOSES
    proposal = cluster.leader.proposal
    assert proposal is not None
    assert cluster.leader.answered(proposal.number, Accepted(5, 51), 0, cluster.now_ms) == NOTHING
    assert cluster.leader.high_watermark == 0
    assert cluster.image(1, 2) & MOVED


def pending() -> tuple[Cluster, int]:
    cluster = Cluster((1, 2))
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 10)
    cluster.append(5)
    cluster.fetch(2, 15)
    proposal = cluster.leader.proposal
    assert proposal is not None
    cluster.now_ms += LAG_MS + 1
    return cluster, proposal.number


@pytest.mark.parametrize("error", [ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted])
def test_a_definite_refusal_restores_the_old_isr(error: ErrorCode) -> None:
    cluster, number = pending()
    assert cluster.leader.answered(number, error, cluster.now_ms, cluster.now_ms) == MOVED
    assert cluster.leader.proposal is None
    assert cluster.leader.high_watermark == 15


@pytest.mark.parametrize(
    ("outcome", "happened"),
    [
        (ErrorCode.unknown_topic_or_partition, NOTHING),
        (ErrorCode.unknown_topic_id, NOTHING),
        (ErrorCode.fenced_leader_epoch, NOTHING),
        (ErrorCode.invalid_update_version, NOTHING),
        (ErrorCode.invalid_request, NOTHING),
        (ErrorCode.new_leader_elected, NOTHING),
        (ErrorCode.not_controller, AGAIN),
        (ErrorCode.unknown_server_error, AGAIN),
        (Unknown(), AGAIN),
        (Accepted(5, 51), NOTHING),
        (Accepted(5, 50), AGAIN),
    ],
)
def test_after_all_else_the_proposal_stands(outcome: Outcome, happened: int) -> None:
    cluster, number = pending()
    assert cluster.leader.answered(number, outcome, cluster.now_ms, cluster.now_ms) == happened
    assert cluster.leader.counted == {1, 2, 3}
    assert cluster.leader.high_watermark == 10


def test_a_refusal_restores_nothing_while_an_earlier_copy_may_be_on_its_way() -> None:
    cluster, number = pending()
    leader, began = cluster.leader, cluster.now_ms
    assert leader.answered(number, Unknown(), began - 500, began) == AGAIN
    refusal = ErrorCode.ineligible_replica
    assert leader.answered(number, refusal, began + 100, began + 200) == AGAIN
    assert leader.counted == {1, 2, 3}
    assert leader.answered(number, refusal, began + SETTLE_MS, began + SETTLE_MS) == MOVED
    assert leader.counted == {1, 2}


def test_answers_to_withdrawn_proposals_are_ignored() -> None:
    cluster, number = pending()
    cluster.image(1, 2)
    again = cluster.leader.proposal
    assert cluster.leader.answered(number, ErrorCode.ineligible_replica, 0, 0) == NOTHING
    assert cluster.leader.proposal is again


def test_an_image_that_is_not_newer_says_nothing() -> None:
    cluster, _ = pending()
    shape = cluster.leader.shape
    assert cluster.leader.image(shape, cluster.now_ms) == NOTHING
    assert cluster.leader.image(shape._replace(partition_epoch=49, isr=(1,)), cluster.now_ms) == NOTHING
    assert cluster.leader.counted == {1, 2, 3}


def test_replicas_that_are_added_and_removed() -> None:
    cluster = Cluster((1, 2), (1, 2))
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.brokers[4] = BrokerStatus(104, is_active=True)
    cluster.image(1, 2, replicas=(1, 2, 4))
    assert [one.broker_id for one in cluster.leader.followers] == [2, 4]
    assert cluster.leader.followers[0].end_offset == 10
    assert cluster.fetch(4, 10)[1] & PROPOSES
    cluster.image(1, 4, replicas=(1, 4))
    assert cluster.fetch(2, 10)[0].error is ErrorCode.unknown_leader_epoch


# -- acks=all


def test_waiters_complete_in_offset_order() -> None:
    cluster = Cluster()
    cluster.append(10)
    cluster.leader.wait("later", 10)
    cluster.leader.wait("first", 5)
    cluster.fetch(2, 10)
    cluster.fetch(3, 5)
    assert [one.key for one in cluster.leader.passed()[0]] == ["first"]
    cluster.fetch(3, 10)
    passed, error = cluster.leader.passed()
    assert ([one.key for one in passed], error) == (["later"], ErrorCode.none)
    assert cluster.leader.wait("a duplicate", 10) is ErrorCode.none


def test_a_raised_min_isr_is_reported_after_the_append() -> None:
    cluster = Cluster((1, 2))
    cluster.append(10)
    waiter = cluster.leader.wait("one", 10)
    assert isinstance(waiter, Waiter)
    cluster.fetch(2, 10)
    cluster.leader.configure(3, cluster.now_ms)
    passed, error = cluster.leader.passed()
    assert (passed, error) == ([waiter], ErrorCode.not_enough_replicas_after_append)
    assert cluster.leader.wait("two", 10) is ErrorCode.not_enough_replicas_after_append


def test_a_waiter_that_gave_up_is_not_completed_and_a_completed_one_cannot_give_up() -> None:
    cluster = Cluster((1,), (1,), min_isr=1)
    cluster.log.log_end_offset = 5
    late, told = cluster.leader.wait("late", 5), cluster.leader.wait("told", 5)
    assert isinstance(late, Waiter)
    assert isinstance(told, Waiter)
    assert cluster.leader.give_up(late)
    cluster.leader.appended(cluster.now_ms)
    assert cluster.leader.passed()[0] == [told]
    assert not cluster.leader.give_up(told)
    assert not cluster.leader.give_up(late)


def test_a_deposed_leader_fails_all_waiters() -> None:
    cluster = Cluster()
    cluster.append(10)
    assert cluster.leader.deposed() == []
    waiters = [cluster.leader.wait(n, n) for n in (3, 1, 2)]
    assert [one.key for one in cluster.leader.deposed()] == [1, 2, 3]
    assert all(isinstance(one, Waiter) and one.is_over for one in waiters)
