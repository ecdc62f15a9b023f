"""Commits that go alone, from a plan, read and write the state of the shard that there is now."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID
from weakref import ref

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.requests import ResourceType
from service.metadata.records import ConfigRecord, NoOpRecord, RemoveTopicRecord
from service.serving.internal_topics import OFFSETS
from service.wire.api import ApiKey, request_module
from tests.support.one_of_three import ME, OTHER, OneOfThree, changed, fenced, partition, topic
from tests.unit.serving.leadership import NONE, run

OF_GROUPS, DOOMED = UUID(int=200), UUID(int=300)
PLACES = (topic(), topic(OFFSETS, OF_GROUPS), partition(0, ME), partition(0, ME, topic_id=OF_GROUPS))

RETENTION = ConfigRecord(
    resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value="1000000"
)


async def sent(node: OneOfThree, offset: int) -> ErrorCode:
    """Send a commit and return its error."""
    module = request_module(ApiKey.OFFSET_COMMIT)
    one = module.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    answer = await node.call(
        ApiKey.OFFSET_COMMIT, "OffsetCommitRequest", 9, group_id="group", member_id="",
        topics=(module.OffsetCommitRequestTopic(name="t", partitions=(one,)),),
    )  # fmt: skip
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(node: OneOfThree, offset: int) -> bool:
    """Commit once the coordinator has loaded, in a new millisecond; return whether the commit went alone."""
    clock: Any = node.broker.clock
    clock.advance(1)
    while True:
        error = await sent(node, offset)
        if error is not ErrorCode.coordinator_load_in_progress:
            assert error is NONE
            context = node.broker.groups.runtime.active(0)
            assert context is not None
            now_ms: int = clock.monotonic_ms()
            return context._alone_ms == now_ms
        await asyncio.sleep(0)


async def fetched(node: OneOfThree) -> int:
    module = request_module(ApiKey.OFFSET_FETCH)
    asked = module.OffsetFetchRequestTopics(name="t", partition_indexes=(0,))
    answer = await node.call(
        ApiKey.OFFSET_FETCH, "OffsetFetchRequest", 9, require_stable=False,
        groups=(module.OffsetFetchRequestGroup(group_id="group", topics=(asked,)),),
    )  # fmt: skip
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


async def loaded_again(node: OneOfThree, before: object) -> None:
    while (now := node.broker.groups.runtime.active(0)) is None or now is before:
        await asyncio.sleep(0)


async def log_comes_back(node: OneOfThree) -> None:
    replica = node.broker.replicas.get(OF_GROUPS, 0)
    assert replica is not None
    node.broker.groups.came_online(node.image, [replica.tip])


async def shard_reloads(node: OneOfThree) -> None:
    """What a write does that finds the log longer than the shard knows."""
    context = node.broker.groups.runtime.active(0)
    assert context is not None
    context._reload()


async def node_is_behind_its_image(node: OneOfThree) -> None:
    """An election is published while the change before it is still applied; commits go on meanwhile."""
    goes_on, delete = asyncio.Event(), node.logs.delete

    async def slow(tips: Any) -> None:
        await goes_on.wait()
        await delete(tips)

    await node.tell(topic("doomed", DOOMED), partition(0, ME, topic_id=DOOMED))
    node.logs.delete = slow  # type: ignore[method-assign]
    changes: list[Any] = [RemoveTopicRecord(topic_id=DOOMED)]
    changes += [changed(0, OF_GROUPS, leader=leader) for leader in (-1, ME)]
    applied = [node.publish(change) for change in changes]
    assert [await committed(node, 3) for _ in range(3)][-1]
    goes_on.set()
    for one in applied:
        await one


@pytest.mark.parametrize("happens", [log_comes_back, shard_reloads, node_is_behind_its_image])
def test_a_commit_to_a_shard_that_was_loaded_again_is_what_a_client_reads(
    tmp_path: Path, happens: Callable[[OneOfThree], Awaitable[None]]
) -> None:
    """The topics are as they were, and yet the shard is another."""

    async def scenario(node: OneOfThree) -> None:
        assert [await committed(node, offset) for offset in range(3)][-1]
        before = node.broker.groups.runtime.active(0)
        assert before is not None
        of_before = ref(before.shard.offsets)
        await happens(node)
        await loaded_again(node, before)
        assert [await committed(node, 70 + number) for number in range(3)][-1]
        assert await fetched(node) == 72
        del before
        gc.collect()
        assert of_before() is None, "a plan keeps the offsets of a shard that is gone"

    run(tmp_path, scenario, *PLACES)


def test_commits_go_alone_behind_changes_that_concern_no_topic(tmp_path: Path) -> None:
    """Each segment that goes to the bucket is a change of the metadata."""

    async def scenario(node: OneOfThree) -> None:
        assert [await committed(node, offset) for offset in range(3)][-1]
        token = node.broker.groups.topics.token
        for change in (NoOpRecord(), fenced(OTHER), RETENTION):
            await node.tell(change)
            assert await committed(node, 5)
        assert node.broker.groups.topics.token is token
        await node.tell(partition(1, ME))
        assert node.broker.groups.topics.token is not token
        assert not await committed(node, 6)
        assert await fetched(node) == 6

    run(tmp_path, scenario, *PLACES)


class Rights:
    """An authorizer that denies some names, and remembers what it would write to the audit log."""

    def __init__(self) -> None:
        self.denies: set[str] = set()
        self.written: list[tuple[str, bool]] = []

    def allows(self, session: object, operation: object, resource: object, name: str, **_: object) -> bool:
        self.written.append((name, name not in self.denies))
        return name not in self.denies

    def allowed_operations(self, session: object, resource: object, name: str) -> int:
        return 0 if name in self.denies else -1


def test_a_commit_is_audited_once_whichever_way_it_goes(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        rights = Rights()
        node.broker.authorizer = cast("Any", rights)
        clock: Any = node.broker.clock
        assert [await committed(node, offset) for offset in range(3)][-1]
        for denies, written in (
            (set(), [("group", True), ("t", True)]),
            ({"group"}, [("group", False)]),
            ({"t"}, [("group", True), ("t", False)]),
        ):
            rights.denies = denies
            for goes_on in (1, 0):  # the second of a millisecond does not go alone
                rights.written.clear()
                clock.advance(goes_on)
                await sent(node, 5)
                assert rights.written == written

    run(tmp_path, scenario, *PLACES)


def test_a_plan_lets_go_of_a_request_that_fails(tmp_path: Path) -> None:
    """Its bytes are in a buffer of the connection."""

    async def scenario(node: OneOfThree) -> None:
        rights = Rights()
        node.broker.authorizer = cast("Any", rights)
        assert [await committed(node, offset) for offset in range(3)][-1]
        plan = cast("Any", node.broker.groups.plans).find(1)
        assert len(plan._frame) == 0
        error = RequestError(ErrorCode.cluster_authorization_failed)
        rights.allowed_operations = Mock(side_effect=error)  # type: ignore[method-assign]
        with pytest.raises(RequestError):
            await sent(node, 5)
        assert len(plan._frame) == 0

    run(tmp_path, scenario, *PLACES)
