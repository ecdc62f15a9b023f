"""CreateTopics (KIP-4, KIP-525 for the configs in the answer)."""

from __future__ import annotations

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.errors import ErrorCode

from service.broker.broker import NO_THROTTLE, Broker
from service.config.describing import describe_topic
from service.metadata.controller.requests import ZERO_UUID, CreateTopic, CreateTopicResult
from service.network.exchange import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create all that can be created; each topic has its own outcome. The answer comes once the topics can be
    used.
    """
    results = await broker.topic_admin.create_topics(
        [_asked(topic) for topic in request.topics], validate_only=request.validate_only
    )
    return CreateTopicsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(_answer(broker, one) for one in results)
    )


def _asked(topic: CreatableTopic) -> CreateTopic:
    return CreateTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((one.partition_index, tuple(one.broker_ids)) for one in topic.assignments),
        configs=tuple((one.name, one.value) for one in topic.configs),
    )


def _answer(broker: Broker, result: CreateTopicResult) -> CreatableTopicResult:
    failed = result.error is not ErrorCode.none
    configs = () if failed else describe_topic(result.configs, broker.config)
    return CreatableTopicResult(
        name=result.name,
        topic_id=None if result.topic_id == ZERO_UUID else result.topic_id,
        error_code=result.error,
        error_message=result.message,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in configs
        ),
    )
