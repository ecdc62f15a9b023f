"""Broker 1 of three leads a partition that the others follow: they fetch with frames, as brokers do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.network.request import RequestContext
from service.records.builder import BatchBuilder
from service.replication.leader import BrokerStatus, FollowerProgress, LeaderSettings, Leadership, LeaderState
from service.replication.replica_fetch import ReplicaFetch
from service.wire.api import ApiKey, request_module
from tests.support.one_of_three import HIDDEN, ME, OTHER, TOPIC, OneOfThree, partition, topic
from tests.support.world import START_MS

ALL_THREE: Final = (ME, OTHER, HIDDEN)
EPOCH: Final = 4
"""of the leader; as brokers have registered, broker n has epoch 10 n"""
PARTITIONS: Final = 3
SPREAD: Final = (
    topic(),
    *(partition(n, ME, replicas=ALL_THREE, leader_epoch=EPOCH) for n in range(PARTITIONS)),
)
"""What the metadata says; partitions are alone until they are `followed`."""


class Followed:
    """One partition; `fetch` is its followers'."""

    def __init__(
        self,
        node: OneOfThree,
        number: int = 0,
        *,
        isr: tuple[int, ...] = ALL_THREE,
        replicas: tuple[int, ...] = ALL_THREE,
        min_isr: int = 2,
        high_watermark: int | None = None,
        topic_id: UUID = TOPIC,
    ) -> None:
        found = node.broker.replicas.get(topic_id, number)
        assert found is not None
        self.node, self.number, self.partition, self.topic_id = node, number, found, topic_id
        self.brokers = {one: BrokerStatus(10 * one, is_active=True) for one in replicas}
        found.log.appender.note_leader_epoch(EPOCH)
        self.leading = LeaderState(
            ME, LeaderSettings(), self.brokers, found.log, Leadership(EPOCH, 9, replicas, isr),
            high_watermark=found.high_watermark if high_watermark is None else high_watermark,
            min_insync_replicas=min_isr, now_ms=START_MS,
        )  # fmt: skip
        self.partition.lead(EPOCH, self.leading)

    def has(self, offset: int, *followers: int) -> None:
        """Let these followers fetch from `offset`."""
        for one in followers or (OTHER, HIDDEN):
            asked = ReplicaFetch(one, 10 * one, self.leading.shape.leader_epoch, offset, -1, 0)
            verdict, what = self.leading.fetched(asked, None, START_MS)
            assert verdict.error is ErrorCode.none
            self.partition.happened(what)

    def of(self, broker_id: int) -> FollowerProgress:
        """Return the leader's state of this follower."""
        found = self.leading.follower(broker_id)
        assert found is not None
        return found

    async def fetch(self, replica: int = OTHER, offset: int = 0, **how: Any) -> Any:
        """The partition's answer."""
        answer = await self.fetch_all(replica, offset, **how)
        return answer.responses[0].partitions[0]

    async def fetch_all(
        self,
        replica: int = OTHER,
        offset: int = 0,
        *,
        epoch: int = EPOCH,
        last_epoch: int = -1,
        broker_epoch: int | None = None,
        start: int = 0,
        wait_ms: int = 0,
        version: int = 17,
        most: int = 1 << 20,
        **fields: Any,
    ) -> Any:
        """The whole answer; the session is the caller's to name."""
        module = request_module(ApiKey.FETCH)
        asked = module.FetchPartition(
            partition=self.number, fetch_offset=offset, partition_max_bytes=most, current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch, log_start_offset=start,
        )  # fmt: skip
        told = 10 * replica if broker_epoch is None else broker_epoch
        topics = (module.FetchTopic(topic_id=self.topic_id, partitions=(asked,)),)
        message = {
            "replica_state": module.ReplicaState(replica_id=replica, replica_epoch=told),
            "max_wait": timedelta(milliseconds=wait_ms), "min_bytes": 1, "topics": topics,
            "forgotten_topics_data": (), **fields,
        }  # fmt: skip
        return await self.node.call(ApiKey.FETCH, "FetchRequest", version, **message)


async def produced(
    node: OneOfThree, *numbers: int, version: int = 13, context: RequestContext | None = None, **how: Any
) -> list[Any]:
    """Answers to one batch of one record for each of these partitions."""
    message = produce_message(*numbers, **how)
    answer = await node.ask(ApiKey.PRODUCE, message, version, context=context)
    return list(answer.responses[0].partition_responses)


def produce_message(*numbers: int, acks: int = -1, timeout_ms: int = 60_000, **batch: Any) -> Any:
    module = request_module(ApiKey.PRODUCE)
    data = []
    for one in numbers:
        builder = BatchBuilder(**batch)
        builder.add(START_MS, None, b"value")
        data.append(module.PartitionProduceData(index=one, records=bytes(builder.build())))
    return module.ProduceRequest(
        transactional_id=None, acks=acks, timeout=timedelta(milliseconds=timeout_ms),
        topic_data=(module.TopicProduceData(topic_id=TOPIC, partition_data=tuple(data)),),
    )  # fmt: skip
