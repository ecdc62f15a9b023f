"""DeleteRecords where there are followers, and what DescribeLogDirs says of a replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.records import RemoveTopicRecord
from service.replication.leader import BrokerStatus
from service.wire.api import ApiKey, request_module
from tests.support.followers import EPOCH, SPREAD, Followed, produced
from tests.support.one_of_three import HIDDEN, OTHER, TOPIC, OneOfThree, one_of_three

NONE, TIMED_OUT = ErrorCode.none, ErrorCode.request_timed_out


class Deleted(NamedTuple):
    error: ErrorCode
    low_watermark: int


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *SPREAD) as node:
            await scenario(node)

    asyncio.run(whole())


async def filled(node: OneOfThree, number: int = 0, count: int = 5) -> Followed:
    one = Followed(node, number)
    for _ in range(count):
        await produced(node, number, acks=1)
    for replica in (OTHER, HIDDEN):
        assert (await one.fetch(replica, count)).error_code == NONE
    return one


async def deleted(node: OneOfThree, offset: int, *numbers: int, timeout_ms: int = 20_000) -> list[Deleted]:
    module = request_module(ApiKey.DELETE_RECORDS)
    asked = tuple(
        module.DeleteRecordsPartition(partition_index=number, offset=offset) for number in numbers or (0,)
    )
    answer = await node.call(
        ApiKey.DELETE_RECORDS, "DeleteRecordsRequest", 2, timeout=timedelta(milliseconds=timeout_ms),
        topics=(module.DeleteRecordsTopic(name="t", partitions=asked),),
    )  # fmt: skip
    return [Deleted(ErrorCode(one.error_code), one.low_watermark) for one in answer.topics[0].partitions]


async def begun(work: Any) -> asyncio.Task[list[Deleted]]:
    task = asyncio.create_task(work)
    await asyncio.sleep(0.1)
    assert not task.done()
    return task


@pytest.mark.parametrize("offset", [3, -1])
def test_the_answer_waits_until_all_replicas_begin_there(tmp_path: Path, offset: int) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        start = 5 if offset < 0 else offset
        task = await begun(deleted(node, offset))
        answer = await one.fetch(OTHER, 5, start=start)
        assert answer.log_start_offset == start, "so they hear of it"
        await asyncio.sleep(0.05)
        assert not task.done()
        await one.fetch(HIDDEN, 5, start=start)
        assert await task == [(NONE, start)]

    run(tmp_path, scenario)


def test_time_runs_out_for_those_that_lag_alone(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one, _ = await filled(node, 0), await filled(node, 1)
        task = await begun(deleted(node, 2, 0, 1, 2, timeout_ms=400))
        for replica in (OTHER, HIDDEN):
            await one.fetch(replica, 5, start=2)
        assert await task == [(NONE, 2), (TIMED_OUT, -1), (ErrorCode.offset_out_of_range, -1)]
        assert len(node.broker.timers.purgatory) == 0

    run(tmp_path, scenario)


def test_delete_records_does_not_wait_for_fenced_brokers(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        one.brokers[HIDDEN] = BrokerStatus(30, is_active=False, is_fenced=True)
        task = await begun(deleted(node, 2))
        await one.fetch(OTHER, 5, start=2)
        assert await task == [(NONE, 2)]

    run(tmp_path, scenario)


def test_delete_records_waits_for_brokers_that_shut_down(tmp_path: Path) -> None:
    """It fetches as long as it lives (Kafka 4.3.1 asks whether a broker is fenced, nothing else)."""

    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        one.brokers[HIDDEN] = BrokerStatus(30, is_active=False)
        task = await begun(deleted(node, 2))
        await one.fetch(OTHER, 5, start=2)
        await asyncio.sleep(0.05)
        assert not task.done()
        await one.fetch(HIDDEN, 5, start=2)
        assert await task == [(NONE, 2)]

    run(tmp_path, scenario)


def test_delete_records_stops_waiting_for_a_broker_that_is_fenced(tmp_path: Path) -> None:
    """Its metadata says nothing of the partition where it was not in sync."""

    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        await one.fetch(OTHER, 5, start=2)
        task = await begun(deleted(node, 2))
        one.brokers[HIDDEN] = BrokerStatus(30, is_active=False, is_fenced=True)
        one.partition.reevaluate()
        assert await asyncio.wait_for(task, 5) == [(NONE, 2)]

    run(tmp_path, scenario)


@pytest.mark.parametrize("change", ["deposed", "deleted", "offline", "alone"])
def test_changes_of_the_partition_end_a_waiting_delete_records(tmp_path: Path, change: str) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        task = await begun(deleted(node, 2))
        if change == "deposed":
            one.partition.follow(EPOCH + 1)
            expected = Deleted(ErrorCode.not_leader_or_follower, -1)
        elif change == "deleted":
            await node.tell(RemoveTopicRecord(topic_id=TOPIC))
            expected = Deleted(ErrorCode.unknown_topic_or_partition, -1)
        elif change == "offline":
            node.broker.replicas.take_offline(one.partition.tip, "the disk is gone")
            expected = Deleted(ErrorCode.kafka_storage_error, -1)
        else:
            one.partition.lead(EPOCH + 1, None)
            expected = Deleted(NONE, 2)
        assert await asyncio.wait_for(task, 5) == [expected]

    run(tmp_path, scenario)


def test_a_leader_deposed_before_the_wait_answers_not_leader(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        task = asyncio.create_task(deleted(node, 2))
        while one.partition.start_offset < 2:
            await asyncio.sleep(0)
        one.partition.follow(EPOCH + 1)
        assert await task == [(ErrorCode.not_leader_or_follower, -1)]

    run(tmp_path, scenario)


def test_nothing_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        await filled(node)
        await produced(node, 0, acks=1)
        assert await deleted(node, 6) == [(ErrorCode.offset_out_of_range, -1)]

    run(tmp_path, scenario)


def test_a_session_that_waits_hears_of_a_new_start_with_its_next_answer(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        answer = await one.fetch_all(OTHER, 5, session_epoch=0)
        number = answer.session_id
        task = await begun(deleted(node, 2))
        answer = await one.fetch_all(OTHER, topics=(), session_id=number, session_epoch=1)
        (told,) = answer.responses[0].partitions
        assert told.log_start_offset == 2
        await one.fetch_all(OTHER, 5, start=2, session_id=number, session_epoch=2)
        await one.fetch(HIDDEN, 5, start=2)
        assert await task == [(NONE, 2)]

    run(tmp_path, scenario)


def test_replicas_tell_their_size_and_lag(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = await filled(node)
        await produced(node, 0, acks=1)
        for leads in (True, False):
            if not leads:
                one.partition.follow(EPOCH + 1)
            answer = await node.call(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirsRequest", 4, topics=None)
            (topic,) = answer.results[0].topics
            found = {part.partition_index: part for part in topic.partitions}
            assert (found[0].partition_size, found[0].offset_lag) == (one.partition.log.size, 0)
        one.partition.high_watermark = 9  # of a leader that is ahead
        answer = await node.call(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirsRequest", 4, topics=None)
        found = {part.partition_index: part for part in answer.results[0].topics[0].partitions}
        assert found[0].offset_lag == 3

    run(tmp_path, scenario)
