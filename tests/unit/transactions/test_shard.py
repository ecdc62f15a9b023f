"""One transaction after the other, as its coordinator decides about it."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.transactions.ids import record_of
from service.transactions.metadata import TransactionMetadata
from service.transactions.requests import AddPartitions, TransactionalProducer
from tests.support.shards import Marker
from tests.support.transaction_shards import WAITS, TransactionLeader


def test_a_transaction_is_committed_once_its_markers_are_written() -> None:
    leader = TransactionLeader()
    assert leader.init("t") == (1000, 0)
    assert leader.add("t", (1000, 0), ("orders", 1)) is None
    assert leader.state("t") == ("Ongoing", 1000, 0)
    assert leader.end("t", (1000, 0)) == (-1, -1)
    assert leader.state("t") == ("PrepareCommit", 1000, 0)
    assert leader.told == [("t", 1000, 0, 5, True, 0, frozenset({("orders", 1)}))]
    leader.mark()
    assert leader.state("t") == ("CompleteCommit", 1000, 0)
    assert leader.init("t") == (1000, 1)
    assert leader.end("t", (1000, 0)) is ErrorCode.producer_fenced


def test_an_end_of_the_newest_protocol_raises_the_epoch() -> None:
    leader = TransactionLeader(transaction_version=2)
    leader.init("t")
    leader.add("t", (1000, 0), ("orders", 1), version=2)
    assert leader.end("t", (1000, 0), version=2) == (1000, 1)
    assert leader.told == [("t", 1000, 1, 5, True, 2, frozenset({("orders", 1)}))]
    leader.mark()
    assert leader.end("t", (1000, 0), version=2) == (1000, 1), "a repeat"
    assert leader.state("t") == ("CompleteCommit", 1000, 1)


def test_a_decision_that_is_not_committed_is_told_to_nobody() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.add("t", (1000, 0), ("orders", 1))
    leader.leader.lagging = True
    assert leader.end("t", (1000, 0)) == WAITS
    assert leader.told == []
    assert leader.end("t", (1000, 0)) is ErrorCode.concurrent_transactions
    leader.leader.commit()
    assert len(leader.told) == 1


def test_the_next_coordinator_carries_out_what_is_decided() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.add("t", (1000, 0), ("orders", 1))
    leader.end("t", (1000, 0), is_commit=False)
    leader.told.clear()
    leader.coordinator_epoch = 6
    leader.leader.reload()
    leader.leader.advance(0)
    assert leader.told == [("t", 1000, 0, 6, False, 0, frozenset({("orders", 1)}))]
    leader.mark()
    assert leader.state("t") == ("CompleteAbort", 1000, 0)


def test_a_transaction_that_is_open_for_too_long_is_fenced_and_aborted() -> None:
    leader = TransactionLeader()
    leader.init("t", timeout_ms=30_000)
    leader.add("t", (1000, 0), ("orders", 1))
    leader.leader.advance(30_000)
    assert leader.state("t") == ("Ongoing", 1000, 0)
    leader.leader.advance(10_001)
    assert leader.state("t") == ("PrepareAbort", 1000, 1)
    assert leader.end("t", (1000, 0)) is ErrorCode.producer_fenced
    assert [one[:3] for one in leader.told] == [("t", 1000, 1)]


def test_a_transaction_that_is_begun_after_a_load_times_out() -> None:
    leader = TransactionLeader()
    producer = leader.init("pay", timeout_ms=60_000)
    leader.add("pay", producer, ("a", 0))
    leader.end("pay", producer)
    leader.mark()
    leader.leader.advance(1_000)
    leader.leader.reload()
    leader.add("pay", producer, ("a", 1))
    leader.leader.advance(80_000)
    assert leader.state("pay")[0] == "PrepareAbort"


def test_a_timeout_is_positive_and_at_most_the_longest() -> None:
    leader = TransactionLeader()
    assert leader.init("t", timeout_ms=900_001) is ErrorCode.invalid_transaction_timeout
    assert leader.init("t", timeout_ms=0) is ErrorCode.invalid_transaction_timeout
    assert leader.init("t", timeout_ms=900_000) == (1000, 0)
    assert leader.init("u", timeout_ms=1) == (1001, 0)
    assert leader.init("") is ErrorCode.invalid_request


def test_adds_of_one_producer_meet() -> None:
    leader = TransactionLeader(transaction_version=2)
    leader.init("t")
    leader.leader.lagging = True
    assert leader.add("t", (1000, 0), ("a", 0), version=2) == WAITS
    assert leader.add("t", (1000, 0), ("a", 1), version=2) == WAITS
    assert leader.add("t", (1000, 0), ("a", 0), version=2) == WAITS, (
        "told when what it stands on is committed"
    )
    assert leader.add("t", (1000, 1), ("a", 0), version=2) is ErrorCode.concurrent_transactions
    assert leader.verify("t", (1000, 0), ("a", 0)) == {("a", 0): ErrorCode.transaction_abortable}
    leader.leader.commit()
    assert leader.verify("t", (1000, 0), ("a", 0), ("a", 1)) == {
        ("a", 0): ErrorCode.none,
        ("a", 1): ErrorCode.none,
    }
    assert len(leader.leader.log) == 3


def test_a_completion_that_cannot_be_written_is_tried_again() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.add("t", (1000, 0), ("orders", 1))
    leader.end("t", (1000, 0))
    leader.leader.failing = ErrorCode.coordinator_not_available
    leader.mark()
    assert leader.state("t") == ("PrepareCommit", 1000, 0)
    leader.leader.failing = None
    leader.leader.advance(500)
    assert leader.state("t") == ("CompleteCommit", 1000, 0)
    assert leader.told == []


def test_a_completion_that_is_tried_again_does_not_complete_the_next_transaction() -> None:
    """Whoever had the markers written asks again, too, and sooner; the next one has the same epoch."""
    leader = TransactionLeader()
    producer = leader.init("t")
    leader.add("t", producer, ("orders", 1))
    leader.end("t", producer)
    [first] = leader.told
    leader.leader.failing = ErrorCode.coordinator_not_available
    leader.mark()
    leader.leader.failing = None
    leader.leader.advance(100)
    leader.marked(first)
    assert leader.state("t")[0] == "CompleteCommit"
    leader.add("t", producer, ("orders", 2))
    leader.end("t", producer)
    leader.leader.advance(500)
    assert leader.state("t")[0] == "PrepareCommit", "its markers are not written"


def test_a_marker_in_the_log_of_states_means_nothing() -> None:
    leader = TransactionLeader()
    producer = leader.init("t")
    leader.leader.log.append(Marker(7, commit=True))
    leader.leader.mark += 1
    leader.leader.reload()
    assert leader.state("t") == ("Empty", 1000, 0)
    assert leader.add("t", producer, ("a", 0)) is None
    assert len(leader.warnings) == 1


@pytest.mark.parametrize(("version", "epoch"), [(0, 0), (1, 0), (2, 0), (2, 32766)])
def test_a_transaction_that_fits_into_the_log_can_be_aborted(version: int, epoch: int) -> None:
    """The record of an abort has more fields than that of its transaction; a batch takes only so much."""
    leader = TransactionLeader(transaction_version=version)
    shard = leader.shard
    there = TransactionMetadata(7, epoch, 60_000, updated_ms=1)
    shard.replay(0, *record_of("id", there, 1))
    shard.journal.commit(1)
    wanted = AddPartitions("id", TransactionalProducer(7, epoch), frozenset({("t", 0)}), 0)
    added = shard.add_partitions(wanted, 1_000)
    [(key, value)] = added.records
    assert value is not None
    shard.replay(1, key, value)
    shard.journal.commit(2)
    [(_, aborted)] = shard.abort_timed_out("id", 8, 100_000).records
    assert aborted is not None
    assert len(aborted) - len(value) <= added.spare_bytes
