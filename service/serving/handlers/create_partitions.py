"""CreatePartitions (KIP-195): adds partitions to topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.metadata.controller.decision import EXCESSIVE
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    CreatePartitions,
    CreatePartitionsResult,
)
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, split
from service.serving.change_audit import audited
from service.serving.change_words import added_partitions
from service.serving.ports import AdminHost
from service.serving.throttles import throttle_of

FIRST_STRICT_VERSION: Final = 3
"""Changes beyond the quota are refused, not only throttled (KIP-599)."""


@audited(added_partitions)
async def handle(
    broker: AdminHost, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to each topic, with its own error. The response is sent once the partitions exist.

    More topics than one operation of the controller may write are refused unread: POLICY_VIOLATION.
    """
    is_strict = context.api_version >= FIRST_STRICT_VERSION
    quota = broker.quotas.mutations_of(context.session, context.client_id, is_strict=is_strict)
    try:
        if len(request.topics) > MAX_RECORDS_PER_OPERATION:
            raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
        wanted, denied = await _asked(broker, context, request.topics)
        topics = await each_in_slices(_parse, wanted)
        results = []
        if topics or not denied:
            results = await broker.topic_admin.create_partitions(
                topics, validate_only=request.validate_only, quota=quota
            )
        results += await each_in_slices(_denied, denied)
    except RequestError as e:
        code, message = e.code, e.message
        results = await each_in_slices(
            lambda one: CreatePartitionsResult(one.name, code, message), request.topics
        )
    return CreatePartitionsResponse(
        throttle_time=throttle_of(broker.quotas, quota), results=tuple(await each_in_slices(_answer, results))
    )


async def _asked(
    broker: AdminHost, context: RequestContext, topics: Sequence[CreatePartitionsTopic]
) -> tuple[Sequence[CreatePartitionsTopic], Sequence[CreatePartitionsTopic]]:
    """Return the topics that the client may alter, and the others. One that is named twice is refused for
    that, whoever names it."""
    if broker.authorizer is None:
        return topics, ()
    times = Counter(one.name for one in topics)

    def may_alter(topic: CreatePartitionsTopic) -> bool:
        if times[topic.name] > 1:
            return True
        return is_allowed(broker, context, AclOperation.ALTER, AclResourceType.TOPIC, topic.name)

    return await split(topics, may_alter)


def _denied(topic: CreatePartitionsTopic) -> CreatePartitionsResult:
    return CreatePartitionsResult(topic.name, ErrorCode.topic_authorization_failed, None)


def _parse(topic: CreatePartitionsTopic) -> CreatePartitions:
    assignments = topic.assignments
    chosen = None if assignments is None else tuple(tuple(one.broker_ids) for one in assignments)
    return CreatePartitions(topic.name, topic.count, chosen)


def _answer(one: CreatePartitionsResult) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=one.name, error_code=one.error, error_message=one.message)
