"""DeleteGroups (KIP-229): groups without members go, and their offsets with them."""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.broker.broker import NO_THROTTLE, Broker
from service.groups.requests import DeletedGroup
from service.network.exchange import RequestContext
from service.wire.api import ApiKey, response_module


async def handle(broker: Broker, context: RequestContext, request: DeleteGroupsRequest) -> Any:
    """Each group has its own outcome; those of one partition go together."""
    groups = broker.groups
    answers: list[DeletedGroup] = []
    by_partition: dict[int, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        try:
            by_partition.setdefault(groups.partition_of(group_id), []).append(group_id)
        except RequestError as e:
            answers.append(DeletedGroup(group_id, e.code))
    asked = [_delete(broker, partition, names) for partition, names in by_partition.items()]
    for found in await asyncio.gather(*asked):
        answers += found
    return response_module(ApiKey.DELETE_GROUPS).DeleteGroupsResponse(
        throttle_time=NO_THROTTLE, results=tuple(answers)
    )


async def _delete(broker: Broker, partition: int, names: list[str]) -> tuple[DeletedGroup, ...]:
    try:
        return await broker.groups.runtime.write(
            partition, lambda shard, ticket, now_ms: shard.delete_groups(names)
        )
    except RequestError as e:
        error: ErrorCode = e.code
        return tuple(DeletedGroup(name, error) for name in names)
