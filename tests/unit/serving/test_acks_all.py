"""acks=all with followers: the response comes when the records are committed or have failed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.turn_queues import SliceClock
from service.metadata.records import RemoveTopicRecord
from service.network.request import PendingResponse, RequestContext
from service.replication.leader import BrokerStatus, Leadership
from service.security.session import anonymous
from service.serving.delayed_produce import DelayedProduce
from service.wire.api import ApiKey
from tests.support.followers import ALL_THREE, EPOCH, SPREAD, Followed, produce_message, produced
from tests.support.one_of_three import HIDDEN, ME, OTHER, OUTSIDE, TOPIC, OneOfThree, changed, one_of_three

NONE, NOT_LEADER, TIMED_OUT = ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *SPREAD) as node:
            await scenario(node)

    asyncio.run(whole())


async def begun(node: OneOfThree, *numbers: int, **how: Any) -> asyncio.Task[list[Any]]:
    """A request that was appended, and waits."""
    task = asyncio.create_task(produced(node, *numbers, **how))
    await settle()
    assert not task.done()
    return task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def waits() -> set[int]:
    """The ids of all waits that there are in this process."""
    return {id(known) for known in gc.get_objects() if isinstance(known, DelayedProduce)}


def codes(answers: list[Any]) -> list[ErrorCode]:
    return [ErrorCode(one.error_code) for one in answers]


def test_the_answer_waits_until_all_in_sync_have_it(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = await begun(node, 0)
        one.has(1, OTHER)
        await settle()
        assert not task.done()
        one.has(1, HIDDEN)
        (answer,) = await task
        assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (NONE, 0, 0)

    run(tmp_path, scenario)


def test_pipelined_produces_of_a_connection_get_their_own_responses(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        context = RequestContext(1, "127.0.0.1", 50_000, OUTSIDE, anonymous("127.0.0.1", OUTSIDE))
        tasks = [await begun(node, 0, context=context, version=version) for version in (13, 13, 13)]
        assert one.partition.log.log_end_offset == 3
        one.has(2)
        await settle()
        assert [task.done() for task in tasks] == [True, True, False]
        one.partition.follow(EPOCH + 1)
        answers = [(await task)[0] for task in tasks]  # whose correlation ids are looked at
        assert [answer.base_offset for answer in answers] == [0, 1, 2]
        assert codes(answers) == [NONE, NONE, NOT_LEADER]

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_pressed", [False, True])
def test_the_next_one_waits_where_a_disk_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pressed: bool
) -> None:
    monkeypatch.setattr(SliceClock, "is_over", lambda _: False)  # however slow the machine is

    async def scenario(node: OneOfThree) -> None:
        Followed(node), Followed(node, 1)
        node.broker.disks.is_pressed = is_pressed
        answer = node.handle(ApiKey.PRODUCE, produce_message(0, 1), 13)
        assert isinstance(answer, PendingResponse)
        assert answer.weight == (0 if is_pressed else 2)

    run(tmp_path, scenario)


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1_do_not_wait(tmp_path: Path, acks: int) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        if acks:
            assert codes(await produced(node, 0, acks=acks)) == [NONE]
        else:
            with pytest.raises(TypeError):
                await produced(node, 0, acks=acks)  # there is no answer
        assert (one.partition.log.log_end_offset, one.partition.high_watermark) == (1, 0)

    run(tmp_path, scenario)


def test_a_leader_alone_in_sync_answers_at_once(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        Followed(node, isr=(ME,), min_isr=1)
        assert codes(await produced(node, 0)) == [NONE]
        assert len(node.broker.timers.purgatory) == 0

    run(tmp_path, scenario)


def test_each_partition_has_its_outcome_and_the_answer_waits_for_the_last(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one, other = Followed(node, 0), Followed(node, 1)
        task = await begun(node, 0, 1, 2, 7)
        one.has(1)
        await settle()
        assert not task.done()
        other.partition.follow(EPOCH + 1)
        answers = await task
        assert codes(answers) == [NONE, NOT_LEADER, NONE, ErrorCode.unknown_topic_or_partition]
        assert answers[1].base_offset == 0, "it was appended"
        leader = answers[1].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (ME, EPOCH), "as far as the metadata says"

    run(tmp_path, scenario)


def test_time_runs_out_for_those_that_wait_alone(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one, other = Followed(node, 0), Followed(node, 1)
        task = await begun(node, 0, 1, timeout_ms=100)
        one.has(1)
        began = asyncio.get_running_loop().time()
        assert codes(await task) == [NONE, TIMED_OUT]
        assert asyncio.get_running_loop().time() - began < 5
        other.has(1)
        assert other.partition.high_watermark == 1, "late, but committed"
        assert len(node.broker.timers.purgatory) == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize("end", [NONE, NOT_LEADER, TIMED_OUT])
def test_nothing_of_an_answered_request_is_left_to_the_collector(tmp_path: Path, end: ErrorCode) -> None:
    """A node collects its whole heap seldom: cycles of each request would be most of its memory."""

    async def scenario(node: OneOfThree) -> None:
        one, others = Followed(node), waits()
        gc.disable()
        try:
            for number in range(1, 4):
                task = await begun(node, 0, timeout_ms=20 if end is TIMED_OUT else 30_000)
                if end is NONE:
                    one.has(number)
                elif end is NOT_LEADER:
                    one.partition.follow(EPOCH + number)
                assert codes(await task) == [end]
                del task
                if end is NOT_LEADER:
                    break
            await settle()
            assert waits() <= others
        finally:
            gc.enable()

    run(tmp_path, scenario)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_no_time_is_no_wait(tmp_path: Path, timeout_ms: int) -> None:
    async def scenario(node: OneOfThree) -> None:
        Followed(node)
        assert codes(await produced(node, 0, timeout_ms=timeout_ms)) == [TIMED_OUT]

    run(tmp_path, scenario)


def test_the_longest_time_there_is(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = await begun(node, 0, timeout_ms=2**31 - 1)
        one.has(1)
        assert codes(await task) == [NONE]

    run(tmp_path, scenario)


def test_below_the_minimum_nothing_is_written(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node, isr=(ME,), min_isr=2)
        assert codes(await produced(node, 0)) == [ErrorCode.not_enough_replicas]
        assert one.partition.log.log_end_offset == 0
        assert codes(await produced(node, 0, acks=1)) == [NONE]

    run(tmp_path, scenario)


def test_the_minimum_is_looked_at_again_when_it_is_committed(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = await begun(node, 0)
        one.has(1, OTHER)
        shape = Leadership(EPOCH, 10, ALL_THREE, (ME, OTHER))
        one.partition.configure(replace(one.partition.config, min_insync_replicas=2))
        one.partition.happened(one.leading.image(shape, 0))
        assert codes(await task) == [NONE]
        task = await begun(node, 0)
        one.partition.configure(replace(one.partition.config, min_insync_replicas=3))
        one.has(2, OTHER)
        await settle()
        assert not task.done(), "nothing is committed while too few are in sync"
        one.partition.follow(EPOCH + 1)
        assert codes(await task) == [NOT_LEADER]

    run(tmp_path, scenario)


def test_a_commit_by_too_few_replicas_is_reported(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node, isr=(ME, OTHER))
        await produced(node, 0, acks=1, producer_id=5, producer_epoch=0, base_sequence=0)
        one.has(1, OTHER)
        one.brokers[OTHER] = BrokerStatus(10 * OTHER, is_active=False)
        one.partition.happened(one.leading.image(Leadership(EPOCH, 10, ALL_THREE, (ME,)), 0))
        # As if it had been in sync when the first check was made.
        one.partition.check_replicas = lambda records=None: False  # type: ignore[method-assign]
        answers = await produced(node, 0, producer_id=5, producer_epoch=0, base_sequence=0)
        assert codes(answers) == [ErrorCode.not_enough_replicas_after_append]

    run(tmp_path, scenario)


def test_a_duplicate_waits_for_the_original(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        how: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        first = await begun(node, 0, **how)
        for sequence in (1, 2):
            await produced(node, 0, acks=1, **{**how, "base_sequence": sequence})
        again = await begun(node, 0, **how)
        one.has(1)
        assert codes(await first) == codes(await again) == [NONE]
        assert (await again)[0].base_offset == 0
        assert codes(await produced(node, 0, **how)) == [NONE], "it is committed already"

    run(tmp_path, scenario)


def test_answers_come_as_offsets_are_committed(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        tasks = [await begun(node, 0) for _ in range(3)]
        one.has(2)
        await settle()
        assert [task.done() for task in tasks] == [True, True, False]
        one.has(3)
        assert codes(await tasks[2]) == [NONE]

    run(tmp_path, scenario)


def test_a_topic_that_goes_meanwhile_is_unknown(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        Followed(node)
        task = await begun(node, 0)
        await node.tell(RemoveTopicRecord(topic_id=TOPIC))
        assert codes(await task) == [ErrorCode.unknown_topic_id]

    run(tmp_path, scenario)


def test_a_replica_that_goes_offline_meanwhile_is_a_storage_error(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = await begun(node, 0)
        node.broker.replicas.take_offline(one.partition.tip, "the disk is gone")
        assert codes(await task) == [ErrorCode.kafka_storage_error]

    run(tmp_path, scenario)


def test_another_leader_ends_the_wait_by_the_image(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        Followed(node)
        task = await begun(node, 0)
        await node.tell(changed(0, leader=OTHER))
        (answer,) = await task
        assert ErrorCode(answer.error_code) is NOT_LEADER
        assert answer.current_leader.leader_id == OTHER

    run(tmp_path, scenario)


def test_many_partitions_and_those_whose_disk_is_asked_wait_as_well(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one, other = Followed(node, 0), Followed(node, 1)
        one.partition.configure(replace(one.partition.config, flush_messages=1))
        task = asyncio.create_task(produced(node, 0, 1))
        await asyncio.sleep(0.2)
        assert not task.done()
        one.has(1)
        other.partition.follow(EPOCH + 1)
        assert codes(await task) == [NONE, NOT_LEADER]
        # Three hundred are more than a turn; all but the first are nobody's.
        task = asyncio.create_task(produced(node, 0, *range(3, 303)))
        await asyncio.sleep(0.2)
        assert not task.done()
        one.has(2)
        assert codes(await task) == [NONE, *[ErrorCode.unknown_topic_or_partition] * 300]

    run(tmp_path, scenario)


def test_a_cancelled_produce_leaves_no_waiter(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = await begun(node, 0)
        task.cancel()
        await settle()
        one.has(1)
        await settle()
        assert len(node.broker.timers.purgatory) == 0

    run(tmp_path, scenario)
