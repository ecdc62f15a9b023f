"""DeleteGroups (KIP-229): deletes groups without members, with their offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

from service.base.errors import RequestError
from service.base.slices import Slice, next_turn
from service.groups.requests import DeletedGroup
from service.groups.shard import DELETED_AT_ONCE
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import refused_group
from service.serving.change_audit import audited
from service.serving.change_words import deleted_groups
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module


@audited(deleted_groups)
async def handle(broker: Broker, context: RequestContext, request: DeleteGroupsRequest) -> Any:
    """Delete each group, with its own error; those of one partition `DELETED_AT_ONCE` at a time."""
    groups = broker.groups
    answers: list[DeletedGroup] = []
    refused: list[DeletedGroup] = []
    by_partition: dict[int, list[str]] = {}
    piece = Slice()
    for group_id in dict.fromkeys(request.groups_names):
        if piece.is_over():
            await piece.next_turn()
        denied = refused_group(broker, context, AclOperation.DELETE, group_id)
        if denied is not None:
            refused.append(DeletedGroup(group_id, denied))
            continue
        try:
            by_partition.setdefault(groups.partition_of(group_id), []).append(group_id)
        except RequestError as e:
            answers.append(DeletedGroup(group_id, e.code))
    deletions = [_delete(broker, partition, names) for partition, names in by_partition.items()]
    for found in await asyncio.gather(*deletions):
        answers += found
    return response_module(ApiKey.DELETE_GROUPS).DeleteGroupsResponse(
        throttle_time=NO_THROTTLE, results=(*answers, *refused)
    )


async def _delete(broker: Broker, partition: int, names: list[str]) -> list[DeletedGroup]:
    answers: list[DeletedGroup] = []
    while len(answers) < len(names):
        left = names[len(answers) : len(answers) + DELETED_AT_ONCE]
        try:
            answers += await _delete_some(broker, partition, left)
        except RequestError as e:
            answers += [DeletedGroup(name, e.code) for name in left]
        await next_turn()
    return answers


def _delete_some(
    broker: Broker, partition: int, names: list[str]
) -> asyncio.Future[tuple[DeletedGroup, ...]]:
    return broker.groups.runtime.write(partition, lambda shard, ticket, now_ms: shard.delete_groups(names))
