"""OffsetCommit: stores offsets of a group (KIP-848 for member epochs; topics by id from version 10 on)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import next_turn
from service.groups import quick_commits
from service.groups.offset_commits import KnownCommit, known_commit
from service.groups.offset_pieces import add_topics, pieces
from service.groups.requests import CommittedTopic, GroupCommitResponse, commit_failed
from service.network.request import PendingResponse, RequestContext, Response
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, topics_allowed
from service.serving.request_host import Broker
from service.wire.api import RequestHeader, read_request, response_frame
from service.wire.offset_commits import FIRST_BY_HAND
from service.wire.offsets import OffsetCommitRequest

AT_ONCE: Final = 250
"""Most offsets that one decision commits: more would hold the loop for longer than a slice."""


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> GroupCommitResponse | Awaitable[GroupCommitResponse]:
    """Commit the offsets of each partition, with its own error: NONE means committed. If no topic exists, the
    group is not consulted.

    A request with very many partitions is committed in pieces.
    """
    if not _may_commit(broker, context, request.group_id):
        return commit_failed(request, ErrorCode.group_authorization_failed)
    count = 0
    for topic in request.topics:
        count += len(topic.partitions)
    if count + len(request.topics) > AT_ONCE:
        return _in_pieces(broker, context, request)
    return _commit(broker, context, request)


def _may_commit(broker: Broker, context: RequestContext, group_id: str) -> bool:
    return is_allowed(broker, context, AclOperation.READ, AclResourceType.GROUP, group_id)


def quick(
    broker: Broker, context: RequestContext, header: RequestHeader, frame: memoryview
) -> PendingResponse | None:
    """Commit a plain request (`groups/quick_commits`) and return its pending response; None for any other."""
    if header.api_version < FIRST_BY_HAND:
        return None
    plain = quick_commits.read(frame, header.body, header.api_version)
    group = None if plain is None else broker.groups.active(plain.group_id)
    if plain is None or group is None:
        return None
    may_use = None
    if broker.authorizer is not None:
        if not _may_commit(broker, context, plain.group_id):
            return None
        may_use = topics_allowed(broker, context, AclOperation.READ)
    now_ms, shard = group.now_ms(), group.shard
    decided = quick_commits.decide(plain, shard, broker.groups.topics, now_ms, may_use)
    if decided is None:
        return None
    block, effects = decided
    response = Response([quick_commits.answer(plain, block, header.correlation_id)])
    promise = _PlainCommit(header, frame)
    if not group.write_block(block, response, effects, promise, now_ms):
        return None
    shard.metrics.offset_commits += block.count
    return promise


class _PlainCommit(PendingResponse):
    """The response to a plain commit. It keeps the request to respond with an error if the write fails."""

    __slots__ = ("_frame", "_header")

    def __init__(self, header: RequestHeader, frame: memoryview) -> None:
        super().__init__()
        self._header = header
        self._frame = frame

    def failed(self, error: Exception) -> Response:
        if not isinstance(error, RequestError):
            raise error
        request = read_request(self._header, self._frame)
        return Response([response_frame(self._header, commit_failed(request, error.code))])


def _commit(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> GroupCommitResponse | Awaitable[GroupCommitResponse]:
    groups, version = broker.groups, context.api_version
    may_use = topics_allowed(broker, context, AclOperation.READ)
    known = known_commit(request, groups.topics, version, may_use)
    if not known.request.topics:
        return known.answer(GroupCommitResponse(()))
    answer = groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.commit_offsets(known.request, version, now_ms),
        lambda e: commit_failed(known.request, e.code),
    )
    if isinstance(answer, Awaitable):
        return _await_answer(known, answer) if known.refused else answer
    return known.answer(answer)


async def _await_answer(known: KnownCommit, answer: Awaitable[GroupCommitResponse]) -> GroupCommitResponse:
    return known.answer(await answer)


async def _in_pieces(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> GroupCommitResponse:
    topics: dict[Any, CommittedTopic] = {}
    for piece in pieces(request, AT_ONCE):
        answer = _commit(broker, context, piece)
        if isinstance(answer, Awaitable):
            answer = await answer
        add_topics(topics, answer.topics)
        await next_turn()
    return GroupCommitResponse(tuple(topics.values()))
