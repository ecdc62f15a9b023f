"""ConsumerGroupHeartbeat (KIP-848): members of a consumer group join, report and get assignments, leave."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.groups.consumer.requests import ConsumerGroupHeartbeatResponse
from service.network.request import RequestContext
from service.serving.group_shards import client_of, consumer_groups_of
from service.serving.request_host import Broker


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Have the group's shard decide the heartbeat; UNSUPPORTED_VERSION while `group.version` is 0."""
    if not broker.groups.serves_consumer_groups:
        return ConsumerGroupHeartbeatResponse(ErrorCode.unsupported_version)
    client = client_of(context)
    return broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: consumer_groups_of(shard).heartbeat(request, client, now_ms),
        _failed,
    )


def _failed(error: RequestError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error.code, error.message)
