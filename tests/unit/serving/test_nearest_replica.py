"""KIP-392: consumers read from any replica, and the leader tells them of one that is near."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.network.request import RequestContext
from service.records.batch import iter_headers
from service.replication.leader import Leadership
from service.replication.selectors import of_the_rack
from service.security.session import anonymous
from service.serving.handlers.fetch import handle
from service.wire.api import ApiKey, decode_response, request_module
from service.wire.fetch import FetchPartition, FetchRequestView
from tests.support.followers import ALL_THREE, EPOCH, SPREAD, Followed, produced
from tests.support.one_of_three import INSIDE, ME, OTHER, TOPIC, OneOfThree, one_of_three

NONE, NOT_LEADER = ErrorCode.none, ErrorCode.not_leader_or_follower


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *SPREAD) as node:
            await scenario(node)

    asyncio.run(whole())


def offsets(answer: Any) -> list[int]:
    return [one.base_offset for one in iter_headers(memoryview(answer.records or b""))]


async def fetch(node: OneOfThree, offset: int = 0, *, wait_ms: int = 0, **how: Any) -> Any:
    """A consumer's: the whole answer."""
    module = request_module(ApiKey.FETCH)
    asked = module.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20,
        current_leader_epoch=how.pop("epoch", -1), last_fetched_epoch=how.pop("last_fetched_epoch", -1),
    )  # fmt: skip
    fields = {
        "max_wait": timedelta(milliseconds=wait_ms), "min_bytes": 1, "forgotten_topics_data": (),
        "topics": (module.FetchTopic(partitions=(asked,), topic_id=TOPIC),), **how,
    }  # fmt: skip
    listener = fields.pop("listener", INSIDE)
    return await node.call(ApiKey.FETCH, "FetchRequest", 17, listener, **fields)


async def asked(node: OneOfThree, offset: int = 0, **how: Any) -> Any:
    return (await fetch(node, offset, **how)).responses[0].partitions[0]


def test_a_follower_answers_up_to_the_mark_it_was_told(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        for _ in range(4):
            await produced(node, 0, acks=1)
        one.partition.follow(EPOCH + 1)
        one.partition.set_follower_high_watermark(2)
        answer = await asked(node)
        assert (ErrorCode(answer.error_code), offsets(answer), answer.high_watermark) == (NONE, [0, 1], 2)
        answer = await asked(node, 3)
        assert (answer.error_code, offsets(answer)) == (NONE, []), "it may be committed, and not known here"
        assert (await asked(node, 5)).error_code == ErrorCode.offset_out_of_range
        task = asyncio.create_task(asked(node, 2, wait_ms=20_000))
        await asyncio.sleep(0.05)
        assert not task.done()
        one.partition.set_follower_high_watermark(4)
        answer = await asyncio.wait_for(task, 5)
        assert (offsets(answer), answer.high_watermark) == ([2, 3], 4)
        assert (await asked(node, epoch=EPOCH)).error_code == ErrorCode.fenced_leader_epoch
        assert (await asked(node, epoch=EPOCH + 2)).error_code == ErrorCode.unknown_leader_epoch
        assert (await asked(node, epoch=EPOCH + 1)).error_code == NONE

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [4, 10, 11, 12])
def test_fetches_of_versions_before_kip_392_are_refused_by_followers(tmp_path: Path, version: int) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        one.partition.follow(EPOCH + 1)
        context = RequestContext(1, "127.0.0.1", 50_000, INSIDE, anonymous("127.0.0.1", INSIDE))
        context.api_version = version
        asks = FetchPartition(0, -1, 0, -1, -1, 1 << 20)
        request = FetchRequestView(-1, -1, 0, 1, 1 << 20, 0, 0, -1, [("t", [asks])], [], "", None)
        response: Any = handle(node.broker, context, request)
        frame = bytearray(b"".join(response.parts))[4:]
        answer = decode_response(ApiKey.FETCH, version, frame)[1].responses[0].partitions[0]
        assert ErrorCode(answer.error_code) is (NONE if version >= 11 else NOT_LEADER)

    run(tmp_path, scenario)


def test_an_offset_below_the_start_is_out_of_range_whatever_was_read_last(tmp_path: Path) -> None:
    """A consumer that cut its log where the leader's left it would find nothing there (Kafka
    `Partition.readRecords`)."""

    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        for _ in range(4):
            await produced(node, 0, acks=1)
        one.has(4)
        one.partition.lead(EPOCH + 2, None)
        one.partition.delete_records(3)
        answer = await asked(node, 3, last_fetched_epoch=EPOCH + 1)
        assert (answer.error_code, answer.diverging_epoch.epoch) == (NONE, EPOCH)
        answer = await asked(node, 2, last_fetched_epoch=EPOCH + 1)
        assert (answer.error_code, answer.diverging_epoch.epoch) == (ErrorCode.offset_out_of_range, -1)

    run(tmp_path, scenario)


def test_a_replica_that_has_no_other_is_led_or_silent(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        one.partition.lead(EPOCH + 1, None)
        one.partition.follow(EPOCH + 2)
        assert (await asked(node)).error_code == NOT_LEADER
        one.partition.set_follower_high_watermark(0)
        assert (await asked(node)).error_code == NONE

    run(tmp_path, scenario)


def test_the_leader_sends_a_consumer_to_its_rack(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        for _ in range(3):
            await produced(node, 0, acks=1)
        one.has(2)
        rack = node.image.brokers[OTHER].rack
        assert rack
        answer = await asked(node, rack_id=rack)
        assert (answer.preferred_read_replica, offsets(answer)) == (-1, [0, 1]), "nobody selects"
        node.broker.replica_selector = lambda rack, leader, candidates: leader
        assert (await asked(node, rack_id=rack)).preferred_read_replica == -1
        node.broker.replica_selector = of_the_rack
        answer = await asked(node, rack_id=rack, wait_ms=20_000)
        assert (answer.error_code, answer.preferred_read_replica) == (NONE, OTHER)
        assert (offsets(answer), answer.high_watermark, answer.log_start_offset) == ([], 2, 0)
        for how in ({}, {"rack_id": "nowhere"}, {"rack_id": node.image.brokers[ME].rack}):
            answer = await asked(node, **how)
            assert (answer.preferred_read_replica, offsets(answer)) == (-1, [0, 1])
        assert (await asked(node, 3, rack_id=rack)).preferred_read_replica == -1, "it has not got that far"
        answer = await asked(node, rack_id=rack, epoch=EPOCH + 1)
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.unknown_leader_epoch, -1)
        assert (await one.fetch(OTHER, 2, rack_id=rack)).preferred_read_replica == -1, "a replica's"
        one.partition.happened(one.leading.image(Leadership(EPOCH, 10, ALL_THREE, (ME,)), 0))
        assert (await asked(node, rack_id=rack)).preferred_read_replica == -1, "it is not in sync"

    run(tmp_path, scenario)


def test_the_session_of_a_consumer_is_told_so_as_well(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await produced(node, 0, acks=1)
        one.has(1)
        node.broker.replica_selector = of_the_rack
        answer = await fetch(node, session_epoch=0)
        assert answer.responses[0].partitions[0].preferred_read_replica == -1
        rack = node.image.brokers[OTHER].rack
        answer = await fetch(
            node, 1, session_id=answer.session_id, session_epoch=1, rack_id=rack, wait_ms=20_000
        )
        assert answer.responses[0].partitions[0].preferred_read_replica == OTHER

    run(tmp_path, scenario)
