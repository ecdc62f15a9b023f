"""Groups are coordinated where the leader of their partition is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.controller.requests import ResourceType
from service.metadata.records import ConfigRecord
from service.serving.internal_topics import OFFSETS
from service.wire.api import ApiKey, request_module
from tests.support.one_of_three import (
    INSIDE,
    ME,
    OTHER,
    OUTSIDE,
    OneOfThree,
    changed,
    moved,
    partition,
    topic,
)
from tests.unit.serving.leadership import NONE, run


def test_groups_are_coordinated_where_their_partition_leads(tmp_path: Path) -> None:
    offsets = UUID(int=200)

    async def beaten(node: OneOfThree) -> ErrorCode:
        answer = await node.call(
            ApiKey.HEARTBEAT, "HeartbeatRequest", 4, group_id="group", generation_id=1, member_id="m"
        )
        return ErrorCode(answer.error_code)

    async def settled(node: OneOfThree) -> ErrorCode:
        """While a group is loaded its members are told that all is well."""
        while (error := await beaten(node)) is NONE:
            await asyncio.sleep(0.001)
        return error

    async def groups(node: OneOfThree, listener: str) -> ErrorCode:
        answer = await node.call(
            ApiKey.LIST_GROUPS, "ListGroupsRequest", 5, listener, states_filter=(), types_filter=()
        )
        assert answer.groups == ()
        return ErrorCode(answer.error_code)

    async def scenario(node: OneOfThree) -> None:
        runtime = node.broker.groups.runtime
        assert await beaten(node) is ErrorCode.not_coordinator
        assert await groups(node, OUTSIDE) is NONE
        await node.tell(moved(0, ME, offsets))
        assert await settled(node) is ErrorCode.unknown_member_id
        assert runtime.partitions() == (0,)
        await node.tell(changed(0, offsets, leader=-1))
        assert await beaten(node) is ErrorCode.not_coordinator
        await node.tell(changed(0, offsets, leader=ME))
        assert await settled(node) is ErrorCode.unknown_member_id
        await node.tell(moved(0, OTHER, offsets))
        assert await beaten(node) is ErrorCode.not_coordinator
        assert runtime.partitions() == ()
        assert await groups(node, INSIDE) is NONE

    run(tmp_path, scenario, topic(OFFSETS, offsets), partition(0, OTHER, topic_id=offsets))


async def committed(node: OneOfThree) -> ErrorCode:
    """Return a group's committed offset of partition 0, once its coordinator has loaded."""
    module = request_module(ApiKey.OFFSET_COMMIT)
    one = module.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    while True:
        answer = await node.call(
            ApiKey.OFFSET_COMMIT, "OffsetCommitRequest", 9, group_id="group", member_id="",
            topics=(module.OffsetCommitRequestTopic(name="t", partitions=(one,)),),
        )  # fmt: skip
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        if error is not ErrorCode.coordinator_load_in_progress:
            return error
        await asyncio.sleep(0)


def test_a_group_whose_partition_was_offline_for_a_while_is_coordinated_again(tmp_path: Path) -> None:
    """Nobody has led it meanwhile, as nobody else has it."""
    offsets = UUID(int=200)

    async def scenario(node: OneOfThree) -> None:
        assert await committed(node) is NONE
        bad, good = ("retention.ms", "never"), ("retention.ms", None)
        for name, value in (bad, good):
            await node.tell(
                ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=OFFSETS, name=name, value=value)
            )
        assert node.broker.replicas.get(offsets, 0) is None
        await node.applier.opener.try_again(tuple(node.applier.opener._pending))
        replica = node.broker.replicas.get(offsets, 0)
        assert replica is not None
        assert await committed(node) is NONE
        assert replica.high_watermark == replica.end_offset == 2

    places = (partition(0, ME), partition(0, ME, topic_id=offsets))
    run(tmp_path, scenario, topic(), topic(OFFSETS, offsets), *places)


def test_a_group_that_is_given_away_acknowledges_nothing_while_its_files_are_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator is told when all of the change is done."""
    offsets = UUID(int=200)

    async def scenario(node: OneOfThree) -> None:
        assert await committed(node) is NONE
        delete, goes, goes_on = node.logs.delete, asyncio.Event(), asyncio.Event()

        async def slow(tips: Any) -> None:
            goes.set()
            await goes_on.wait()
            await delete(tips)

        monkeypatch.setattr(node.logs, "delete", slow)
        applied = node.publish(moved(0, OTHER, offsets))
        await goes.wait()
        assert await committed(node) is ErrorCode.not_coordinator
        goes_on.set()
        await applied

    places = (partition(0, ME), partition(0, ME, topic_id=offsets))
    run(tmp_path, scenario, topic(), topic(OFFSETS, offsets), *places)
