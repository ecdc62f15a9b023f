"""LeaveGroup: members of a classic group leave it, or are removed by an administrator (KIP-345)."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.leave_group.v5.request import LeaveGroupRequest

from service.broker.broker import Broker
from service.broker.coordinators import client_of
from service.groups.requests import LeaveGroupResponse, refused_group_id
from service.network.exchange import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    """Each member has an outcome of its own."""
    refused = refused_group_id(request.group_id)
    if refused is not None:
        return LeaveGroupResponse(refused)
    client = client_of(context)
    return broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.leave_group(request, client, ticket, now_ms),
        lambda e: LeaveGroupResponse(e.code),
    )
