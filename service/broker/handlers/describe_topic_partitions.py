"""DescribeTopicPartitions (KIP-966): topics page by page, in the order of their names."""

from __future__ import annotations

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode

from service.broker.broker import INTERNAL_TOPICS, NO_THROTTLE, TOPIC_OPERATIONS, Broker
from service.broker.handlers.metadata import why_missing
from service.metadata.image import PartitionImage, TopicImage
from service.network.server import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """At most `response_partition_limit` partitions (and ``max.request.partition.size.limit``) from the
    cursor on.

    A cursor outside the topics asked for, or with a negative partition, is INVALID_REQUEST for every topic.
    """
    names = _names(broker, request)
    if names is None:
        return _answer([_missing(topic.name, ErrorCode.invalid_request) for topic in request.topics], None)
    cursor = request.cursor
    room = max(min(broker.config.max_request_partition_size_limit, request.response_partition_limit), 1)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
    for name in names:
        if room == 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = broker.image.topics_by_name.get(name)
        if topic is None:
            if request.topics:
                topics.append(_missing(name, why_missing(name)))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        topics.append(_described(broker, topic, indexes[:room]))
        if len(indexes) > room:
            next_cursor = Cursor(topic_name=name, partition_index=indexes[room])
            break
        room -= len(indexes)
    return _answer(topics, next_cursor)


def _answer(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )


def _names(broker: Broker, request: DescribeTopicPartitionsRequest) -> list[str] | None:
    """Names to answer for, sorted; None where the cursor cannot be."""
    cursor = request.cursor
    asked = {one.name for one in request.topics} or set(broker.image.topics_by_name)
    if cursor is None:
        return sorted(asked)
    if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in asked):
        return None
    return sorted(name for name in asked if name >= cursor.topic_name)


def _missing(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error,
        name=name,
        topic_id=None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described(broker: Broker, topic: TopicImage, indexes: list[int]) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            _partition(index, topic.partitions[index], broker.offline_replicas(topic.id, index))
            for index in indexes
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(
    index: int, partition: PartitionImage, offline: tuple[int, ...]
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.none if partition.has_leader else ErrorCode.leader_not_available,
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=offline,
    )
