"""One AlterPartition request of a broker at a time, and the results of its proposals."""

from __future__ import annotations

from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.replication.alter_partition_queue import (
    AlterPartitionQueue,
    ProposalRequest,
    ProposalResponse,
    ProposalResult,
    ProposalSettings,
)
from service.replication.leader import MOVED, Accepted, LeaderState
from tests.unit.replication.leaders import LAG_MS, NOW_MS, SETTLE_MS, Cluster

NONE = ErrorCode.none


def tip(number: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number + 1), f"t{number}", 0)


class Broker:
    """Leaders whose broker 3 wants to join; what lies beyond the high watermark waits for it."""

    def __init__(self, count: int) -> None:
        self.now_ms = NOW_MS
        self.clusters = {tip(number): self._pending() for number in range(count)}
        self.machine = AlterPartitionQueue(self.leader_of, ProposalSettings(50, 200))
        for one in self.clusters:
            self.machine.propose(one)

    def leader_of(self, one: TopicIdPartition) -> LeaderState | None:
        return self.clusters[one].leader if one in self.clusters else None

    def _pending(self) -> Cluster:
        cluster = Cluster((1, 2))
        cluster.append(10)
        cluster.fetch(2, 10)
        cluster.fetch(3, 10)
        cluster.append(5)
        cluster.fetch(2, 15)
        self.now_ms = max(self.now_ms, cluster.now_ms + LAG_MS + 1)
        return cluster

    def request(self) -> ProposalRequest:
        request = self.machine.next_request(self.now_ms)
        assert request is not None
        return request


def test_all_proposals_go_in_one_request() -> None:
    broker = Broker(3)
    request = broker.request()
    assert [one for one, _ in request.proposals] == [tip(0), tip(1), tip(2)]
    assert broker.machine.next_request(broker.now_ms) is None
    assert broker.machine.next_deadline_ms() is None


def test_proposals_made_during_a_request_go_with_the_next() -> None:
    broker = Broker(1)
    request = broker.request()
    broker.clusters[tip(1)] = broker._pending()
    broker.machine.propose(tip(1))
    assert broker.machine.next_request(broker.now_ms) is None
    outcomes = {tip(0): Accepted(5, 51)}
    assert broker.machine.answered(request.number, ProposalResponse(NONE, outcomes), broker.now_ms) == []
    assert [one for one, _ in broker.request().proposals] == [tip(1)]


def test_each_leader_gets_the_result_of_its_proposal() -> None:
    broker = Broker(3)
    request = broker.request()
    outcomes = {tip(0): ErrorCode.ineligible_replica, tip(1): ErrorCode.invalid_update_version}
    happened = broker.machine.answered(request.number, ProposalResponse(NONE, outcomes), broker.now_ms)
    assert happened == [ProposalResult(tip(0), MOVED)]
    assert broker.clusters[tip(0)].leader.proposal is None
    assert broker.clusters[tip(1)].leader.proposal is not None
    assert broker.machine.next_request(broker.now_ms) is None
    assert broker.machine.next_deadline_ms() == broker.now_ms + 200
    broker.now_ms += 200
    assert [one for one, _ in broker.request().proposals] == [tip(2)], "it was left out of the answer"


def test_an_ambiguous_proposal_is_retried_before_it_is_withdrawn() -> None:
    broker = Broker(1)
    lost = broker.request()
    assert broker.machine.failed(lost.number, broker.now_ms, was_sent=True) == []
    assert broker.machine.next_request(broker.now_ms) is None
    broker.now_ms += 200
    refusal = ProposalResponse(NONE, {tip(0): ErrorCode.ineligible_replica})
    assert broker.machine.answered(broker.request().number, refusal, broker.now_ms) == []
    assert broker.clusters[tip(0)].leader.proposal is not None
    broker.now_ms += SETTLE_MS
    assert broker.machine.answered(lost.number, refusal, broker.now_ms) == [], "the answer that was lost"
    happened = broker.machine.answered(broker.request().number, refusal, broker.now_ms)
    assert happened == [ProposalResult(tip(0), MOVED)]


def test_an_unsent_or_stale_request_is_repeated_without_ambiguity() -> None:
    for is_stale in (True, False):
        broker = Broker(2)
        request = broker.request()
        if is_stale:
            broker.machine.answered(
                request.number, ProposalResponse(ErrorCode.stale_broker_epoch, {}), broker.now_ms
            )
        else:
            broker.machine.failed(request.number, broker.now_ms, was_sent=False)
        assert broker.machine.next_request(broker.now_ms) is None
        assert broker.machine.next_deadline_ms() == broker.now_ms + 50
        broker.now_ms += 50
        request = broker.request()
        assert [one for one, _ in request.proposals] == [tip(0), tip(1)]
        refusal = ProposalResponse(NONE, dict.fromkeys(broker.clusters, ErrorCode.ineligible_replica))
        assert len(broker.machine.answered(request.number, refusal, broker.now_ms)) == 2


def test_a_controller_that_lost_its_office_may_have_decided() -> None:
    broker = Broker(1)
    broker.machine.answered(
        broker.request().number, ProposalResponse(ErrorCode.not_controller, {}), broker.now_ms
    )
    assert broker.machine.next_deadline_ms() == broker.now_ms + 200


def test_withdrawn_proposals_are_not_sent() -> None:
    broker = Broker(3)
    broker.clusters[tip(0)].image(1, 2, 3)
    del broker.clusters[tip(1)]
    assert [one for one, _ in broker.request().proposals] == [tip(2)]


def test_a_retry_is_not_made_of_what_was_proposed_since() -> None:
    broker = Broker(1)
    broker.machine.failed(broker.request().number, broker.now_ms, was_sent=True)
    broker.clusters[tip(0)].image(1, 2)
    assert broker.clusters[tip(0)].fetch(3, 15)[1]
    broker.now_ms += 200
    assert broker.machine.next_request(broker.now_ms) is None, "nobody has handed it in yet"
    broker.machine.propose(tip(0))
    assert broker.request().proposals[0][1].partition_epoch == 51


def test_a_request_has_a_thousand_proposals_at_most() -> None:
    broker = Broker(1_001)
    request = broker.request()
    assert len(request.proposals) == 1_000
    broker.machine.answered(request.number, ProposalResponse(NONE, {}), broker.now_ms)
    assert [one for one, _ in broker.request().proposals] == [tip(1_000)]


def test_a_request_is_retried_after_50_ms_or_200_if_ambiguous() -> None:
    broker = Broker(1)
    broker.machine = AlterPartitionQueue(broker.leader_of, ProposalSettings())
    broker.machine.propose(tip(0))
    broker.machine.failed(broker.request().number, broker.now_ms, was_sent=False)
    assert broker.machine.next_deadline_ms() == broker.now_ms + 50
    broker.now_ms += 49
    assert broker.machine.next_request(broker.now_ms) is None
    broker.now_ms += 1
    broker.machine.failed(broker.request().number, broker.now_ms, was_sent=True)
    assert broker.machine.next_deadline_ms() == broker.now_ms + 200
