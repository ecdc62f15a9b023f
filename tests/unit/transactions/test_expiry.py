"""Transactions that are open for too long, and ids that nobody uses."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.coordinator.shard import CoordinatorRecord
from service.transactions.expiry import Deadlines
from service.transactions.metadata import TransactionMetadata
from service.transactions.records import encode_key, encode_value
from service.transactions.states import TransactionState
from tests.support.shards import Written
from tests.support.transaction_shards import TransactionLeader

WEEK_MS = 604_800_000
HOUR_MS = 3_600_000


def test_no_timer_is_set_while_nothing_is_open() -> None:
    leader = TransactionLeader()
    assert leader.leader.timers == {}
    leader.init("t")
    assert list(leader.leader.timers) == ["idle ids"]
    leader.add("t", (1000, 0), ("a", 0))
    assert set(leader.leader.timers) == {"idle ids", "timeouts"}
    leader.end("t", (1000, 0))
    leader.mark()
    leader.leader.advance(100_000)
    assert list(leader.leader.timers) == ["idle ids"]


def test_an_id_that_is_idle_for_a_week_is_removed_within_an_hour() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.leader.advance(HOUR_MS // 2)
    leader.init("u")
    leader.leader.advance(WEEK_MS - HOUR_MS // 2 - 1)
    assert leader.shard.ids.committed("t") is not None
    leader.leader.advance(1)
    assert leader.shard.ids.committed("t") is None
    assert leader.shard.ids.committed("u") is not None
    leader.leader.advance(HOUR_MS)
    assert leader.shard.ids.committed("u") is None
    assert leader.leader.timers == {}
    assert leader.init("t") == (1002, 0), "as if it had never been"


def test_an_id_with_a_transaction_is_not_removed() -> None:
    leader = TransactionLeader(transaction_max_timeout_ms=3 * WEEK_MS)
    leader.init("t", timeout_ms=2 * WEEK_MS)
    leader.add("t", (1000, 0), ("a", 0))
    leader.leader.advance(WEEK_MS + HOUR_MS)
    assert leader.state("t") == ("Ongoing", 1000, 0)


def test_an_id_expires_too_if_it_alone_was_there_and_in_a_transaction_when_ids_were_looked_at() -> None:
    leader = TransactionLeader(transaction_max_timeout_ms=3 * WEEK_MS)
    leader.init("t", timeout_ms=2 * WEEK_MS)
    leader.add("t", (1000, 0), ("a", 0))
    leader.leader.advance(WEEK_MS + HOUR_MS)
    leader.end("t", (1000, 0))
    leader.mark()
    leader.leader.advance(WEEK_MS + 2 * HOUR_MS)
    assert leader.shard.ids.committed("t") is None


def test_an_id_expires_too_if_all_that_a_load_finds_is_its_transaction() -> None:
    leader = TransactionLeader()
    start = TransactionMetadata(
        7, 0, 60_000, TransactionState.ONGOING, frozenset({("a", 0)}),
        start_ms=leader.leader.now_ms, updated_ms=leader.leader.now_ms,
    )  # fmt: skip
    leader.leader.reload([Written(CoordinatorRecord(encode_key("t"), encode_value(start, 0)), -1)])
    leader.end("t", (7, 0))
    leader.mark()
    leader.leader.advance(WEEK_MS + 2 * HOUR_MS)
    assert leader.shard.ids.committed("t") is None


def test_very_many_idle_ids_are_removed_in_portions() -> None:
    leader = TransactionLeader()
    for number in range(250):
        leader.init(f"t{number}")
    leader.leader.sizes.clear()
    leader.leader.advance(WEEK_MS)
    assert leader.leader.sizes == [100, 100, 50]
    assert len(leader.shard.ids) == 0


def test_ids_that_were_not_removed_are_tried_again() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.leader.failing = ErrorCode.coordinator_not_available
    leader.leader.advance(WEEK_MS)
    assert leader.shard.ids.committed("t") is not None
    leader.leader.failing = None
    leader.leader.timers["idle ids"] = leader.leader.now_ms + 500  # the runtime does that
    leader.leader.advance(500)
    assert leader.shard.ids.committed("t") is None


def test_transactions_that_time_out_together_are_aborted_in_portions() -> None:
    leader = TransactionLeader()
    for number in range(250):
        name = f"t{number}"
        leader.init(name)
        leader.add(name, (1000 + number, 0), ("a", 0))
    leader.leader.sizes.clear()
    leader.leader.advance(70_000)
    assert leader.leader.sizes == [100, 100, 50]
    assert len(leader.told) == 250
    assert leader.metrics.timeouts == 250


def test_large_transactions_that_time_out_together_are_aborted_in_batches_that_a_log_takes() -> None:
    """Each of them is less than a batch, all of them are more."""
    leader = TransactionLeader()
    for number in range(20):
        leader.init(f"t{number}")
        leader.add(f"t{number}", (1000 + number, 0), *[("a", index) for index in range(5_000)])
    leader.leader.sizes.clear()
    leader.leader.advance(70_000)
    assert leader.leader.sizes == [3, 3, 3, 3, 3, 3, 2], "20,000 bytes each"
    assert len(leader.told) == 20
    assert leader.shard.metrics.timeouts == 20


def test_a_timeout_with_the_last_epoch_waits_for_a_new_id() -> None:
    leader = TransactionLeader(transaction_version=2)
    start = TransactionMetadata(
        7, 32766, 60_000, TransactionState.ONGOING, frozenset({("a", 0)}),
        start_ms=leader.leader.now_ms, updated_ms=leader.leader.now_ms, client_version=2,
    )  # fmt: skip
    record = CoordinatorRecord(encode_key("t"), encode_value(start, 1))
    leader.leader.reload([Written(record, -1)])
    leader.leader.advance(70_000)
    assert leader.wanting_ids == ["t"]
    leader.abort_timed_out("t")
    assert [one[:3] for one in leader.told] == [("t", 7, 32767)]
    leader.mark()
    assert leader.state("t") == ("CompleteAbort", 1000, 0)
    leader.leader.advance(20_000)
    assert leader.wanting_ids == ["t"]


def test_a_transaction_that_ended_in_time_is_not_aborted() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.add("t", (1000, 0), ("a", 0))
    leader.leader.advance(59_000)
    leader.end("t", (1000, 0))
    leader.leader.advance(20_000)
    assert [one.is_commit for one in leader.told] == [True]
    assert leader.metrics.timeouts == 0


def test_a_clock_that_steps_back_aborts_nothing_early() -> None:
    leader = TransactionLeader()
    leader.init("t")
    leader.add("t", (1000, 0), ("a", 0))
    leader.leader.now_ms -= 3_600_000
    leader.leader.timers["timeouts"] = leader.leader.now_ms + 70_000  # timers do not follow the clock
    leader.leader.advance(80_000)
    assert leader.state("t") == ("Ongoing", 1000, 0)
    leader.leader.advance(3_600_000)
    assert leader.state("t")[0] == "PrepareAbort"


def test_deadlines_are_found_in_order_and_leave_nothing_behind() -> None:
    deadlines = Deadlines()
    deadlines.set("t", 20_000)
    deadlines.set("u", 10_000)
    deadlines.set("v", 20_000)
    deadlines.set("t", 30_000)
    assert deadlines.next_ms == 10_000
    assert deadlines.due(9_999, 5) == []
    assert deadlines.due(10_000, 5) == ["u"]
    deadlines.discard("u")
    assert deadlines.due(40_000, 5) == ["v"]
    deadlines.discard("v")
    assert deadlines.due(40_000, 5) == ["t"]
    deadlines.discard("t")
    assert (deadlines.next_ms, len(deadlines)) == (None, 0)
