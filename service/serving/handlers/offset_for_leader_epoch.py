"""OffsetForLeaderEpoch (KIP-101, KIP-320): the end offset of a leader epoch in this log, with both tiers."""

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
from service.partition.archive import LOADING
from service.security.operations import AclOperation
from service.serving.authorization import is_allowed_on_cluster, topics_allowed
from service.serving.request_host import NO_THROTTLE, Broker


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """Return the end offset of each partition's epoch, or its error."""
    return in_slices(_steps(broker, context, request))


def _steps(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    topics = []
    may_use = topics_allowed(broker, context, AclOperation.DESCRIBE)
    if is_allowed_on_cluster(broker, context, AclOperation.CLUSTER_ACTION, quiet=True):
        may_use = None
    for topic in request.topics:
        yield
        ends = []
        is_denied = may_use is not None and not may_use(topic.topic)
        for one in topic.partitions:
            yield
            ends.append(_denied(one) if is_denied else _end(broker, topic.topic, one, request.replica_id))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(ends)))
    return OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _denied(wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    return EpochEndOffset(error_code=ErrorCode.topic_authorization_failed, partition=wanted.partition)


def _end(broker: Broker, topic: str, wanted: OffsetForLeaderPartition, replica_id: int) -> EpochEndOffset:
    try:
        partition = broker.replicas.find(topic, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
        if partition.archive.loads_to is not None and replica_id < 0:
            # A consumer would take the end so far for a truncation.
            raise RequestError(ErrorCode.offset_not_available, f"{partition.tip}: {LOADING}")
        epoch, end_offset = partition.unified.end_offset_of_epoch(wanted.leader_epoch)
    except RequestError as e:
        return EpochEndOffset(error_code=e.code, partition=wanted.partition)
    except (StorageError, CorruptionError) as e:
        broker.log_storage_error("OffsetForLeaderEpoch", topic, wanted.partition, e)
        return EpochEndOffset(error_code=ErrorCode.kafka_storage_error, partition=wanted.partition)
    return EpochEndOffset(
        error_code=ErrorCode.none, partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset
    )
