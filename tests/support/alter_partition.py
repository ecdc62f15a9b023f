"""AlterPartition as a broker sends it, of a test that is the broker."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.wire.api import ApiKey, request_module


class AlterIsr(NamedTuple):
    """A leader's proposal for one partition's ISR."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch)"""
    leader_recovery_state: int = 0


class AlteredIsr(NamedTuple):
    """What the controller made of it; all but `error` are -1 or empty with an error."""

    topic_id: UUID
    partition: int
    error: int
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = -1


def alter_isr(broker_id: int, broker_epoch: int, proposals: list[AlterIsr]) -> Any:
    """AlterPartition, with each topic once."""
    module = request_module(ApiKey.ALTER_PARTITION)
    topics: dict[UUID, list[Any]] = {}
    for one in proposals:
        topics.setdefault(one.topic_id, []).append(
            module.PartitionData(
                partition_index=one.partition,
                leader_epoch=one.leader_epoch,
                new_isr_with_epochs=tuple(
                    module.BrokerState(broker_id=node_id, broker_epoch=epoch) for node_id, epoch in one.isr
                ),
                leader_recovery_state=one.leader_recovery_state,
                partition_epoch=one.partition_epoch,
            )
        )
    return module.AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=tuple(
            module.TopicData(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in topics.items()
        ),
    )


def isr_altered(answer: Any) -> list[AlteredIsr]:
    """What AlterPartition was answered. Raises `RequestError` where the request as a whole was refused."""
    if answer.error_code != ErrorCode.none:
        raise RequestError(ErrorCode(answer.error_code), "The controller takes no proposals of this broker.")
    return [
        AlteredIsr(
            topic.topic_id or UUID(int=0),
            one.partition_index,
            one.error_code,
            one.leader_id,
            one.leader_epoch,
            tuple(one.isr),
            one.leader_recovery_state,
            one.partition_epoch,
        )
        for topic in answer.topics
        for one in topic.partitions
    ]
