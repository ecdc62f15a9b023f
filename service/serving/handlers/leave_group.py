"""LeaveGroup: members of a classic group leave it, or are removed by an administrator (KIP-345)."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5.request import LeaveGroupRequest

from service.base.slices import next_turn
from service.groups.requests import LeaveGroupResponse, LeftMember, RequestOrigin, refused_group_id
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group
from service.serving.group_shards import client_of
from service.serving.request_host import Broker

AT_ONCE: Final = 500
"""Most members that one decision removes: more would hold the loop for longer than a slice."""


def handle(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    """Remove each member, with its own error; very many in pieces."""
    denied = refused_group(broker, context, AclOperation.READ, request.group_id)
    refused = denied or refused_group_id(request.group_id)
    if refused is not None:
        return LeaveGroupResponse(refused)
    client = client_of(broker, context)
    if len(request.members) > AT_ONCE:
        return _in_pieces(broker, client, request)
    return _leave(broker, client, request)


def _leave(
    broker: Broker, client: RequestOrigin, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    return broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.leave_group(request, client, ticket, now_ms),
        lambda e: LeaveGroupResponse(e.code),
    )


async def _in_pieces(broker: Broker, client: RequestOrigin, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove the members piece by piece. A group error becomes the whole response; removed members stay
    removed.
    """
    left: list[LeftMember] = []
    for at in range(0, len(request.members), AT_ONCE):
        piece = replace(request, members=request.members[at : at + AT_ONCE])
        answer = _leave(broker, client, piece)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer.error_code is not ErrorCode.none:
            return answer
        left += answer.members
        await next_turn()
    return LeaveGroupResponse(members=tuple(left))
