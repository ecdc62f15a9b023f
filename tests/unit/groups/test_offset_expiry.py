"""Expiry of committed offsets (G5)."""

from __future__ import annotations

from service.coordinator.shard import BackgroundWork, CoordinatorResult
from service.groups.expiry import PIECE_PLACES
from service.groups.shard import EXPIRY
from tests.unit.groups.committers import DAY_MS, Committers, E, subscribed


def test_offsets_of_a_simple_group_expire_after_the_commit() -> None:
    c = Committers(offsets_retention_minutes=60, offsets_retention_check_interval_ms=60_000)
    c.commit({("orders", 0): 5})
    c.leader.advance(30 * 60_000)
    c.commit({("orders", 1): 5})
    c.leader.advance(31 * 60_000)
    assert [c.offset("orders", 0), c.offset("orders", 1), c.state] == [-1, 5, "Empty"]
    c.leader.advance(30 * 60_000)
    assert [c.offset("orders", 1), c.state] == [-1, "Dead"]
    assert c.metrics.offset_expirations == 3
    before = len(c.leader.log)
    c.leader.advance(DAY_MS)
    assert len(c.leader.log) == before


def test_offsets_of_a_group_end_after_its_last_member() -> None:
    c = Committers(offsets_retention_minutes=60, offsets_retention_check_interval_ms=60_000)
    ids, generation = c.stable("a", session_ms=60_000)
    c.commit({("orders", 0): 5}, ids[0], generation)
    for _ in range(100):
        c.leader.advance(59_000)
        c.heartbeat(ids[0], generation)
    c.leave((ids[0], None))
    c.leader.advance(59 * 60_000)
    assert c.offset("orders", 0) == 5
    c.leader.reload()
    c.leader.advance(2 * 60_000)
    assert [c.offset("orders", 0), c.state] == [-1, "Dead"]


def test_offsets_end_once_the_topic_left_the_subscription() -> None:
    c = Committers(offsets_retention_minutes=2, offsets_retention_check_interval_ms=60_000)
    ids, generation = c.stable("a", protocols=subscribed("orders"), session_ms=120_000)
    c.commit({("orders", 0): 5, ("bills", 0): 6}, ids[0], generation)
    for _ in range(4):
        c.leader.advance(60_000)
        c.heartbeat(ids[0], generation)
    assert [c.offset("orders", 0), c.offset("bills", 0)] == [5, -1]


def test_an_offset_that_says_when_it_ends() -> None:
    c = Committers(offsets_retention_check_interval_ms=1_000)
    c.commit({("orders", 0): 5}, retention_ms=10_000, version=4)
    c.leader.advance(9_500)
    assert c.offset("orders", 0) == 5
    c.leader.advance(1_000)
    assert [c.offset("orders", 0), c.state] == [-1, "Dead"]


def test_a_transaction_keeps_a_group_alive() -> None:
    c = Committers(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
    c.commit({("orders", 0): 5})
    c.transaction(7, {("orders", 0): 8})
    c.leader.advance(DAY_MS)
    assert [c.offset("orders", 0), c.state] == [5, "Empty"]
    c.leader.end_transaction(7, commit=False)
    c.leader.advance(60_000)
    assert [c.offset("orders", 0), c.state] == [-1, "Dead"]


def test_an_end_that_is_not_written_is_tried_again() -> None:
    c = Committers(offsets_retention_minutes=1, offsets_retention_check_interval_ms=600_000)
    c.commit({("orders", 0): 5})
    c.leader.failing = E.coordinator_not_available
    c.leader.advance(600_000)
    assert c.offset("orders", 0) == 5
    c.leader.failing = None
    c.leader.advance(500)
    assert [c.offset("orders", 0), c.state] == [-1, "Dead"]


def test_offsets_end_although_a_scan_for_them_did_not() -> None:
    c = Committers(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
    c.commit({("orders", 0): 5})
    lost = [
        one for one in c.shard.expired(EXPIRY, c.leader.now_ms).effects if not isinstance(one, BackgroundWork)
    ]
    c.leader.timers.clear()
    c.leader.tell(lambda *_: CoordinatorResult(None, effects=tuple(lost)))
    c.leader.advance(600_000)
    assert c.offset("orders", 0) == -1


def test_many_offsets_end_in_decisions_of_bounded_size() -> None:
    c = Committers(offsets_retention_minutes=1, offsets_retention_check_interval_ms=600_000)
    c.topics.make("large", 1_000, 3)
    c.commit({("large", n): n for n in range(1_000)})
    for n in range(600):
        c.commit({("orders", 0): n}, group_id=f"g{n}")
    before = len(c.leader.log)
    c.leader.advance(600_000)
    assert (c.shard.offsets.count(), len(c.shard.groups)) == (0, 0)
    assert len(c.leader.log) - before == 1_001 + 1_200
    assert max(c.leader.sizes[601:]) <= 2 * PIECE_PLACES
