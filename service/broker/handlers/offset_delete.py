"""OffsetDelete (KIP-496): a group forgets how far it has come with topics that it does not read any more."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

from service.broker.broker import Broker
from service.groups.offset_commits import known_delete
from service.groups.requests import OffsetDeleteResponse, refused_group_id
from service.network.exchange import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """An error of the group's stands for all of it."""
    refused = refused_group_id(request.group_id)
    if refused is not None:
        return OffsetDeleteResponse(refused)
    known = known_delete(request, broker.groups.topics)
    answer = broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.delete_offsets(known),
        lambda e: OffsetDeleteResponse(e.code),
    )
    if isinstance(answer, OffsetDeleteResponse):
        return known.answer(answer)

    async def whole(answer: Awaitable[OffsetDeleteResponse]) -> OffsetDeleteResponse:
        return known.answer(await answer)

    return whole(answer)
