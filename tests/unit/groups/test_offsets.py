"""Offsets: who may commit, what is told, and when they end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.coordinator.shard import LATER, BackgroundWork, CoordinatorResult, Later, Producer
from service.groups import offset_commits, records
from service.groups.admin import GroupFilter
from service.groups.expiry import PIECE_PLACES
from service.groups.metrics import GroupMetrics
from service.groups.protocol import Subscription, encode_subscription
from service.groups.requests import (
    CommittedPartition,
    CommittedTopic,
    DeletedPartition,
    FetchedPartition,
    GroupCommitRequest,
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchTopic,
    commit_failed,
    fetch_failed,
)
from service.groups.shard import DELETED_AT_ONCE, EXPIRY, GroupShard
from tests.support.groups import Members, Topics, classic_shard
from tests.support.shards import ShardLeader

E = ErrorCode
ORDERS, BILLS = UUID(int=1), UUID(int=2)
DAY_MS = 24 * 3600 * 1000

EVERY_GROUP = GroupFilter(None, None)


class Committers(Members):
    """Members that commit, too."""

    def __init__(self, **settings: Any) -> None:
        self.topics = Topics()
        self.topics.make("orders", 3, 1)
        self.topics.make("bills", 1, 2)
        self.metrics = GroupMetrics()
        super().__init__(ShardLeader(lambda: classic_shard(self.topics, self.metrics, **settings)))

    @property
    def shard(self) -> GroupShard:
        return self.leader.shard

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        version: int = 10,
        metadata: str | None = None,
        group_id: str = "g",
        instance: str | None = None,
        retention_ms: int = -1,
    ) -> int:
        topics: dict[str, list[OffsetCommitPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(OffsetCommitPartition(partition, offset, 4, metadata))
        request = GroupCommitRequest(
            group_id,
            tuple(OffsetCommitTopic(t, self.topics[t].topic_id, tuple(ps)) for t, ps in topics.items()),
            generation,
            member_id,
            instance,
            retention_ms,
        )
        return self.leader.ask(lambda shard, _, now: shard.commit_offsets(request, version, now))

    def fetch(self, *places: tuple[str, int], group_id: str = "g", stable: bool = False) -> Any:
        """Of each place its `FetchedPartition`."""
        asked = tuple(OffsetFetchTopic(topic, None, (partition,)) for topic, partition in places)
        request = OffsetFetchGroup(group_id, asked)
        if stable:
            fetched = self.answer(self.leader.ask(lambda shard, *_: shard.fetch_stable_offsets(request)))
        else:
            fetched = self.shard.fetch_offsets(request)
        return [partition for topic in fetched.topics for partition in topic.partitions]

    def offset(self, topic: str, partition: int, group_id: str = "g") -> int:
        return int(self.fetch((topic, partition), group_id=group_id)[0].committed_offset)

    def delete(self, *places: tuple[str, int], group_id: str = "g") -> int:
        request = SimpleNamespace(
            group_id=group_id,
            topics=tuple(
                SimpleNamespace(name=t, partitions=(SimpleNamespace(partition_index=p),)) for t, p in places
            ),
        )
        known = offset_commits.known_delete(request, self.topics)
        return self.leader.ask(lambda shard, *_: _answered(shard.delete_offsets(known), known))

    def transaction(self, producer_id: int, offsets: dict[tuple[str, int], int], group_id: str = "g") -> None:
        """Offsets of a transaction that has not ended."""
        writes = tuple(
            records.encode_offset(
                records.OffsetKey(group_id, topic, partition),
                records.OffsetValue(offset, -1, "", self.leader.now_ms),
            )
            for (topic, partition), offset in offsets.items()
        )
        decision = CoordinatorResult(None, writes, producer=Producer(producer_id, 0))
        self.leader.tell(lambda *_: decision)


def _answered(decision: CoordinatorResult[Any], known: offset_commits.KnownDelete) -> CoordinatorResult[Any]:
    assert decision.response is not LATER
    return decision._replace(response=known.answer(decision.response))


def subscribed(*topics: str) -> list[tuple[str, bytes]]:
    return [("range", encode_subscription(Subscription(1, topics)))]


# OffsetCommit.


def test_offsets_of_nobody_make_a_simple_group() -> None:
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


def test_an_instance_that_was_replaced_commits_no_more() -> None:
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


def test_offsets_that_nobody_committed() -> None:
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


# OffsetDelete and DeleteGroups.


def test_offsets_are_deleted_where_nobody_reads() -> None:
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


def test_nobody_knows_what_members_of_other_protocols_read() -> None:
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


# The end of offsets (G5).


def test_offsets_of_nobody_end_after_the_commit() -> None:
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


def test_what_goes_with_a_topic() -> None:
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


def test_offsets_whose_topic_went_while_nobody_had_the_partition_are_deleted_at_the_next_load() -> None:
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


# Administration.


def test_a_filter_of_very_many_names_is_read_in_steps_and_kept_small() -> None:
    names = [f"state {n} {'x' * 300}" for n in range(10_000)]
    steps = GroupFilter.of([*names, " stable "], [*names, "Consumer", "CLASSIC"])
    assert len(list(steps)) == 20_003
    assert at_once(GroupFilter.of([*names, " stable "], [*names, "Consumer"])) == GroupFilter(
        frozenset({"stable"}), frozenset({"consumer"})
    )
    assert at_once(GroupFilter.of(names, ())) == GroupFilter(frozenset(), None)


def test_groups_are_listed_by_state_and_kind() -> None:
    c = Committers()
    c.stable("a")
    c.commit({("orders", 0): 5}, group_id="h")

    def listed(states: list[str], kinds: list[str]) -> list[str]:
        return [
            group.group_id for group in at_once(c.shard.list_groups(at_once(GroupFilter.of(states, kinds))))
        ]

    assert listed([], []) == ["g", "h"]
    assert listed(["STABLE "], []) == ["g"]
    assert listed(["empty", "preparingrebalance"], ["Classic"]) == ["h"]
    assert listed(["nonsense"], []) == []
    assert listed([], ["consumer"]) == []
    assert listed([], ["nonsense"]) == []


def test_all_of_very_many_is_told_in_steps() -> None:
    c = Committers()
    c.topics.make("large", 1000, 3)
    c.commit({("large", n): n for n in range(1000)})
    for n in range(250):
        c.commit({("orders", 0): n}, group_id=f"simple{n}")
    assert len(list(c.shard.list_groups(EVERY_GROUP))) == 251
    request = OffsetFetchGroup("g", None)
    steps = c.shard.fetch_all_offsets(request)
    stable = c.shard.fetch_all_stable_offsets(request).response
    assert not isinstance(stable, Later)
    next(steps)
    c.commit({("large", n): 0 for n in range(1000)})
    for told in (at_once(steps), at_once(stable)):
        [topic] = told.topics
        assert sum(one.committed_offset for one in topic.partitions) == 499_500, "as it was when asked for"
    assert len(list(c.shard.fetch_all_offsets(request))) == 10


def test_groups_are_counted_in_steps() -> None:
    c = Committers()
    c.stable("a")
    for n in range(250):
        c.commit({("orders", 0): n}, group_id=f"simple{n}")
    steps = c.shard.census()
    assert len([*c.shard.census()]) == 3
    assert at_once(steps) == {("classic", "Stable"): 1, ("classic", "Empty"): 250}


def test_groups_are_described_with_their_members() -> None:
    c = Committers()
    ids, _ = c.stable("a", "b")
    described, missing = c.shard.describe_groups(["g", "none"], 6)
    assert described[:4] == ("g", "Stable", "consumer", "range")
    assert [m[:4] for m in described.members] == [
        (ids[0], None, "a", "/127.0.0.1"),
        (ids[1], None, "b", "/127.0.0.1"),
    ]
    assert [m.member_metadata for m in described.members] == [b"range", b"range"]
    assert described.members[0].member_assignment == b"to " + ids[0].encode()
    assert (missing.group_state, missing.error_code) == ("Dead", E.group_id_not_found)
    assert c.shard.describe_groups(["none"], 5)[0].error_code == E.none
    c.join(ids[0])
    (described,) = c.shard.describe_groups(["g"], 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in described.members] == [b"", b""]
    assert described.members[1].member_assignment == b"to " + ids[1].encode()
    c.join(ids[1])
    c.join(ids[1], protocols=subscribed("orders"))
    (described,) = c.shard.describe_groups(["g"], 6)
    assert [m.member_assignment for m in described.members] == [b"", b""], "none was assigned in between"


@pytest.mark.parametrize("kind", [10, 17, 23, 999])
def test_records_of_unknown_types_are_skipped_and_told_once(kind: int) -> None:
    warnings: list[str] = []
    shard = classic_shard(warnings=warnings)
    for offset in range(3):
        shard.replay(offset, kind.to_bytes(2, "big") + b"anything", b"else")
    assert len(warnings) == 1
    assert f"type {kind}, from offset 0 on" in warnings[0]
    assert not shard.groups


def test_a_simple_group_may_be_joined() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    c.stable("a")
    assert c.state == "Stable"
    assert c.offset("orders", 0) == 5
