"""DeleteTopics, by name or by id (KIP-516)."""

from __future__ import annotations

from typing import Final

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.metadata.controller.decision import EXCESSIVE
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    ZERO_UUID,
    DeleteTopic,
    DeleteTopicResult,
)
from service.network.request import RequestContext
from service.serving.ports import AdminHost
from service.serving.throttles import throttle_of

FIRST_STRICT_VERSION: Final = 5
"""Changes beyond the quota are refused, not only throttled (KIP-599)."""


async def handle(
    broker: AdminHost, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete each topic, with its own error; ``delete.topic.enable=false`` refuses all.

    More topics than one operation of the controller may write are refused unread: POLICY_VIOLATION.
    """
    is_strict = context.api_version >= FIRST_STRICT_VERSION
    quota = broker.quotas.mutations_of(context.session, context.client_id, is_strict=is_strict)
    topics = await each_in_slices(_parse, request.topics)
    try:
        if not broker.config.delete_topic_enable:
            # Clients before version 3 do not know TOPIC_DELETION_DISABLED: Kafka sends INVALID_REQUEST.
            disabled = ErrorCode.topic_deletion_disabled
            code = ErrorCode.invalid_request if context.api_version < 3 else disabled
            raise RequestError(code, "Topic deletion is disabled.")
        if len(topics) > MAX_RECORDS_PER_OPERATION:
            raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
        results = await broker.topic_admin.delete_topics(topics, quota=quota)
    except RequestError as e:
        code, message = e.code, e.message
        results = await each_in_slices(
            lambda one: DeleteTopicResult(one.name, one.topic_id, code, message), topics
        )
    answers = await each_in_slices(_answer, results)
    return DeleteTopicsResponse(throttle_time=throttle_of(broker.quotas, quota), responses=tuple(answers))


def _parse(topic: DeleteTopicState) -> DeleteTopic:
    return DeleteTopic(topic.name, topic.topic_id or ZERO_UUID)


def _answer(one: DeleteTopicResult) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=one.name,
        topic_id=None if one.topic_id == ZERO_UUID else one.topic_id,
        error_code=one.error,
        error_message=one.message,
    )
