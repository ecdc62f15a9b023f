"""ConsumerGroupHeartbeat (KIP-848): members of a consumer group join, report and get assignments, leave."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.groups.consumer.requests import ConsumerGroupHeartbeatResponse
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, refused_group
from service.serving.group_shards import client_of, consumer_groups_of
from service.serving.request_host import Broker


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Have the group's shard decide the heartbeat; UNSUPPORTED_VERSION while `group.version` is 0."""
    if not broker.groups.serves_consumer_groups:
        return ConsumerGroupHeartbeatResponse(ErrorCode.unsupported_version)
    if broker.authorizer is not None:
        refused = in_slices(_refused(broker, context, request))
        if isinstance(refused, Awaitable):
            return _ask_and_write(broker, context, request, refused)
        if refused is not None:
            return refused
    return _write(broker, context, request)


async def _ask_and_write(
    broker: Broker,
    context: RequestContext,
    request: ConsumerGroupHeartbeatRequest,
    refused: Awaitable[ConsumerGroupHeartbeatResponse | None],
) -> ConsumerGroupHeartbeatResponse:
    if (refusal := await refused) is not None:
        return refusal
    answer = _write(broker, context, request)
    return await answer if isinstance(answer, Awaitable) else answer


def _write(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    client = client_of(broker, context)
    return broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: consumer_groups_of(shard).heartbeat(request, client, now_ms),
        _failed,
    )


def _refused(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Steps[ConsumerGroupHeartbeatResponse | None]:
    """Return the error of a member that may not read the group, or not describe a topic that it names."""
    denied = refused_group(broker, context, AclOperation.READ, request.group_id)
    if denied is not None:
        return ConsumerGroupHeartbeatResponse(denied)
    topic, hidden = AclResourceType.TOPIC, False
    for name in dict.fromkeys(request.subscribed_topic_names or ()):
        yield
        hidden |= not is_allowed(broker, context, AclOperation.DESCRIBE, topic, name)
    return ConsumerGroupHeartbeatResponse(ErrorCode.topic_authorization_failed) if hidden else None


def _failed(error: RequestError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error.code, error.message)
