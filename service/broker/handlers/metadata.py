"""Metadata: topics, partitions, leaders and brokers (KIP-516 ids from version 10 on)."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.broker.broker import (
    CLUSTER_OPERATIONS,
    INTERNAL_TOPICS,
    NO_THROTTLE,
    TOPIC_OPERATIONS,
    Broker,
)
from service.metadata.controller.requests import CreateTopic
from service.metadata.controller.topic_names import what_is_wrong_with
from service.metadata.image import PartitionImage, TopicImage
from service.network.server import RequestContext
from service.wire.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


async def handle(broker: Broker, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Answer for the topics asked for, all of them where `topics` is null.

    A topic that is not there is created when both the request and ``auto.create.topics.enable`` allow it.
    Kafka answers such a request with an error and lets the client ask again; here the answer waits for the
    topic.
    """
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
    if request.topics is None:
        topics = [_described(broker, topic, operations) for topic in broker.image.topics_by_name.values()]
    else:
        if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
            await _create_missing(broker, request.topics)
        topics = [_asked(broker, one, operations) for one in _distinct(request.topics)]
    of_cluster = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
    host, port = broker.endpoint(context.listener)
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(
            MetadataResponseBroker(
                node_id=broker.config.node_id, host=host, port=port, rack=broker.config.broker_rack
            ),
        ),
        cluster_id=broker.cluster_id,
        controller_id=broker.config.node_id,
        topics=tuple(topics),
        error_code=ErrorCode.none,
        cluster_authorized_operations=of_cluster,
    )


def _distinct(topics: Iterable[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """By id if any id was given, as Kafka does; each topic once."""
    by_id = [one for one in topics if one.topic_id is not None]
    return list(dict.fromkeys(by_id or topics))


async def _create_missing(broker: Broker, topics: Iterable[MetadataRequestTopic]) -> None:
    known = broker.image.topics_by_name
    names = dict.fromkeys(
        one.name
        for one in topics
        if one.topic_id is None
        and one.name is not None
        and one.name not in known
        and one.name not in INTERNAL_TOPICS
        and what_is_wrong_with(one.name) is None
    )
    if names:
        await broker.topic_admin.create_topics([CreateTopic(name) for name in names])


def _asked(broker: Broker, asked: MetadataRequestTopic, operations: int) -> MetadataResponseTopic:
    if asked.topic_id is not None:
        topic = broker.image.topics_by_id.get(asked.topic_id)
        return (
            _described(broker, topic, operations)
            if topic
            else _missing(ErrorCode.unknown_topic_id, None, asked.topic_id)
        )
    if asked.name is None:
        return _missing(ErrorCode.invalid_request, None, None)
    topic = broker.image.topics_by_name.get(asked.name)
    return (
        _described(broker, topic, operations)
        if topic
        else _missing(why_missing(asked.name), asked.name, None)
    )


def why_missing(name: str) -> ErrorCode:
    """The error for a topic that is not there: its name may be one that no topic can have."""
    invalid = what_is_wrong_with(name) is not None
    return ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition


def _missing(error: ErrorCode, name: str | None, topic_id: UUID | None) -> MetadataResponseTopic:
    internal = name in INTERNAL_TOPICS
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=internal, partitions=()
    )


def _described(broker: Broker, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            _partition(index, topic.partitions[index], broker.offline_replicas(topic.id, index))
            for index in sorted(topic.partitions)
        ),
        topic_authorized_operations=operations,
    )


def _partition(index: int, partition: PartitionImage, offline: tuple[int, ...]) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=ErrorCode.none if partition.has_leader else ErrorCode.leader_not_available,
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        offline_replicas=offline,
    )
