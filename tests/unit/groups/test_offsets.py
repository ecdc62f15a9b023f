"""OffsetCommit and OffsetFetch: who may commit, and what a fetch returns."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

from service.base.steps import at_once
from service.groups import offset_commits
from service.groups.requests import (
    CommittedPartition,
    CommittedTopic,
    FetchedPartition,
    GroupCommitRequest,
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchTopic,
    commit_failed,
    fetch_failed,
)
from tests.support.groups import Topics
from tests.unit.groups.committers import BILLS, EVERY_GROUP, ORDERS, Committers, E

# OffsetCommit.


def test_a_commit_without_a_member_creates_a_simple_group() -> None:
    c = Committers()
    answer = c.answer(c.commit({("orders", 0): 5, ("orders", 2): 6, ("bills", 0): 7}))
    assert [t.topic_id for t in answer.topics] == [ORDERS, BILLS]
    assert all(p.error_code == E.none for t in answer.topics for p in t.partitions)
    assert [c.offset("orders", 0), c.offset("orders", 1), c.offset("bills", 0)] == [5, -1, 7]
    assert [listed[:3] for listed in at_once(c.shard.list_groups(EVERY_GROUP))] == [("g", "", "Empty")]
    assert c.metrics.offset_commits == 3
    assert c.shard.offsets.count() == 3


def test_a_generation_of_a_group_that_is_not_there() -> None:
    c = Committers()
    assert c.error(c.commit({("orders", 0): 5}, "m", 1, version=9)) == E.group_id_not_found
    assert c.error(c.commit({("orders", 0): 5}, "m", 1, version=8)) == E.illegal_generation
    assert c.error(c.commit({("orders", 0): 5}, group_id="g" * 32_768)) == E.invalid_group_id
    assert c.leader.log == []


def test_members_of_this_generation_commit() -> None:
    c = Committers()
    ids, generation = c.stable("a", "b")
    place = {("orders", 0): 5}
    assert c.error(c.commit(place)) == E.unknown_member_id, "nobody, in a group with members"
    assert c.error(c.commit(place, "stranger", generation)) == E.unknown_member_id
    assert c.error(c.commit(place, ids[0], generation - 1)) == E.illegal_generation
    assert c.error(c.commit(place, ids[0], -1)) == E.illegal_generation
    assert c.error(c.commit(place, ids[0], generation, instance="i")) == E.unknown_member_id
    before = len(c.leader.log)
    assert c.answer(c.commit(place, ids[0], generation)).topics
    assert len(c.leader.log) == before + 1


def test_commits_while_a_round_is_under_way() -> None:
    c = Committers()
    ids, generation = c.stable("a", "b")
    c.join(ids[0])
    place = {("orders", 0): 5}
    assert c.answer(c.commit(place, ids[1], generation)).topics, "before the next generation, to hand over"
    c.join(ids[1])
    assert c.state == "CompletingRebalance"
    assert c.error(c.commit(place, ids[1], generation)) == E.illegal_generation
    assert c.error(c.commit(place, ids[1], generation + 1)) == E.rebalance_in_progress


def test_a_replaced_static_member_cannot_commit() -> None:
    c = Committers()
    waits = c.join(instance="one")
    c.leader.advance(0)
    old = c.answer(waits).member_id
    c.sync(old, 1, {}, instance="one")
    new = c.answer(c.join(instance="one")).member_id
    assert c.error(c.commit({("orders", 0): 5}, old, 1, instance="one")) == E.fenced_instance_id
    assert c.answer(c.commit({("orders", 0): 5}, new, 1, instance="one")).topics


def test_a_commit_is_a_sign_of_life() -> None:
    c = Committers()
    ids, generation = c.stable("a", session_ms=10_000)
    for _ in range(5):
        c.leader.advance(9_000)
        c.commit({("orders", 0): 5}, ids[0], generation)
    assert c.state == "Stable"
    c.leader.advance(10_000)
    assert c.state == "Empty"


def test_metadata_that_is_too_large_costs_its_partition_alone() -> None:
    c = Committers(offset_metadata_max_bytes=10)
    assert c.commit({("orders", 0): 5}, metadata="x" * 10)
    told = c.answer(c.commit({("orders", 1): 5}, metadata="\N{GRINNING FACE}" * 6)).topics[0].partitions
    assert told == (CommittedPartition(1, E.offset_metadata_too_large),), "UTF-16 units are counted"
    assert c.offset("orders", 1) == -1
    assert c.fetch(("orders", 0))[0].metadata == "x" * 10


def test_topics_that_are_not_there() -> None:
    topics = Topics()
    topics.make("orders", 2, 1)
    request = GroupCommitRequest(
        "g",
        (
            OffsetCommitTopic("orders", ORDERS, (OffsetCommitPartition(1, 5), OffsetCommitPartition(2, 5))),
            OffsetCommitTopic("lost", UUID(int=9), (OffsetCommitPartition(0, 5),)),
        ),
    )
    known = offset_commits.known_commit(request, topics, 9)
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in known.request.topics] == [
        ("orders", [1])
    ]
    answered = (CommittedTopic("orders", ORDERS, (CommittedPartition(1),)),)
    told = known.answer(commit_failed(known.request, E.none)._replace(topics=answered))
    assert told.topics == (
        CommittedTopic(
            "orders", ORDERS, (CommittedPartition(2, E.unknown_topic_or_partition), CommittedPartition(1))
        ),
        CommittedTopic("lost", UUID(int=9), (CommittedPartition(0, E.unknown_topic_or_partition),)),
    )
    by_id = request._replace(topics=tuple(topic._replace(name="") for topic in request.topics))
    known = offset_commits.known_commit(by_id, topics, 10)
    assert known.request.topics[0].name == "orders"
    assert known.refused[1].partitions == (CommittedPartition(0, E.unknown_topic_id),)


def test_a_commit_that_is_not_written_was_never_made() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    c.leader.failing = E.coordinator_not_available
    assert c.error(c.commit({("orders", 0): 6})) == E.coordinator_not_available
    c.leader.failing = None
    assert c.offset("orders", 0) == 5
    c.leader.lagging = True
    waits = c.commit({("orders", 0): 7})
    assert c.leader.waits(waits)
    assert c.offset("orders", 0) == 5, "what is not committed is not told"
    c.leader.commit()
    assert c.answer(waits)
    assert c.offset("orders", 0) == 7


# OffsetFetch.


def test_a_fetch_of_uncommitted_offsets_returns_minus_one() -> None:
    c = Committers()
    assert c.fetch(("orders", 0), ("none", 7)) == [FetchedPartition(0), FetchedPartition(7)]
    assert at_once(c.shard.fetch_all_offsets(OffsetFetchGroup("g", None))).topics == ()


def test_all_offsets_of_a_group() -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("orders", 2): 6, ("bills", 0): 7}, metadata="m")
    fetched = at_once(c.shard.fetch_all_offsets(OffsetFetchGroup("g", None)))
    told = {
        topic.name: [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions]
        for topic in fetched.topics
    }
    assert told == {"orders": [(0, 5, "m"), (2, 6, "m")], "bills": [(0, 7, "m")]}
    named = offset_commits.with_topic_ids(fetched, c.topics)
    assert [topic.topic_id for topic in named.topics] == [ORDERS, BILLS]
    del c.topics["bills"]
    assert len(offset_commits.with_topic_ids(fetched, c.topics).topics) == 1


def test_a_topic_that_was_deleted_and_made_again_has_no_offsets() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    request = OffsetFetchGroup("g", (OffsetFetchTopic("orders", UUID(int=77), (0,)),))
    assert c.shard.fetch_offsets(request).topics[0].partitions == (FetchedPartition(0),)
    known = offset_commits.known_fetch(
        SimpleNamespace(
            group_id="g",
            member_id=None,
            member_epoch=-1,
            topics=(
                SimpleNamespace(topic_id=ORDERS, partition_indexes=(0,)),
                SimpleNamespace(topic_id=UUID(int=78), partition_indexes=(1,)),
            ),
        ),
        c.topics,
        10,
    )
    assert c.shard.fetch_offsets(known.request).topics[0].partitions[0].committed_offset == 5
    assert known.refused[0].partitions == (FetchedPartition(1, error_code=E.unknown_topic_id),)


def test_errors_of_a_fetch_lie_where_the_version_has_them() -> None:
    asked = OffsetFetchGroup("g", (OffsetFetchTopic("orders", None, (0, 1)),))
    assert fetch_failed(asked, E.not_coordinator, 2).error_code == E.not_coordinator
    old = fetch_failed(asked, E.not_coordinator, 1)
    assert old.error_code == E.none
    assert [p.error_code for p in old.topics[0].partitions] == [E.not_coordinator] * 2


def test_offsets_of_a_transaction_wait_for_its_end() -> None:
    c = Committers()
    c.commit({("orders", 0): 5, ("orders", 1): 5})
    c.transaction(7, {("orders", 0): 8, ("bills", 0): 9})
    c.transaction(8, {("orders", 0): 11})
    assert c.offset("orders", 0) == 5
    unstable = c.fetch(("orders", 0), ("orders", 1), ("bills", 0), stable=True)
    assert [p.error_code for p in unstable] == [E.unstable_offset_commit, E.none, E.unstable_offset_commit]
    assert [p.committed_offset for p in unstable] == [-1, 5, -1]
    c.leader.end_transaction(8, commit=False)
    assert c.fetch(("orders", 0), stable=True)[0].error_code == E.unstable_offset_commit
    c.commit({("bills", 0): 12})
    c.leader.end_transaction(7, commit=True)
    assert [c.offset("orders", 0), c.offset("bills", 0)] == [8, 12], "the later record wins"
    assert [p.error_code for p in c.fetch(("orders", 0), stable=True)] == [E.none]
    c.leader.end_transaction(7, commit=True)
    assert c.offset("orders", 0) == 8, "another marker is nothing"
