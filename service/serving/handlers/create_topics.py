"""CreateTopics (KIP-4, KIP-525 for the configs in the response)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.config.describing import describe_topic
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    ZERO_UUID,
    CreateTopic,
    CreateTopicResult,
)
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, is_allowed_on_cluster, split
from service.serving.change_audit import audited
from service.serving.change_words import created_topics
from service.serving.ports import AdminHost
from service.serving.throttles import throttle_of

FIRST_STRICT_VERSION: Final = 6
"""Changes beyond the quota are refused, not only throttled (KIP-599)."""

CLUSTER_METADATA: Final = "__cluster_metadata"


@audited(created_topics)
async def handle(
    broker: AdminHost, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create each topic, with its own error. The response is sent once the topics can be used.

    More topics than one operation of the controller may write are refused unread: POLICY_VIOLATION.
    """
    is_strict = context.api_version >= FIRST_STRICT_VERSION
    quota = broker.quotas.mutations_of(context.session, context.client_id, is_strict=is_strict)
    try:
        if len(request.topics) > MAX_RECORDS_PER_OPERATION:
            raise RequestError(
                ErrorCode.policy_violation, "Excessively large number of partitions per request."
            )
        wanted, denied = await _asked(broker, context, request.topics)
        topics = await each_in_slices(_parse, wanted)
        results = []
        if topics or not denied:
            results = await broker.topic_admin.create_topics(
                topics, validate_only=request.validate_only, quota=quota
            )
        results += await each_in_slices(_denied, denied)
    except RequestError as e:
        code, message = e.code, e.message
        results = await each_in_slices(lambda one: CreateTopicResult(one.name, code, message), request.topics)
    answers = await each_in_slices(lambda one: _answer(broker, context, one), results)
    return CreateTopicsResponse(throttle_time=throttle_of(broker.quotas, quota), topics=tuple(answers))


async def _asked(
    broker: AdminHost, context: RequestContext, topics: Sequence[CreatableTopic]
) -> tuple[Sequence[CreatableTopic], Sequence[CreatableTopic]]:
    """Return the topics that the client may create, and the others. One that is named twice, or the metadata
    log, is refused for that, whoever names it."""
    if is_allowed_on_cluster(broker, context, AclOperation.CREATE, quiet=True):
        return topics, ()
    times = Counter(one.name for one in topics)

    def may_create(topic: CreatableTopic) -> bool:
        if times[topic.name] > 1 or topic.name == CLUSTER_METADATA:
            return True
        return is_allowed(broker, context, AclOperation.CREATE, AclResourceType.TOPIC, topic.name)

    return await split(topics, may_create)


def _denied(topic: CreatableTopic) -> CreateTopicResult:
    return CreateTopicResult(topic.name, ErrorCode.topic_authorization_failed, "Authorization failed.")


def _parse(topic: CreatableTopic) -> CreateTopic:
    return CreateTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((one.partition_index, tuple(one.broker_ids)) for one in topic.assignments),
        configs=tuple((one.name, one.value) for one in topic.configs),
    )


def _answer(broker: AdminHost, context: RequestContext, result: CreateTopicResult) -> CreatableTopicResult:
    failed = result.error is not ErrorCode.none
    if not failed and not is_allowed(
        broker, context, AclOperation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, result.name, quiet=True
    ):
        return CreatableTopicResult(
            name=result.name,
            topic_id=None if result.topic_id == ZERO_UUID else result.topic_id,
            error_code=ErrorCode.none,
            error_message=result.message,
            topic_config_error_code=ErrorCode.topic_authorization_failed,
            configs=(),
        )
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
