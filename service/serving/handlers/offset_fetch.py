"""OffsetFetch: committed offsets of groups (KIP-709 for several groups at once)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices, next_turn
from service.base.steps import Steps
from service.groups.offset_commits import KnownFetch, MayUse, known_fetch, with_topic_ids
from service.groups.offset_pieces import add_topics, pieces
from service.groups.requests import FetchedGroup, FetchedTopic, fetch_failed
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group, topics_allowed
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module
from service.wire.offsets import OffsetFetchRequest, OffsetFetchRequestGroup

TOPIC_IDS_FROM: Final = 10
AT_ONCE: Final = 500
"""Most offsets that are looked up in one turn of the loop."""
_ALL_COST: Final = 50
"""Offsets that a request for all offsets of a group counts as."""


def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Any:
    """Return the offsets of each group, or its error. With `require_stable` wait until the newest offsets are
    committed.
    """
    count = 0
    for group in request.groups:
        count += _ALL_COST if group.topics is None else 1
        for topic in group.topics or ():
            count += 1 + len(topic.partition_indexes)
    if count > AT_ONCE:
        return _in_pieces(broker, context, request)
    found = [_group(broker, context, group, request.require_stable) for group in request.groups]
    if any(isinstance(one, Awaitable) for one in found):
        return _await_all(found)
    return _answer(found)


async def _in_pieces(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Any:
    """Look up one piece of one group in each turn of the loop."""
    answers = []
    for group in request.groups:
        topics: dict[Any, FetchedTopic] = {}
        whole = FetchedGroup(group.group_id)
        for piece in pieces(group, AT_ONCE, "partition_indexes") if group.topics else (group,):
            one = _group(broker, context, piece, request.require_stable)
            fetched = await one if isinstance(one, Awaitable) else one
            await next_turn()
            if fetched.error_code is not ErrorCode.none:
                whole = fetched
                topics.clear()
                break
            add_topics(topics, fetched.topics)
        answers.append(whole._replace(topics=tuple(topics.values())) if topics else whole)
    return _answer(answers)


async def _await_all(found: list[FetchedGroup | Awaitable[FetchedGroup]]) -> Any:
    return _answer([await one if isinstance(one, Awaitable) else one for one in found])


def _answer(groups: list[Any]) -> Any:
    module = response_module(ApiKey.OFFSET_FETCH)
    return module.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


def _group(
    broker: Broker, context: RequestContext, group: OffsetFetchRequestGroup, stable: bool
) -> FetchedGroup | Awaitable[FetchedGroup]:
    version = context.api_version
    if (denied := refused_group(broker, context, AclOperation.DESCRIBE, group.group_id)) is not None:
        return fetch_failed(group, denied, version)
    may_use = topics_allowed(broker, context, AclOperation.DESCRIBE)
    known = known_fetch(group, broker.groups.topics, version, may_use)
    request = known.request
    if request.topics is None:
        return _fetch_all(broker, known, stable, version, may_use)
    if not stable:
        try:
            fetched = broker.groups.read(request.group_id, lambda shard, now_ms: shard.fetch_offsets(request))
        except RequestError as e:
            return fetch_failed(group, e.code, version)
        return _complete(broker, known, fetched, version)
    answer: Any = broker.groups.write(
        request.group_id,
        lambda shard, ticket, now_ms: shard.fetch_stable_offsets(request),
        lambda e: fetch_failed(group, e.code, version),
    )
    if isinstance(answer, Awaitable):
        return _await_and_complete(broker, known, answer, version)
    return _complete(broker, known, answer, version)


def _fetch_all(
    broker: Broker, known: KnownFetch, stable: bool, version: int, may_use: MayUse | None
) -> FetchedGroup | Awaitable[FetchedGroup]:
    """Return all offsets of a group, in slices, as there may be very many; without those of topics that the
    client may not use."""
    request = known.request

    def failed(e: RequestError) -> FetchedGroup:
        return FetchedGroup(request.group_id, error_code=e.code)

    if stable:
        steps: Any = broker.groups.write(
            request.group_id,
            lambda shard, ticket, now_ms: shard.fetch_all_stable_offsets(request),
            failed,
        )
    else:
        try:
            steps = broker.groups.read(
                request.group_id, lambda shard, now_ms: shard.fetch_all_offsets(request)
            )
        except RequestError as e:
            return failed(e)
    answer = _await_steps(steps, may_use) if isinstance(steps, Awaitable) else _run_steps(steps, may_use)
    if isinstance(answer, Awaitable):
        return _await_and_complete(broker, known, answer, version)
    return _complete(broker, known, answer, version)


async def _await_steps(steps: Awaitable[Any], may_use: MayUse | None) -> FetchedGroup:
    answer = _run_steps(await steps, may_use)
    return await answer if isinstance(answer, Awaitable) else answer


def _run_steps(steps: Any, may_use: MayUse | None) -> FetchedGroup | Awaitable[FetchedGroup]:
    if isinstance(steps, FetchedGroup):
        return steps
    answer: FetchedGroup | Awaitable[FetchedGroup]
    answer = in_slices(steps if may_use is None else _visible(steps, may_use))
    return answer


def _visible(steps: Steps[FetchedGroup], may_use: MayUse) -> Steps[FetchedGroup]:
    """Return the offsets of topics that the client may use."""
    fetched = yield from steps
    topics = []
    for topic in fetched.topics:
        yield
        if may_use(topic.name):
            topics.append(topic)
    return fetched._replace(topics=tuple(topics))


async def _await_and_complete(
    broker: Broker, known: KnownFetch, answer: Awaitable[FetchedGroup], version: int
) -> FetchedGroup:
    return _complete(broker, known, await answer, version)


def _complete(broker: Broker, known: KnownFetch, fetched: FetchedGroup, version: int) -> FetchedGroup:
    """Return `fetched` with topic ids, if the version has them, and with the topics that were refused."""
    if known.request.topics is None and version >= TOPIC_IDS_FROM:
        fetched = with_topic_ids(fetched, broker.groups.topics)
    return fetched._replace(topics=fetched.topics + known.refused) if known.refused else fetched
