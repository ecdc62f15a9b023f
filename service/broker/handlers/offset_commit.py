"""OffsetCommit: how far a group has come (KIP-848 for epochs, topics by id from version 10 on)."""

from __future__ import annotations

from collections.abc import Awaitable

from service.broker.broker import Broker
from service.groups.offset_commits import KnownCommit, known_commit
from service.groups.requests import OffsetCommitResponse, commit_failed
from service.network.exchange import RequestContext
from service.wire.offsets import OffsetCommitRequest


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """What is answered without an error is committed. Without a topic that exists no group is asked."""
    version, groups = context.api_version, broker.groups
    known = known_commit(request, groups.topics, version)
    if not known.request.topics:
        return known.answer(OffsetCommitResponse(()))
    answer = groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.commit_offsets(known.request, version, now_ms),
        lambda e: commit_failed(known.request, e.code),
    )
    if isinstance(answer, Awaitable):
        return _later(known, answer) if known.refused else answer
    return known.answer(answer)


async def _later(known: KnownCommit, answer: Awaitable[OffsetCommitResponse]) -> OffsetCommitResponse:
    return known.answer(await answer)
