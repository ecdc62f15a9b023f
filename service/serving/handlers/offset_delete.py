"""OffsetDelete (KIP-496): deletes a group's offsets of topics that it does not read any more."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

from service.base.slices import next_turn
from service.groups.offset_commits import known_delete
from service.groups.offset_pieces import add_topics, pieces
from service.groups.requests import DeletedTopic, OffsetDeleteResponse, refused_group_id
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group, topics_allowed
from service.serving.change_audit import audited
from service.serving.change_words import deleted_offsets
from service.serving.request_host import Broker

AT_ONCE: Final = 250
"""Most offsets that one decision deletes: more would hold the loop for longer than a slice."""


@audited(deleted_offsets)
def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Delete the offsets of each partition, with its own error; very many in pieces. A group error becomes
    the whole response.
    """
    denied = refused_group(broker, context, AclOperation.DELETE, request.group_id)
    refused = denied or refused_group_id(request.group_id)
    if refused is not None:
        return OffsetDeleteResponse(refused)
    count = len(request.topics)
    for topic in request.topics:
        count += len(topic.partitions)
    if count > AT_ONCE:
        return _in_pieces(broker, context, request)
    return _delete(broker, context, request)


def _delete(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    may_use = topics_allowed(broker, context, AclOperation.READ)
    known = known_delete(request, broker.groups.topics, may_use)
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


async def _in_pieces(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    topics: dict[Any, DeletedTopic] = {}
    for piece in pieces(request, AT_ONCE):
        answer = _delete(broker, context, piece)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer.error_code is not ErrorCode.none:
            return answer
        add_topics(topics, answer.topics)
        await next_turn()
    return OffsetDeleteResponse(topics=tuple(topics.values()))
