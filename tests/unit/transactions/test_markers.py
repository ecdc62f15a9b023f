"""Markers of decided transactions: who is asked, what is asked again, and when a transaction is complete."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.transactions.marker_requests import (
    Disconnect,
    MarkerEffect,
    MarkerRefused,
    MarkersOfTransaction,
    MarkersWritten,
    PreparedTransaction,
    SendMarkers,
)
from service.transactions.markers import TransactionMarkers

PAY, BUY = "pay", "buy"


def prepared(
    transactional_id: str = PAY,
    *partitions: tuple[str, int],
    producer_id: int = 7,
    epoch: int = 3,
    coordinator_epoch: int = 1,
    is_commit: bool = True,
) -> PreparedTransaction:
    return PreparedTransaction(
        transactional_id, producer_id, epoch, coordinator_epoch, is_commit, 2, frozenset(partitions)
    )


class Cluster:
    """Leaders of partitions, and a machine that sees them."""

    def __init__(self, **leaders: int | None) -> None:
        self.leaders: dict[tuple[str, int], int | None] = {
            (name[:-1], int(name[-1])): leader for name, leader in leaders.items()
        }
        self.machine = TransactionMarkers(lambda topic, index: self.leaders.get((topic, index)))
        self.now_ms = 1_000

    def begin(self, *transactions: PreparedTransaction, shard: int = 0) -> list[MarkerEffect]:
        for transaction in transactions:
            self.machine.prepared(shard, transaction, self.now_ms)
        return self.work()

    def work(self) -> list[MarkerEffect]:
        effects: list[MarkerEffect] = []
        while self.machine.has_work:
            effects += self.machine.advance(self.now_ms)
        return effects

    def answer(self, broker: int, *results: tuple[int, str, int, ErrorCode]) -> list[MarkerEffect]:
        self.machine.answered(broker, results, self.now_ms)
        return self.work()

    def lose(self, broker: int) -> list[MarkerEffect]:
        self.machine.lost(broker, self.now_ms)
        return self.work()

    def move(self, topic: str, index: int, leader: int | None) -> list[MarkerEffect]:
        self.leaders[topic, index] = leader
        self.machine.image_changed([topic])
        return self.work()

    def wait(self, ms: int) -> list[MarkerEffect]:
        self.now_ms += ms
        due_ms = self.machine.due_ms
        return self.machine.advance(self.now_ms) if due_ms is not None and due_ms <= self.now_ms else []


def sent(broker: int, *topics: tuple[str, tuple[int, ...]]) -> SendMarkers:
    return SendMarkers(broker, (MarkersOfTransaction(7, 3, 1, True, 2, topics),))


def test_each_broker_gets_one_request_with_the_markers_of_all_transactions() -> None:
    cluster = Cluster(a0=1, a1=2, b0=1)
    effects = cluster.begin(
        prepared(PAY, ("a", 0), ("a", 1), ("b", 0)), prepared(BUY, ("a", 0), producer_id=8, is_commit=False)
    )
    pay, buy = (
        MarkersOfTransaction(7, 3, 1, True, 2, (("a", (0,)), ("b", (0,)))),
        MarkersOfTransaction(8, 3, 1, False, 2, (("a", (0,)),)),
    )
    assert effects == [
        SendMarkers(1, (pay, buy)),
        sent(2, ("a", (1,))),
    ]


def test_a_second_request_waits_for_the_answer_to_the_first() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    assert cluster.begin(prepared(BUY, ("a", 0), producer_id=8)) == []
    done, following = cluster.answer(1, (7, "a", 0, ErrorCode.none))
    assert done == MarkersWritten(0, prepared(PAY, ("a", 0)))
    assert isinstance(following, SendMarkers)
    assert [one.producer_id for one in following.markers] == [8]


def test_a_transaction_is_complete_when_its_last_broker_has_answered() -> None:
    cluster = Cluster(a0=1, b0=2)
    transaction = prepared(PAY, ("a", 0), ("b", 0))
    cluster.begin(transaction)
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == []
    assert cluster.answer(2, (7, "b", 0, ErrorCode.none)) == [MarkersWritten(0, transaction)]
    assert cluster.machine.transactions == 0


def test_a_transaction_without_partitions_is_complete_at_once() -> None:
    cluster = Cluster()
    assert cluster.begin(prepared(PAY)) == [MarkersWritten(0, prepared(PAY))]


def test_a_refusal_that_passes_is_asked_again_after_100_ms_then_200_up_to_a_second() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    for pause_ms in (100, 200, 400, 800, 1000, 1000):
        assert cluster.answer(1, (7, "a", 0, ErrorCode.not_enough_replicas)) == []
        assert cluster.wait(pause_ms - 1) == []
        assert cluster.wait(1) == [sent(1, ("a", (0,)))]


def test_an_answer_that_lacks_a_marker_counts_as_a_refusal() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    assert cluster.answer(1, (8, "a", 0, ErrorCode.none), (7, "a", 1, ErrorCode.none)) == []
    assert cluster.wait(100) == [sent(1, ("a", (0,)))]


def test_a_lost_request_is_sent_again() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    assert cluster.lose(1) == []
    assert cluster.wait(100) == [sent(1, ("a", (0,)))]
    cluster.lose(1)
    assert cluster.wait(100) == []
    assert cluster.wait(100) == [sent(1, ("a", (0,)))]


def test_a_refusal_goes_at_once_to_the_leader_that_the_image_names_by_now() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    assert cluster.move("a", 0, 2) == [Disconnect(1)]
    assert cluster.answer(1, (7, "a", 0, ErrorCode.not_leader_or_follower)) == [sent(2, ("a", (0,)))]


def test_a_resting_marker_goes_at_once_to_a_new_leader() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    cluster.answer(1, (7, "a", 0, ErrorCode.not_leader_or_follower))
    assert cluster.move("a", 0, 1) == []
    assert cluster.move("a", 0, 2) == [sent(2, ("a", (0,)))]


def test_a_marker_behind_a_request_goes_at_once_to_a_new_leader() -> None:
    cluster = Cluster(a0=1, b0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    cluster.begin(prepared(BUY, ("b", 0), producer_id=8))
    [moved] = cluster.move("b", 0, 2)
    assert isinstance(moved, SendMarkers)
    assert (moved.broker, moved.markers[0].producer_id) == (2, 8)


def test_a_request_to_a_broker_that_still_leads_something_is_not_cut() -> None:
    cluster = Cluster(a0=1, b0=1)
    cluster.begin(prepared(PAY, ("a", 0), ("b", 0)))
    assert cluster.move("a", 0, 2) == []
    assert cluster.move("b", 0, 2) == [Disconnect(1)]
    assert cluster.move("b", 0, 3) == []


def test_markers_without_a_leader_wait_for_one() -> None:
    cluster = Cluster(a0=-1)
    assert cluster.begin(prepared(PAY, ("a", 0))) == []
    assert cluster.machine.without_leader == 1
    assert cluster.wait(999) == []
    assert cluster.move("a", 0, 2) == [sent(2, ("a", (0,)))]
    assert cluster.machine.without_leader == 0


def test_a_partition_that_is_not_in_the_image_is_done() -> None:
    cluster = Cluster(a0=1)
    transaction = prepared(PAY, ("a", 0), ("gone", 0))
    assert cluster.begin(transaction) == [sent(1, ("a", (0,)))]
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == [MarkersWritten(0, transaction)]


def test_a_topic_that_is_deleted_meanwhile_is_done() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    cluster.answer(1, (7, "a", 0, ErrorCode.unknown_topic_or_partition))
    assert cluster.move("a", 0, None) == [MarkersWritten(0, prepared(PAY, ("a", 0)))]


def test_a_refused_producer_epoch_counts_as_done_and_is_told() -> None:
    cluster = Cluster(a0=1)
    transaction = prepared(PAY, ("a", 0))
    cluster.begin(transaction)
    assert cluster.answer(1, (7, "a", 0, ErrorCode.invalid_producer_epoch)) == [
        MarkerRefused(transaction, "a", 0, ErrorCode.invalid_producer_epoch),
        MarkersWritten(0, transaction),
    ]
    assert cluster.machine.metrics.refused == 1


def test_a_fenced_coordinator_sends_nothing_more_and_waits_for_its_deposition() -> None:
    cluster = Cluster(a0=1, b0=2)
    transaction = prepared(PAY, ("a", 0), ("b", 0))
    cluster.begin(transaction)
    [told] = cluster.answer(1, (7, "a", 0, ErrorCode.transaction_coordinator_fenced))
    assert told == MarkerRefused(transaction, "a", 0, ErrorCode.transaction_coordinator_fenced)
    assert cluster.answer(2, (7, "b", 0, ErrorCode.not_enough_replicas)) == []
    assert cluster.machine.due_ms is None
    assert cluster.machine.transactions == 1
    cluster.machine.deposed(0)
    assert cluster.machine.transactions == 0


def test_nothing_is_sent_or_completed_after_a_deposition() -> None:
    cluster = Cluster(a0=1, b0=2, c0=1)
    cluster.begin(prepared(PAY, ("a", 0), ("b", 0)))
    cluster.begin(prepared(BUY, ("c", 0), producer_id=8))
    cluster.machine.deposed(0)
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == []
    assert cluster.lose(2) == []
    assert cluster.wait(5_000) == []


def test_the_next_coordinator_of_the_same_node_sends_all_markers_with_its_own_epoch() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    cluster.machine.deposed(0)
    again = prepared(PAY, ("a", 0), coordinator_epoch=2)
    assert cluster.begin(again) == []
    [request] = cluster.answer(1, (7, "a", 0, ErrorCode.none))
    assert isinstance(request, SendMarkers)
    assert request.markers[0].coordinator_epoch == 2
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == [MarkersWritten(0, again)]


def test_another_partition_of_the_log_is_not_deposed_with_one() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)), shard=0)
    cluster.machine.deposed(1)
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == [MarkersWritten(0, prepared(PAY, ("a", 0)))]


def test_a_completion_that_fails_is_told_again() -> None:
    cluster = Cluster()
    transaction = prepared(PAY)
    cluster.begin(transaction)
    cluster.machine.not_completed(0, transaction, cluster.now_ms)
    assert cluster.machine.completions_to_retry == 1
    assert cluster.wait(100) == [MarkersWritten(0, transaction)]
    cluster.machine.completed(0, PAY)
    assert cluster.machine.completions_to_retry == 0
    assert cluster.wait(5_000) == []


def test_a_completion_is_not_told_again_after_a_deposition() -> None:
    cluster = Cluster()
    transaction = prepared(PAY)
    cluster.begin(transaction)
    cluster.machine.deposed(0)
    cluster.machine.not_completed(0, transaction, cluster.now_ms)
    assert cluster.wait(5_000) == []


def test_a_request_has_a_thousand_markers_at_most() -> None:
    cluster = Cluster()
    cluster.leaders = {("a", index): 1 for index in range(10_000)}
    transaction = prepared(PAY, *cluster.leaders)
    effects, asked = cluster.begin(transaction), 0
    while effects and isinstance(effects[0], SendMarkers):
        [request] = effects
        assert isinstance(request, SendMarkers)
        indexes = [index for _, some in request.markers[0].topics for index in some]
        assert 0 < len(indexes) <= 1_000
        asked += len(indexes)
        effects = cluster.answer(1, *((7, "a", index, ErrorCode.none) for index in indexes))
    assert effects == [MarkersWritten(0, transaction)]
    assert asked == 10_000


def test_a_request_has_256_kib_at_most() -> None:
    cluster = Cluster()
    cluster.leaders = {("t" * 240 + str(number), 0): 1 for number in range(1_500)}
    [request] = cluster.begin(prepared(PAY, *cluster.leaders))
    assert isinstance(request, SendMarkers)
    assert sum(len(topic) for topic, _ in request.markers[0].topics) < 256 << 10


def test_one_call_routes_a_bounded_number_of_partitions() -> None:
    asked = []
    machine = TransactionMarkers(lambda topic, index: asked.append(index))
    machine.prepared(0, prepared(PAY, *(("a", index) for index in range(5_000))), 0)
    machine.advance(0)
    assert len(asked) == 1_000
    assert machine.has_work


def test_one_call_looks_at_a_bounded_number_of_markers_whose_leaders_have_changed() -> None:
    leader, looked = 1, 0

    def leader_of(topic: str, index: int) -> int:
        nonlocal looked
        looked += 1
        return leader

    machine = TransactionMarkers(leader_of)
    places = [(topic, index) for topic in "abc" for index in range(2000)]
    machine.prepared(0, prepared(PAY, *places), 0)
    while machine.has_work:
        machine.advance(0)
    leader, looked = 2, 0
    machine.image_changed(None)
    assert looked <= 1000
    sent_to: dict[int, int] = {}
    while machine.has_work:
        looked = 0
        for effect in machine.advance(0):
            if isinstance(effect, SendMarkers):
                sent_to[effect.broker] = sent_to.get(effect.broker, 0) + 1
        assert looked <= 2000
    assert (sent_to, machine.waiting) == ({2: 1}, 6000)
    machine.answered(2, [], 0)
    machine.lost(1, 0)
    assert {one.broker for one in machine.advance(0) if isinstance(one, SendMarkers)} == {2}


def test_a_transaction_that_is_told_again_replaces_the_earlier_one() -> None:
    cluster = Cluster(a0=1)
    cluster.begin(prepared(PAY, ("a", 0)))
    later = prepared(PAY, ("a", 0), epoch=4)
    cluster.begin(later)
    [request] = cluster.answer(1, (7, "a", 0, ErrorCode.none))
    assert isinstance(request, SendMarkers)
    assert request.markers[0].producer_epoch == 4
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == [MarkersWritten(0, later)]


def test_an_answer_to_nothing_changes_nothing() -> None:
    cluster = Cluster(a0=1)
    assert cluster.answer(1, (7, "a", 0, ErrorCode.none)) == []
    assert cluster.lose(5) == []
