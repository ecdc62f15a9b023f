"""OffsetDelete, DeleteGroups, and offsets of a deleted topic."""

from __future__ import annotations

from typing import Any

import pytest

from service.base.steps import at_once
from service.coordinator.shard import CoordinatorResult
from service.groups import records
from service.groups.requests import DeletedPartition, OffsetFetchGroup
from service.groups.shard import DELETED_AT_ONCE
from tests.unit.groups.committers import ORDERS, Committers, E, subscribed


def test_offsets_of_unsubscribed_topics_can_be_deleted() -> None:
    c = Committers()
    assert c.error(c.delete(("orders", 0))) == E.group_id_not_found
    ids, generation = c.stable("a", protocols=subscribed("orders"))
    c.commit({("orders", 0): 5, ("bills", 0): 6}, ids[0], generation)
    answer = c.answer(c.delete(("orders", 0), ("bills", 0), ("bills", 3), ("none", 1)))
    told = {t.name: t.partitions for t in answer.topics}
    assert told == {
        "orders": (DeletedPartition(0, E.group_subscribed_to_topic),),
        "bills": (DeletedPartition(3, E.unknown_topic_or_partition), DeletedPartition(0)),
        "none": (DeletedPartition(1, E.unknown_topic_or_partition),),
    }
    assert [c.offset("orders", 0), c.offset("bills", 0)] == [5, -1]
    assert c.metrics.offset_deletions == 1


def test_a_generation_that_was_never_assigned_tells_what_its_members_read() -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("bills", 0): 6})
    first = c.member_id(protocols=subscribed("orders"))
    joined = c.join(first, protocols=subscribed("orders"))
    c.leader.advance(0)
    assert c.answer(joined).generation_id == 1
    # Another one joins before the leader has assigned anything: the round begins again.
    second = c.member_id(client_id="b", protocols=subscribed("bills"))
    waits = c.join(second, "b", protocols=subscribed("bills"))
    assert (c.state, c.leader.waits(waits)) == ("PreparingRebalance", True)
    answer = c.answer(c.delete(("orders", 0), ("bills", 0)))
    told = {t.name: t.partitions for t in answer.topics}
    assert told == {
        "orders": (DeletedPartition(0, E.group_subscribed_to_topic),),
        "bills": (DeletedPartition(0),),
    }


def test_offsets_of_a_group_with_another_protocol_type_cannot_be_deleted() -> None:
    c = Committers()
    c.stable("a", protocol_type="connect")
    assert c.error(c.delete(("orders", 0))) == E.non_empty_group


def test_groups_are_deleted_with_their_offsets() -> None:
    c = Committers()
    ids, generation = c.stable("a")
    c.commit({("orders", 0): 5}, ids[0], generation)
    c.transaction(7, {("bills", 0): 9})
    ticket = c.leader.ask(lambda shard, *_: shard.delete_groups(["g", "none"]))
    assert [r.error_code for r in c.answer(ticket)] == [E.non_empty_group, E.group_id_not_found]
    c.leave((ids[0], None))
    pending = c.member_id(client_id="b")
    assert [r.error_code for r in c.answer(c.leader.ask(lambda shard, *_: shard.delete_groups(["g"])))] == [
        E.none
    ]
    assert (c.state, c.offset("orders", 0)) == ("Dead", -1)
    c.leader.end_transaction(7, commit=True)
    assert c.shard.offsets.count() == 0
    assert c.error(c.join(pending)) == E.unknown_member_id


def test_very_many_offsets_are_deleted_with_their_groups_in_decisions_of_bounded_size() -> None:
    c = Committers()
    c.topics.make("large", 600, 3)
    c.commit({("large", n): n for n in range(600)})
    names = [f"g{n}" for n in range(300)]
    for name in names:
        c.commit({("orders", 0): 1}, group_id=name)
    c.transaction(7, {("bills", 0): 9})
    written = len(c.leader.sizes)
    left, turns = ["g", *names, "none"], 0
    while left:
        turns += 1
        answered = c.answer(c.leader.ask(lambda shard, *_, names=left: shard.delete_groups(names)))
        assert [one.group_id for one in answered] == left[: len(answered)]
        assert {one.error_code for one in answered} <= {E.none, E.group_id_not_found}
        left = left[len(answered) :]
    assert turns < 12
    assert max(c.leader.sizes[written:]) <= DELETED_AT_ONCE + 1
    assert (c.shard.offsets.count(), len(c.shard.groups)) == (0, 0)
    c.leader.end_transaction(7, commit=True)
    assert c.shard.offsets.count() == 0


def test_a_topics_offsets_that_cannot_be_removed_are_tried_after_a_pause() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    del c.topics["orders"]
    c.leader.failing = E.not_coordinator
    c.leader.tell(lambda shard, now: shard.topics_changed(("orders",), (ORDERS,), now))
    assert c.shard.offsets.count() == 1
    c.leader.advance(400)
    assert c.shard.offsets.count() == 1
    c.leader.failing = None
    c.leader.advance(100)
    assert c.shard.offsets.count() == 0


def test_deleting_a_topic_deletes_its_offsets_in_all_groups() -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("orders", 1): 5, ("bills", 0): 6})
    c.commit({("orders", 2): 5}, group_id="h")
    c.transaction(7, {("orders", 2): 8})
    c.leader.tell(
        lambda shard, now: CoordinatorResult(
            None,
            (
                records.encode_offset(
                    records.OffsetKey("i", "orders", 0), records.OffsetValue(1, -1, "", now)
                ),
            ),
        )
    )
    del c.topics["orders"]
    c.leader.tell(lambda shard, now: shard.topics_changed(("orders",), (ORDERS,), now))
    assert c.shard.offsets.count() == 1
    assert [c.offset("orders", 0), c.offset("bills", 0), c.offset("orders", 0, "i")] == [-1, 6, -1]
    c.leader.end_transaction(7, commit=True)
    assert c.offset("orders", 2) == -1
    c.commit({("bills", 0): 7})
    c.topics.make("orders", 1, 99)
    c.commit({("orders", 0): 3})
    c.leader.tell(lambda shard, now: shard.topics_changed(("orders",), (ORDERS,), now))
    assert c.offset("orders", 0) == 3, "G6: another topic of that name"


def remade(c: Committers, log: list[Any], number: int = 99) -> None:
    """Another coordinator reads `log` after "orders" was deleted and made again meanwhile."""
    del c.topics["orders"]
    c.topics.make("orders", 3, number)
    c.leader.long_work = []
    c.leader.reload(log)


@pytest.mark.parametrize("stable", [False, True])
def test_offsets_of_a_deleted_topic_are_not_those_of_the_next_one_of_its_name(stable: bool) -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("bills", 0): 6})
    remade(c, c.leader.log)
    assert [one.committed_offset for one in c.fetch(("orders", 0), ("bills", 0), stable=stable)] == [-1, 6]
    everything = OffsetFetchGroup("g", None)
    if stable:
        steps = c.answer(c.leader.ask(lambda shard, *_: shard.fetch_all_stable_offsets(everything)))
    else:
        steps = c.shard.fetch_all_offsets(everything)
    assert [topic.name for topic in at_once(steps).topics] == ["bills"]
    c.commit({("orders", 0): 3})
    assert c.offset("orders", 0) == 3


def test_offsets_of_a_deleted_topic_are_not_told_while_no_topic_has_its_name() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    del c.topics["orders"]
    assert c.offset("orders", 0) == -1


def test_offsets_of_a_topic_deleted_without_a_coordinator_go_at_the_next_load() -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("bills", 0): 6})
    c.transaction(7, {("orders", 1): 8})
    remade(c, c.leader.log)
    c.commit({("orders", 1): 4})
    c.leader.do_work()
    assert c.shard.offsets.count() == 2
    del c.topics["orders"]
    c.topics.make("orders", 3, ORDERS.int)
    assert [c.offset("orders", 0), c.offset("bills", 0)] == [-1, 6], "a tombstone was written"


def test_the_deletion_that_begins_with_a_load_is_tried_again_when_it_cannot_be_written() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    remade(c, c.leader.log)
    c.leader.failing = E.not_coordinator
    c.leader.do_work()
    assert c.shard.offsets.count() == 1
    c.leader.failing = None
    c.leader.advance(500)
    assert c.shard.offsets.count() == 0
