"""OffsetForLeaderEpoch (KIP-101, KIP-320): where an epoch ended in this log, both tiers included."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """The end offset of each epoch asked for, an error for each partition that cannot say."""
    return in_slices(_steps(broker, request))


def _steps(broker: Broker, request: OffsetForLeaderEpochRequest) -> Steps[OffsetForLeaderEpochResponse]:
    topics = []
    for topic in request.topics:
        yield
        ends = []
        for one in topic.partitions:
            yield
            ends.append(_end(broker, topic.topic, one))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(ends)))
    return OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _end(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.replicas.find(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        epoch, end_offset = partition.unified.end_offset_of_epoch(asked.leader_epoch)
    except RequestError as e:
        return EpochEndOffset(error_code=e.code, partition=asked.partition)
    except (StorageError, CorruptionError) as e:
        broker.log_storage_error("OffsetForLeaderEpoch", topic, asked.partition, e)
        return EpochEndOffset(error_code=ErrorCode.kafka_storage_error, partition=asked.partition)
    return EpochEndOffset(
        error_code=ErrorCode.none, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )
