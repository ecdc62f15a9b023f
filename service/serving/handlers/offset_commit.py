"""OffsetCommit: stores offsets of a group (KIP-848 for member epochs; topics by id from version 10 on)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import next_turn
from service.coordinator.context import ShardContext
from service.groups import quick_commits
from service.groups.commit_plans import COMPARED_FROM, CommitPlan, CommitPlans
from service.groups.offset_commits import KnownCommit, MayUse, known_commit
from service.groups.offset_pieces import add_topics, pieces
from service.groups.requests import CommittedTopic, GroupCommitResponse, commit_failed
from service.groups.shard import GroupShard
from service.network.request import PendingResponse, RequestContext, Response
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, operations, topics_allowed
from service.serving.request_host import Broker
from service.wire.api import RequestHeader, parse_request_header, read_request, response_frame
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
) -> Response | PendingResponse | None:
    """Commit a plain request (`groups/quick_commits`) and return its response, perhaps a pending one; None
    for any other. One that is like the connection's last (`groups/commit_plans`) is not parsed."""
    if header.api_version < FIRST_BY_HAND:
        return None
    groups = broker.groups
    plans = groups.plans
    if plans is None:
        plans = groups.plans = CommitPlans()
    plan = plans.find(context.connection_id)
    if plan is None:
        return _commit_plain(broker, context, header, frame, plans)
    if plan.is_tried:
        plan.is_tried = False
    elif (answer := commit_by_plan(broker, context, plan, frame)) is not None:
        return Response([answer])
    return _commit_plain(broker, context, header, frame, None if plan.is_like else plans)


def commit_by_plan(
    broker: Broker, context: RequestContext, plan: CommitPlan, frame: memoryview
) -> bytes | None:
    """Commit a request that is like the last one of its connection, which `plan` is of, and return the
    response; None, with nothing done, if it has to be parsed."""
    groups = broker.groups
    group = groups.runtime.active(plan.partition)
    if group is None:
        plan.is_like = False
        return None
    if not plan.takes(frame, groups.topics.token, group.shard.offsets):
        return None
    try:
        return _commit_by(plan, group, broker, context, frame)
    finally:
        plan.leave()


def _commit_by(
    plan: CommitPlan,
    group: ShardContext[GroupShard],
    broker: Broker,
    context: RequestContext,
    frame: memoryview,
) -> bytes | None:
    """Commit the request that `plan` has taken, in a batch of its own; None if it has to be parsed."""
    plain = plan.plain
    if broker.authorizer is not None:
        may_use = _may_use_quietly(broker, context, plain.group_id)
        if may_use is None or not all(map(may_use, plan.names)):
            return None
    now_ms, shard = group.now_ms(), group.shard
    effects = quick_commits.accepted_effects(plain, shard, now_ms)
    if effects is None:
        return None
    if plan.longest_metadata and plan.longest_metadata > shard.config().offset_metadata_max_bytes:
        return None
    try:
        if not group.append_alone(plan, effects, now_ms):
            return None
    except RequestError as e:
        _note_allowed(broker, context, plain.group_id, plan.names)
        return _failed(parse_request_header(frame), frame, e)
    _note_allowed(broker, context, plain.group_id, plan.names)
    shard.metrics.offset_commits += plan.count
    return plan.answer()


def _commit_plain(
    broker: Broker,
    context: RequestContext,
    header: RequestHeader,
    frame: memoryview,
    plans: CommitPlans | None,
) -> Response | PendingResponse | None:
    """Commit a plain request that no plan has taken; a plan is made of it for the next one, among `plans`."""
    groups = broker.groups
    plain = quick_commits.read(frame, header.body, header.api_version)
    partition = None if plain is None else groups.find_partition(plain.group_id)
    group = None if partition is None else groups.runtime.active(partition)
    if plain is None or partition is None or group is None:
        return None
    may_use = None
    if broker.authorizer is not None:
        may_use = _may_use_quietly(broker, context, plain.group_id)
        if may_use is None:
            return None
    now_ms, shard = group.now_ms(), group.shard
    decided = quick_commits.decide(plain, shard, groups.topics, now_ms, may_use)
    if decided is None:
        return None
    block, effects = decided
    answer = quick_commits.answer(plain, block, header.correlation_id)
    if plans is not None and group.commits_alone and plans.wants(context.connection_id, len(frame)):
        parts = block.plan_parts(COMPARED_FROM)
        if parts is not None:
            token, client_id = groups.topics.token, header.client_id
            plan = CommitPlan(plain, parts, client_id, answer, token, partition, shard.offsets)
            plans.put(context.connection_id, plan)
    promise = _PlainCommit(header, frame)
    if not group.write_block(block, Response([answer]), effects, promise, now_ms):
        return None
    _note_allowed(broker, context, plain.group_id, block.names)
    shard.metrics.offset_commits += block.count
    return promise


def _may_use_quietly(broker: Broker, context: RequestContext, group_id: str) -> MayUse | None:
    """Return whether the client may use a topic; None if not even the group. Neither counted nor audited:
    what is denied is for `handle`, which asks again."""

    def is_allowed_quietly(resource: AclResourceType, name: str) -> bool:
        return bool(operations(broker, context, resource, name) >> AclOperation.READ & 1)

    if not is_allowed_quietly(AclResourceType.GROUP, group_id):
        return None
    return lambda topic: is_allowed_quietly(AclResourceType.TOPIC, topic)


def _note_allowed(broker: Broker, context: RequestContext, group_id: str, topics: Iterable[str]) -> None:
    """Count and audit what was asked quietly and is done now."""
    if broker.authorizer is not None:
        _may_commit(broker, context, group_id)
        for topic in topics:
            is_allowed(broker, context, AclOperation.READ, AclResourceType.TOPIC, topic)


def _failed(header: RequestHeader, frame: memoryview, error: RequestError) -> bytes:
    return bytes(response_frame(header, commit_failed(read_request(header, frame), error.code)))


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
        return Response([_failed(self._header, self._frame, error)])


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
