"""DeleteTopics, by name or by id (KIP-516)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final
from uuid import UUID

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice, each_in_slices
from service.metadata.controller.decision import EXCESSIVE
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    ZERO_UUID,
    DeleteTopic,
    DeleteTopicResult,
)
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, is_allowed_on_cluster
from service.serving.change_audit import audited
from service.serving.change_words import deleted_topics
from service.serving.ports import AdminHost
from service.serving.throttles import throttle_of

FIRST_STRICT_VERSION: Final = 5
"""Changes beyond the quota are refused, not only throttled (KIP-599)."""

DENIED: Final = "Topic authorization failed."
UNKNOWN_NAME: Final = "This server does not host this topic-partition."
UNKNOWN_ID: Final = "This server does not host this topic ID."


@audited(deleted_topics)
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
        wanted, refused = await _asked(broker, context, topics)
        results = []
        if wanted or not refused:
            results = await broker.topic_admin.delete_topics(wanted, quota=quota)
        if refused:
            results = await _in_order(topics, [*results, *refused])
    except RequestError as e:
        code, message = e.code, e.message
        results = await each_in_slices(
            lambda one: DeleteTopicResult(one.name, one.topic_id, code, message), topics
        )
    answers = await each_in_slices(_answer, results)
    return DeleteTopicsResponse(throttle_time=throttle_of(broker.quotas, quota), responses=tuple(answers))


async def _asked(
    broker: AdminHost, context: RequestContext, topics: Sequence[DeleteTopic]
) -> tuple[Sequence[DeleteTopic], list[DeleteTopicResult]]:
    """Return the topics that the client may delete, and the errors of the others, before a look at what
    exists. One that is named twice, or by name and id, is refused for that, whoever names it."""
    if is_allowed_on_cluster(broker, context, AclOperation.DELETE, quiet=True):
        return topics, []
    piece, wanted, refused = Slice(), [], []
    times = Counter(topics)
    for one in topics:
        if piece.is_over():
            await piece.next_turn()
        is_odd = times[one] > 1 or (one.name is None) == (one.topic_id == ZERO_UUID)
        error = None if is_odd else _refused(broker, context, one)
        if error is None:
            wanted.append(one)
        else:
            refused.append(error)
    return wanted, refused


def _refused(broker: AdminHost, context: RequestContext, topic: DeleteTopic) -> DeleteTopicResult | None:
    """Return the error of a topic that the client may not delete; without its name, if it may not know it."""
    name = topic.name
    if name is None:
        known = broker.image.topics_by_id.get(topic.topic_id)
        if known is None:
            # Not left to the controller: it may know the id by now, and this node has no name to ask about.
            return DeleteTopicResult(None, topic.topic_id, ErrorCode.unknown_topic_id, UNKNOWN_ID)
        name = known.name
    describes, deletes = (
        is_allowed(broker, context, operation, AclResourceType.TOPIC, name)
        for operation in (AclOperation.DESCRIBE, AclOperation.DELETE)
    )
    if describes and deletes:
        return None
    if topic.name is None and (deletes and not describes):
        return None  # as in Kafka: by id, DELETE is enough
    if topic.name is not None and describes and name not in broker.image.topics_by_name:
        return DeleteTopicResult(name, ZERO_UUID, ErrorCode.unknown_topic_or_partition, UNKNOWN_NAME)
    told = name if topic.name is not None or describes else None
    return DeleteTopicResult(told, topic.topic_id, ErrorCode.topic_authorization_failed, DENIED)


async def _in_order(
    topics: Sequence[DeleteTopic], results: Sequence[DeleteTopicResult]
) -> list[DeleteTopicResult]:
    """Return results in the order of the request, so that the order does not tell which topics exist. (Kafka
    shuffles them.)"""
    piece = Slice()
    places: dict[str | UUID, int] = {}
    for place, one in enumerate(topics):
        if piece.is_over():
            await piece.next_turn()
        places.setdefault(one.topic_id if one.name is None else one.name, place)
    slots: list[list[DeleteTopicResult]] = [[] for _ in topics]
    for result in results:
        if piece.is_over():
            await piece.next_turn()
        at = places.get(result.topic_id, -1)
        slots[at if at >= 0 else places.get(result.name or "", 0)].append(result)
    return list(chain.from_iterable(slots))


def _parse(topic: DeleteTopicState) -> DeleteTopic:
    return DeleteTopic(topic.name, topic.topic_id or ZERO_UUID)


def _answer(one: DeleteTopicResult) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=one.name,
        topic_id=None if one.topic_id == ZERO_UUID else one.topic_id,
        error_code=one.error,
        error_message=one.message,
    )
