"""JoinGroup: a member of a classic group waits for the group's next generation."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.join_group.v9.request import JoinGroupRequest

from service.groups.requests import JoinGroupResponse, refused_join
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group
from service.serving.group_shards import client_of
from service.serving.request_host import Broker


def handle(
    broker: Broker, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Have the group's shard add the member; the response is sent once the generation is complete."""
    if (denied := refused_group(broker, context, AclOperation.READ, request.group_id)) is not None:
        return JoinGroupResponse(denied, "")
    groups, client = broker.groups, client_of(broker, context)
    refused = refused_join(request, client, groups.config(), groups.max_batch_bytes(request.group_id))
    if refused is not None:
        return JoinGroupResponse(refused, request.member_id)
    fresh_id = str(groups.new_uuid())
    return groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.join_group(request, client, ticket, fresh_id, now_ms),
        lambda e: JoinGroupResponse(e.code, request.member_id),
    )
