"""Heartbeat: a member of a classic group reports that it is alive, and learns of a rebalance."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from service.base.errors import RequestError
from service.groups.requests import HeartbeatResponse, refused_group_id
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group
from service.serving.group_shards import client_of
from service.serving.request_host import Broker


def handle(
    broker: Broker, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Have the group's shard decide the heartbeat. While the shard loads, the response is no error, as in
    Kafka: members stay.
    """
    denied = refused_group(broker, context, AclOperation.READ, request.group_id)
    refused = denied or refused_group_id(request.group_id)
    if refused is not None:
        return HeartbeatResponse(refused)
    client = client_of(broker, context)
    return broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.heartbeat(request, client, now_ms),
        _failed,
    )


def _failed(error: RequestError) -> HeartbeatResponse:
    if error.code is ErrorCode.coordinator_load_in_progress:
        return HeartbeatResponse()
    return HeartbeatResponse(error.code)
