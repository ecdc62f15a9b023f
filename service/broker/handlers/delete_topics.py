"""DeleteTopics by name or by id (KIP-516)."""

from __future__ import annotations

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from service.broker.broker import NO_THROTTLE, Broker
from service.metadata.controller.requests import ZERO_UUID, DeleteTopic, DeleteTopicResult
from service.network.exchange import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete what can be deleted; with ``delete.topic.enable=false`` nothing can."""
    asked = [DeleteTopic(topic.name, topic.topic_id or ZERO_UUID) for topic in request.topics]
    if broker.config.delete_topic_enable:
        results = await broker.topic_admin.delete_topics(asked)
    else:
        # Clients before version 3 do not know the code that says why (Kafka answers them INVALID_REQUEST).
        code = ErrorCode.invalid_request if context.api_version < 3 else ErrorCode.topic_deletion_disabled
        results = [
            DeleteTopicResult(one.name, one.topic_id, code, "Topic deletion is disabled.") for one in asked
        ]
    return DeleteTopicsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            DeletableTopicResult(
                name=one.name,
                topic_id=None if one.topic_id == ZERO_UUID else one.topic_id,
                error_code=one.error,
                error_message=one.message,
            )
            for one in results
        ),
    )
