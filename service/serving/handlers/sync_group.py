"""SyncGroup: a member of a classic group gets its assignment; the leader sends those of all members."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode
from kio.schema.sync_group.v5.request import SyncGroupRequest

from service.groups.requests import SyncGroupResponse, refused_sync
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group
from service.serving.group_shards import client_of
from service.serving.request_host import Broker


def handle(
    broker: Broker, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Have the group's shard store and return assignments; the response waits until they are committed."""
    client = client_of(broker, context)
    refused = refused_sync(request, client.version)
    if refused is None or refused is ErrorCode.invalid_group_id:
        refused = refused_group(broker, context, AclOperation.READ, request.group_id) or refused
    if refused is not None:
        return SyncGroupResponse(refused)
    return broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.sync_group(request, client, ticket, now_ms),
        lambda e: SyncGroupResponse(e.code),
    )
