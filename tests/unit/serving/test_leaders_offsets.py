"""ListOffsets and OffsetForLeaderEpoch of a leader with followers: visibility of uncommitted offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.config.settings import LogConfig
from service.records.batch import read_header
from service.records.builder import BatchBuilder
from service.records.validation import ValidatedBatch
from service.wire.api import ApiKey, request_module
from tests.support.followers import EPOCH, SPREAD, Followed, produced
from tests.support.one_of_three import OTHER, OneOfThree, moved, one_of_three
from tests.support.world import START_MS
from tests.unit.hot.erasures import erase, order_of

NONE, NOT_LEADER = ErrorCode.none, ErrorCode.not_leader_or_follower
NOT_AVAILABLE = ErrorCode.offset_not_available
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
CONSUMER, DEBUGGING = -1, -2


class Listed(NamedTuple):
    error: ErrorCode
    offset: int


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *SPREAD) as node:
            await scenario(node)

    asyncio.run(whole())


async def listed(
    node: OneOfThree, timestamp: int, replica: int = CONSUMER, epoch: int = -1, version: int = 9
) -> Listed:
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
    answer = await node.call(
        ApiKey.LIST_OFFSETS, "ListOffsetsRequest", version, replica_id=replica, isolation_level=0,
        timeout=timedelta(0), topics=(module.ListOffsetsTopic(name="t", partitions=(asked,)),),
    )  # fmt: skip
    found = answer.topics[0].partitions[0]
    return Listed(ErrorCode(found.error_code), found.offset)


def test_consumers_are_told_of_what_is_committed_and_replicas_of_all(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        for _ in range(4):
            await produced(node, 0, acks=1)
        one.has(2)
        assert await listed(node, LATEST) == (NONE, 2)
        assert await listed(node, LATEST, OTHER) == (NONE, 4)
        assert await listed(node, LATEST, DEBUGGING) == (NONE, 4)
        assert await listed(node, EARLIEST) == (NONE, 0)
        assert await listed(node, START_MS) == (NONE, 0)
        assert await listed(node, MAX_TIMESTAMP) == (NONE, 0)

    run(tmp_path, scenario)


def test_the_newest_record_is_found_though_an_erasure_has_taken_a_newer_one(tmp_path: Path) -> None:
    """What is left of a batch keeps the greatest timestamp that it had."""

    async def scenario(node: OneOfThree) -> None:
        log = Followed(node).partition.log
        times = [30, 70, 40, 90, 50, 20]
        for at, time in enumerate(times):
            builder = BatchBuilder()
            builder.add(START_MS + time, b"gone" if at in (1, 3) else b"kept", b"v")
            data = memoryview(builder.build())
            log.append(ValidatedBatch(data, read_header(data), START_MS + time, 0, 1), EPOCH, START_MS)
        assert await listed(node, MAX_TIMESTAMP, DEBUGGING) == (NONE, 3)
        await asyncio.to_thread(erase, log, order_of(b"gone", end=6))
        assert await listed(node, MAX_TIMESTAMP, DEBUGGING) == (NONE, 4)
        assert await listed(node, START_MS + 50, DEBUGGING) == (NONE, 4)
        assert await listed(node, START_MS + 51, DEBUGGING) == (NONE, -1)
        await asyncio.to_thread(erase, log, order_of(b"kept", end=6, order_id=UUID(int=40)))
        assert await listed(node, MAX_TIMESTAMP, DEBUGGING) == (NONE, -1)

    run(tmp_path, scenario)


def test_offsets_above_the_high_watermark_are_hidden_from_consumers(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await produced(node, 0, acks=1)
        assert await listed(node, START_MS) == (NONE, -1)
        assert await listed(node, MAX_TIMESTAMP) == (NONE, -1)
        assert await listed(node, START_MS, OTHER) == (NONE, 0)
        one.has(1)
        assert await listed(node, START_MS) == (NONE, 0)
        assert await listed(node, START_MS + 1) == (NONE, -1)

    run(tmp_path, scenario)


def test_the_first_offset_that_is_not_in_the_bucket_is_told_as_far_as_it_is_committed(tmp_path: Path) -> None:
    """Kafka's `ReplicaManager.fetchOffset`: what lies at the end that is seen is no offset."""

    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        one.partition.configure(LogConfig(remote_storage_enable=True))
        assert await listed(node, PENDING_UPLOAD, version=11) == (NONE, -1)
        assert await listed(node, PENDING_UPLOAD, OTHER, version=11) == (NONE, -1)
        for _ in range(4):
            await produced(node, 0, acks=1)
        assert await listed(node, PENDING_UPLOAD, version=11) == (NONE, -1)
        assert await listed(node, PENDING_UPLOAD, OTHER, version=11) == (NONE, 0)
        one.has(2)
        assert await listed(node, PENDING_UPLOAD, version=11) == (NONE, 0)
        Followed(node, high_watermark=0)
        assert await listed(node, PENDING_UPLOAD, version=11) == (NOT_AVAILABLE, -1)
        assert await listed(node, PENDING_UPLOAD, OTHER, version=11) == (NONE, 0)

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [4, 5, 9])
def test_a_new_leader_says_when_it_does_not_know_yet(tmp_path: Path, version: int) -> None:
    async def scenario(node: OneOfThree) -> None:
        for _ in range(4):
            await produced(node, 0, acks=1)
        one = Followed(node, high_watermark=2)
        expected = NOT_AVAILABLE if version >= 5 else ErrorCode.leader_not_available
        assert await listed(node, LATEST, version=version) == (expected, -1)
        assert await listed(node, START_MS, version=version) == (NONE, 0)
        assert await listed(node, START_MS + 1, version=version) == (expected, -1)
        assert await listed(node, EARLIEST, version=version) == (NONE, 0)
        assert await listed(node, LATEST, OTHER, version=version) == (NONE, 4)
        if version == 9:
            assert await listed(node, EARLIEST_LOCAL) == (NONE, 0)
            assert await listed(node, LATEST_TIERED) == (NONE, -1)
        one.has(3)
        assert (await listed(node, LATEST, version=version)).error is expected
        one.has(4)
        assert await listed(node, LATEST, version=version) == (NONE, 4)
        assert await listed(node, START_MS + 1, version=version) == (NONE, -1)

    run(tmp_path, scenario)


@pytest.mark.parametrize("change", ["deposed", "gone"])
def test_a_leader_deposed_during_a_search_returns_no_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """What it did not know to be committed may be there all the same."""

    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await produced(node, 0, acks=1)
        search, looks, goes_on = node.broker.search_thread, asyncio.Event(), asyncio.Event()

        async def slow(look: Callable[[], Any]) -> Any:
            looks.set()
            await goes_on.wait()
            return await search(look)

        monkeypatch.setattr(node.broker, "search_thread", slow)
        asked = asyncio.create_task(listed(node, START_MS))
        await looks.wait()
        if change == "deposed":
            one.partition.follow(EPOCH + 1)
        else:
            await node.tell(moved(0, OTHER))
        goes_on.set()
        assert await asked == (NOT_LEADER, -1)

    run(tmp_path, scenario)


def test_a_follower_answers_only_debugging_consumers(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await produced(node, 0, acks=1)
        one.partition.follow(EPOCH + 1)
        assert await listed(node, LATEST) == (NOT_LEADER, -1)
        assert await listed(node, LATEST, OTHER) == (NOT_LEADER, -1)
        assert await listed(node, LATEST, DEBUGGING) == (NONE, 1)
        assert await listed(node, LATEST, DEBUGGING, epoch=EPOCH) == (ErrorCode.fenced_leader_epoch, -1)

    run(tmp_path, scenario)


def test_an_epoch_ends_where_the_log_does_committed_or_not(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        Followed(node)
        for _ in range(3):
            await produced(node, 0, acks=1)
        module = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        asked = module.OffsetForLeaderPartition(partition=0, current_leader_epoch=EPOCH, leader_epoch=EPOCH)
        for replica in (-1, OTHER):
            answer = await node.call(
                ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpochRequest", 4, replica_id=replica,
                topics=(module.OffsetForLeaderTopic(topic="t", partitions=(asked,)),),
            )  # fmt: skip
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.leader_epoch, found.end_offset) == (NONE, EPOCH, 3)

    run(tmp_path, scenario)
