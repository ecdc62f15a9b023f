"""Lag of groups, from their committed offsets and the ends of logs."""

from __future__ import annotations

from service.base.steps import at_once
from service.groups import lag
from service.groups.lag import CollectedOffsets, GroupLag, GroupOffsets, LagReport, collect, lags_of
from tests.unit.groups.committers import Committers


def collected(c: Committers, most: int = 10) -> CollectedOffsets:
    return at_once(collect([c.shard], most))


def test_a_group_is_as_many_records_behind_as_the_high_watermark_is_beyond_its_offset() -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("orders", 2): 7, ("bills", 0): 9})
    found = collected(c)
    assert found == CollectedOffsets(
        [GroupOffsets("g", 0, [(("orders", 0), 5), (("orders", 2), 7), (("bills", 0), 9)])], 0
    )
    ends = {("orders", 0): 8, ("orders", 2): 7, ("bills", 0): 1009}
    report = at_once(lags_of(found, ends))
    assert report == LagReport([GroupLag("g", 0, {"orders": {0: 3, 2: 0}, "bills": {0: 1000}})], 0, 0)


def test_an_end_that_is_older_than_the_commit_is_no_lag() -> None:
    found = CollectedOffsets([GroupOffsets("g", 1, [(("orders", 0), 12)])], 0)
    assert at_once(lags_of(found, {("orders", 0): 10})).groups[0].topics == {"orders": {0: 0}}


def test_ends_that_are_not_known_are_counted_and_deleted_partitions_are_not() -> None:
    found = CollectedOffsets([GroupOffsets("g", 1, [(("orders", 0), 1), (("gone", 0), 1)])], 3)
    assert at_once(lags_of(found, {("orders", 0): None})) == LagReport([GroupLag("g", 1, {})], 3, 1)


def test_groups_with_members_come_first_and_those_beyond_the_limit_are_counted() -> None:
    c = Committers()
    for name in ("a", "b", "c"):
        c.commit({("orders", 0): 1}, group_id=name)
    ids, generation = c.stable("one", "other")
    c.commit({("orders", 1): 2}, ids[0], generation)
    found = collected(c, 2)
    assert [(one.group, one.members) for one in found.groups] == [("g", 2), ("a", 0)]
    assert found.left_out == 2


def test_many_groups_are_looked_at_with_a_list_of_bounded_length() -> None:
    c = Committers()
    for n in range(350):
        c.commit({("orders", 0): 1}, group_id=f"g{n:03}")
    found = collected(c, 3)
    assert [one.group for one in found.groups] == ["g000", "g001", "g002"]
    assert found.left_out == 347


def test_offsets_beyond_the_limit_leave_their_group_out() -> None:
    c = Committers()
    c.topics.make("large", 60, 3)
    c.commit({("large", n): n for n in range(60)}, group_id="large")
    c.commit({("orders", 0): 1}, group_id="small")
    before, lag.MOST_OFFSETS = lag.MOST_OFFSETS, 50  # type: ignore[misc]
    try:
        found = collected(c)
    finally:
        lag.MOST_OFFSETS = before  # type: ignore[misc]
    assert [one.group for one in found.groups] == ["small"]
    assert found.left_out == 1


def test_offsets_of_a_transaction_count_once_it_is_committed() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    c.transaction(7, {("orders", 0): 9})
    assert collected(c).groups[0].offsets == [(("orders", 0), 5)]
    c.leader.end_transaction(7, commit=True)
    assert collected(c).groups[0].offsets == [(("orders", 0), 9)]
