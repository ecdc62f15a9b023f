"""A leader that sends no more to replicas out of sync than its quota allows (KIP-73)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.metadata.controller.requests import ResourceType
from service.metadata.records import ConfigRecord, RemoveTopicRecord
from service.replication.throttle import UNLIMITED
from tests.support.followers import Followed
from tests.support.one_of_three import HIDDEN, ME, OTHER, TOPIC, OneOfThree
from tests.unit.serving.test_replica_fetch import NONE, Session, append, offsets, run, settle

BEHIND = (ME, HIDDEN)
"""In sync: OTHER is not."""
LONG_MS = 20_000


def replicas(text: str | None) -> ConfigRecord:
    key = "leader.replication.throttled.replicas"
    return ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=key, value=text)


def rate(bytes_per_s: int | None, broker: str = str(ME)) -> ConfigRecord:
    text = None if bytes_per_s is None else str(bytes_per_s)
    key = "leader.replication.throttled.rate"
    return ConfigRecord(resource_type=ResourceType.BROKER, resource_name=broker, name=key, value=text)


def exceed(node: OneOfThree, for_ms: int) -> None:
    """Partition 0 is throttled, at 1000 bytes per second, and so much has been sent."""
    throttle = node.broker.leader_throttle
    assert throttle is not None
    throttle.mark("t", [f"0:{ME}"])
    throttle.limit(1_000)
    throttle.quota.record(for_ms, node.broker.clock.monotonic_ms())


def advance(node: OneOfThree, ms: int) -> None:
    clock: Any = node.broker.clock
    clock.advance(ms)


def test_out_of_sync_replicas_get_no_records_over_the_quota(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        held, free = Followed(node, 0, isr=BEHIND), Followed(node, 1, isr=BEHIND)
        await append(held, 3)
        await append(free, 3)
        exceed(node, 5_000)
        answer = await held.fetch(OTHER, 1)
        assert (answer.error_code, offsets(answer), answer.high_watermark) == (NONE, [], 0)
        assert held.of(OTHER).end_offset == 1, "what it says of itself counts"
        assert offsets(await held.fetch(HIDDEN, 0)) == [0, 1, 2], "it is in sync"
        assert offsets(await free.fetch(OTHER, 0)) == [0, 1, 2], "it is not throttled"
        advance(node, 11_000)
        assert offsets(await held.fetch(OTHER, 1)) == [1, 2]

    run(tmp_path, scenario)


def test_bytes_to_throttled_replicas_count_in_sync_or_not(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        held, free = Followed(node, 0, isr=BEHIND), Followed(node, 1, isr=BEHIND)
        await append(held)
        await append(free)
        throttle = node.broker.leader_throttle
        assert throttle is not None
        throttle.mark("t", ["*"])
        size = len((await held.fetch(OTHER, 0)).records)
        assert throttle.quota.recorded == size > 0
        await held.fetch(HIDDEN, 0)
        assert throttle.quota.recorded == 2 * size
        throttle.mark("t", [f"0:{ME}"])
        await free.fetch(OTHER, 0)
        await node.fetch(0)
        assert throttle.quota.recorded == 2 * size, "neither others nor consumers count"

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_session", [True, False])
def test_a_fetch_that_is_held_back_is_answered_when_the_quota_allows(
    tmp_path: Path, is_session: bool
) -> None:
    async def scenario(node: OneOfThree) -> None:
        held = Followed(node, 0, isr=BEHIND)
        await append(held)
        session = Session([held])
        if is_session:
            await session.fetch({0: 1})
            await append(held)
        else:
            await append(held)
        exceed(node, 1_100)
        waking = asyncio.create_task(
            session.fetch({}, wait_ms=LONG_MS) if is_session else held.fetch(OTHER, 1, wait_ms=LONG_MS)
        )
        await settle()
        assert not waking.done()
        advance(node, 1_100)
        answer: Any = await asyncio.wait_for(waking, 10)
        assert offsets(answer[0] if is_session else answer) == [1]

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_session", [True, False])
def test_bytes_that_may_not_be_sent_are_no_reason_to_look_again(tmp_path: Path, is_session: bool) -> None:
    async def scenario(node: OneOfThree) -> None:
        held, free = Followed(node, 0, isr=BEHIND), Followed(node, 1, isr=BEHIND)
        session = Session([held, free])
        if is_session:
            await session.fetch({0: 0, 1: 0})
        await append(held)
        exceed(node, 10_000)
        waiting = asyncio.create_task(
            session.fetch({}, wait_ms=LONG_MS) if is_session else held.fetch(OTHER, 0, wait_ms=LONG_MS)
        )
        await settle()
        looked = node.broker.metrics.wait.snapshot()
        for _ in range(3):
            await append(held)
            await settle()
        assert not waiting.done()
        assert node.broker.metrics.wait.snapshot() == looked, "it slept all the time"
        if is_session:
            await append(free)
            found = await asyncio.wait_for(waiting, 10)
            assert {n: offsets(one) for n, one in found.items() if offsets(one)} == {1: [0]}
            advance(node, 11_000)
            found = await session.fetch({1: 1}, wait_ms=LONG_MS)
            assert offsets(found[0]) == [0, 1, 2, 3], "nothing is lost"
        waiting.cancel()
        await asyncio.wait({waiting})

    run(tmp_path, scenario)


def test_one_that_is_caught_up_and_throttled_is_woken_by_the_next_record(tmp_path: Path) -> None:
    """Held back is only who misses something: the mark of an earlier look does not stay."""

    async def scenario(node: OneOfThree) -> None:
        held = Followed(node, 0, isr=BEHIND)
        session = Session([held])
        await append(held)
        exceed(node, 1_100)
        assert offsets((await session.fetch({0: 0}))[0]) == []
        advance(node, 5_000)
        assert offsets((await session.fetch({}))[0]) == [0]
        waiting = asyncio.create_task(session.fetch({0: 1}, wait_ms=LONG_MS))
        await settle()
        assert not waiting.done()
        await append(held)
        assert offsets((await asyncio.wait_for(waiting, 10))[0]) == [1]

    run(tmp_path, scenario)


@pytest.mark.parametrize("change", [[replicas(None)], [replicas("1:1,0:2")], [rate(None)], [rate(10**9)]])
def test_a_throttled_fetch_is_answered_when_the_throttle_is_removed(
    tmp_path: Path, change: list[ConfigRecord]
) -> None:
    async def scenario(node: OneOfThree) -> None:
        await node.tell(replicas("0:1"), rate(1_000))
        held = Followed(node, 0, isr=BEHIND)
        await append(held)
        throttle = node.broker.leader_throttle
        assert throttle is not None
        assert throttle.quota.bytes_per_s == 1_000
        throttle.quota.record(10_000, node.broker.clock.monotonic_ms())
        waiting = asyncio.create_task(held.fetch(OTHER, 0, wait_ms=LONG_MS))
        await settle()
        assert not waiting.done()
        await node.tell(*change)
        assert offsets(await asyncio.wait_for(waiting, 10)) == [0]

    run(tmp_path, scenario)


def test_a_brokers_own_bound_goes_before_that_of_all_and_others_do_not_count(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        throttle = node.broker.leader_throttle
        assert throttle is not None
        assert throttle.quota.bytes_per_s == UNLIMITED
        await node.tell(rate(7, broker=""), rate(5, broker=str(OTHER)))
        assert throttle.quota.bytes_per_s == 7
        await node.tell(rate(9))
        assert throttle.quota.bytes_per_s == 9
        await node.tell(rate(None))
        assert throttle.quota.bytes_per_s == 7
        await node.tell(rate(None, broker=""))
        assert throttle.quota.bytes_per_s == UNLIMITED

    run(tmp_path, scenario)


def test_a_topic_that_goes_leaves_no_throttle_behind(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        await node.tell(replicas("*"))
        throttle = node.broker.leader_throttle
        tip = Followed(node, 0).partition.tip
        assert throttle is not None
        assert throttle.covers(tip)
        await node.tell(RemoveTopicRecord(topic_id=TOPIC))
        assert not throttle.covers(tip)

    run(tmp_path, scenario)
