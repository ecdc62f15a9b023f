"""Members that commit and fetch offsets, for tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.coordinator.shard import LATER, CoordinatorResult, Producer
from service.groups import offset_commits, records
from service.groups.admin import GroupFilter
from service.groups.metrics import GroupMetrics
from service.groups.protocol import Subscription, encode_subscription
from service.groups.requests import (
    GroupCommitRequest,
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchTopic,
)
from service.groups.shard import GroupShard
from service.groups.txn_offset_commits import known_txn_commit
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
        """Return the `FetchedPartition` of each place."""
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

    def commit_in_transaction(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        metadata: str | None = None,
        group_id: str = "g",
        instance: str | None = None,
        producer_id: int = 7,
    ) -> int:
        topics: dict[str, list[OffsetCommitPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(OffsetCommitPartition(partition, offset, 4, metadata))
        asked = GroupCommitRequest(
            group_id,
            tuple(OffsetCommitTopic(t, None, tuple(ps)) for t, ps in topics.items()),
            generation,
            member_id,
            instance,
        )
        request = known_txn_commit(asked, self.topics).request
        producer = Producer(producer_id, 0)
        return self.leader.ask(
            lambda shard, _, now: shard.commit_offsets_of_transaction(request, producer, now)
        )

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
