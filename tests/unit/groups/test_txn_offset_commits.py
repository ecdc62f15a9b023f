"""TxnOffsetCommit: who may commit offsets in a transaction, and what is written."""

from __future__ import annotations

from typing import Any

import pytest

from service.base.errors import RequestError
from service.groups import records
from service.groups.requests import GroupCommitRequest, OffsetCommitPartition, OffsetCommitTopic
from service.groups.txn_offset_commits import txn_commit
from tests.unit.groups.committers import Committers, E
from tests.unit.groups.consumers import Consumer, consumers, settle

PLACE = {("orders", 0): 5}


def test_offsets_wait_for_the_end_of_their_transaction() -> None:
    c = Committers()
    answer = c.answer(c.commit_in_transaction({("orders", 0): 5, ("bills", 0): 6}))
    assert [p.error_code for t in answer.topics for p in t.partitions] == [E.none, E.none]
    assert c.offset("orders", 0) == -1
    unstable = [one.error_code for one in c.fetch(("orders", 0), ("orders", 1), stable=True)]
    assert unstable == [E.unstable_offset_commit, E.none]
    c.leader.end_transaction(7, commit=True)
    assert [c.offset("orders", 0), c.offset("bills", 0)] == [5, 6]
    assert [one.error_code for one in c.fetch(("orders", 0), stable=True)] == [E.none]
    assert c.metrics.offset_commits == 2


def test_records_have_no_topic_ids_and_belong_to_the_producer() -> None:
    """As in Kafka; an offset without an id is that of any topic of its name."""
    c = Committers()
    c.answer(c.commit_in_transaction(PLACE, metadata="where"))
    [written] = c.leader.log
    assert written.producer_id == 7
    assert written.record.value is not None
    value = records.decode_offset_value(written.record.value)
    assert (value.offset, value.leader_epoch, value.metadata, value.topic_id) == (5, 4, "where", None)


def test_a_group_that_is_not_there_takes_offsets_of_nobody_and_of_no_generation() -> None:
    c = Committers()
    assert c.error(c.commit_in_transaction(PLACE, "m", 3)) == E.illegal_generation
    assert c.error(c.commit_in_transaction(PLACE, group_id="g" * 32_768)) == E.invalid_group_id
    assert c.leader.log == []
    assert c.answer(c.commit_in_transaction(PLACE, "m", -1)).topics


def test_a_producer_that_names_no_member_commits_to_any_group() -> None:
    c = Committers()
    c.stable("a", "b")
    assert c.answer(c.commit_in_transaction(PLACE)).topics


def test_a_member_that_is_named_is_of_this_generation() -> None:
    c = Committers()
    ids, generation = c.stable("a", "b")
    refused = {
        ("stranger", generation): E.unknown_member_id,
        ("", generation): E.unknown_member_id,
        (ids[0], generation - 1): E.illegal_generation,
        (ids[0], generation + 1): E.illegal_generation,
        (ids[0], -1): E.illegal_generation,
    }
    before = len(c.leader.log)
    for (member_id, epoch), error in refused.items():
        assert c.error(c.commit_in_transaction(PLACE, member_id, epoch)) == error
    wrong = c.commit_in_transaction(PLACE, ids[0], generation, instance="i")
    assert c.error(wrong) == E.unknown_member_id
    assert len(c.leader.log) == before
    assert c.answer(c.commit_in_transaction(PLACE, ids[0], generation)).topics


def test_a_rebalance_does_not_keep_transactions_from_committing() -> None:
    c = Committers()
    ids, generation = c.stable("a", "b")
    c.join(ids[0])
    assert c.answer(c.commit_in_transaction(PLACE, ids[1], generation)).topics
    c.join(ids[1])
    assert c.state == "CompletingRebalance"
    assert c.answer(c.commit_in_transaction(PLACE, ids[1], generation + 1)).topics
    assert c.error(c.commit(PLACE, ids[1], generation + 1)) == E.rebalance_in_progress


def test_a_commit_in_a_transaction_extends_no_session() -> None:
    c = Committers()
    ids, generation = c.stable("a")
    due = dict(c.leader.timers)
    c.leader.advance(1000)
    c.answer(c.commit_in_transaction(PLACE, ids[0], generation))
    assert c.leader.timers == due
    c.answer(c.commit(PLACE, ids[0], generation))
    assert c.leader.timers != due


def test_a_fenced_instance_cannot_commit() -> None:
    c = Committers()
    waits = c.join(instance="one")
    c.leader.advance(0)
    old = c.answer(waits).member_id
    c.sync(old, 1, {}, instance="one")
    new = c.answer(c.join(instance="one")).member_id
    assert c.error(c.commit_in_transaction(PLACE, old, 1, instance="one")) == E.fenced_instance_id
    assert c.answer(c.commit_in_transaction(PLACE, new, 1, instance="one")).topics


def test_metadata_that_is_too_long_is_refused_alone() -> None:
    c = Committers(offset_metadata_max_bytes=4)
    answer = c.answer(c.commit_in_transaction(PLACE, metadata="12345"))
    assert [p.error_code for t in answer.topics for p in t.partitions] == [E.offset_metadata_too_large]
    assert c.leader.log == []


def test_members_of_a_modern_group_commit_by_epoch_in_any_version() -> None:
    c = consumers()
    a, b = Consumer(c, "a", names=("apples",)), Consumer(c, "b", names=("apples",))
    a.beat()
    settle(a, b)
    look: Any = c.look()
    assert look.check_commit("", None, -1, 0, is_transactional=True) is None
    assert look.check_commit("a", None, 3, 0, is_transactional=True) is None
    older = look.check_commit("a", None, 2, 0, is_transactional=True)
    assert older is not None
    for member_id, instance, epoch, code in (
        ("a", None, 4, E.stale_member_epoch),
        ("c", None, 3, E.unknown_member_id),
        ("", None, 3, E.unknown_member_id),
        ("", "i", -1, E.unknown_member_id),
    ):
        with pytest.raises(RequestError) as e:
            look.check_commit(member_id, instance, epoch, 0, is_transactional=True)
        assert e.value.code == code


@pytest.mark.parametrize(("epoch", "partition"), [(4, 0), (2, 2)])
def test_a_stale_epoch_is_an_illegal_generation_to_a_producer(epoch: int, partition: int) -> None:
    c = consumers()
    a, b = Consumer(c, "a", names=("apples",)), Consumer(c, "b", names=("apples",))
    a.beat()
    settle(a, b)
    topic = c.world.topics["apples"]
    places = (OffsetCommitPartition(partition, 5, -1, None),)
    request = GroupCommitRequest("g", (OffsetCommitTopic("apples", topic.topic_id, places),), epoch, "a")
    shard = c.leader.shard
    with pytest.raises(RequestError) as e:
        txn_commit(request, shard.view("g"), shard.topics, shard.config(), 1)
    assert e.value.code == E.illegal_generation
