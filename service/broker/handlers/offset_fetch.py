"""OffsetFetch: how far groups have come (KIP-709 for several groups at once)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from service.base.errors import RequestError
from service.broker.broker import NO_THROTTLE, Broker
from service.groups.offset_commits import KnownFetch, known_fetch, with_topic_ids
from service.groups.requests import FetchedGroup, fetch_failed
from service.network.exchange import RequestContext
from service.wire.api import ApiKey, response_module
from service.wire.offsets import OffsetFetchRequest, OffsetFetchRequestGroup

TOPIC_IDS_FROM: Final = 10


def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Any:
    """Each group has its own outcome. With `require_stable` the newest positions, once they are committed."""
    version = context.api_version
    found = [_group(broker, group, request.require_stable, version) for group in request.groups]
    if any(isinstance(one, Awaitable) for one in found):
        return _later(found)
    return _answer(found)


async def _later(found: list[FetchedGroup | Awaitable[FetchedGroup]]) -> Any:
    return _answer([await one if isinstance(one, Awaitable) else one for one in found])


def _answer(groups: list[Any]) -> Any:
    module = response_module(ApiKey.OFFSET_FETCH)
    return module.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


def _group(
    broker: Broker, group: OffsetFetchRequestGroup, stable: bool, version: int
) -> FetchedGroup | Awaitable[FetchedGroup]:
    known = known_fetch(group, broker.groups.topics, version)
    if not stable:
        try:
            fetched = broker.groups.read(
                group.group_id, lambda shard, now_ms: shard.fetch_offsets(known.request)
            )
        except RequestError as e:
            return fetch_failed(group, e.code, version)
        return _whole(broker, known, fetched, version)
    answer: Any = broker.groups.write(
        group.group_id,
        lambda shard, ticket, now_ms: shard.fetch_stable_offsets(known.request),
        lambda e: fetch_failed(group, e.code, version),
    )
    if isinstance(answer, Awaitable):
        return _stable(broker, known, answer, version)
    return _whole(broker, known, answer, version)


async def _stable(
    broker: Broker, known: KnownFetch, answer: Awaitable[FetchedGroup], version: int
) -> FetchedGroup:
    return _whole(broker, known, await answer, version)


def _whole(broker: Broker, known: KnownFetch, fetched: FetchedGroup, version: int) -> FetchedGroup:
    """With what no group was asked about."""
    if known.request.topics is None and version >= TOPIC_IDS_FROM:
        fetched = with_topic_ids(fetched, broker.groups.topics)
    return fetched._replace(topics=fetched.topics + known.refused) if known.refused else fetched
