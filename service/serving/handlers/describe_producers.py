"""DescribeProducers (KIP-664): the state that a partition keeps of idempotent producers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.metadata.controller.topic_names import topic_name_error
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import check
from service.serving.request_host import NO_THROTTLE, Broker

UNKNOWN: Final = "This server does not host this topic-partition."
MOST_PRODUCERS: Final = 500_000
"""Limit of one response: further partitions are refused."""


def handle(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | Awaitable[DescribeProducersResponse]:
    """Return the producers of each requested partition, or its error."""
    return in_slices(_steps(broker, context, request))


def _steps(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    topics = []
    room = MOST_PRODUCERS
    for topic in request.topics:
        partitions = []
        for index in topic.partition_indexes:
            yield
            found = yield from _partition(broker, context, topic.name, index, room)
            room -= len(found.active_producers)
            partitions.append(found)
        topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
    return DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _partition(
    broker: Broker, context: RequestContext, topic: str, index: int, room: int
) -> Steps[PartitionResponse]:
    error, message = ErrorCode.none, None
    producers: list[ProducerState] = []
    try:
        reason = topic_name_error(topic)
        if reason is not None:
            raise RequestError(ErrorCode.invalid_topic_exception, reason)
        check(broker, context, AclOperation.READ, AclResourceType.TOPIC, topic)
        log = broker.replicas.find(topic, index).log
        log.check()
        if len(log.producers) > room:
            raise RequestError(
                ErrorCode.invalid_request,
                f"the response exceeds {MOST_PRODUCERS} producers: request fewer partitions",
            )
        for producer_id in log.producers.ids():
            yield
            entry = log.producers.get(producer_id)
            if entry is None:
                continue
            producers.append(
                ProducerState(
                    producer_id=producer_id,
                    producer_epoch=entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.last_timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.txn_first_offset,
                )
            )
    except RequestError as e:
        error = e.code
        message = e.message
        if error is ErrorCode.unknown_topic_or_partition:
            # Kafka has a message for an unknown topic, and none for an unknown index.
            message = None if topic in broker.image.topics_by_name else UNKNOWN
        elif error is ErrorCode.not_leader_or_follower:
            # Another node has the replica. A local one answers, whether it leads or not.
            message = None
    except StorageError as e:
        error, message = ErrorCode.kafka_storage_error, str(e)
    return PartitionResponse(
        partition_index=index,
        error_code=error,
        error_message=message,
        active_producers=tuple(producers),
    )
