"""Requests for partitions that this broker leads, does not lead or has offline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.network.request import RequestContext
from service.security.session import anonymous
from service.serving.handlers import fetch as fetch_handler
from service.serving.internal_topics import OFFSETS
from service.wire.api import ApiKey, decode_response, request_module
from service.wire.fetch import FetchPartition, FetchRequestView
from tests.support.one_of_three import (
    HIDDEN,
    INSIDE,
    ME,
    OTHER,
    TOPIC,
    OneOfThree,
    changed,
    fenced,
    moved,
    partition,
    topic,
)
from tests.unit.serving.leadership import (
    MINE,
    NONE,
    NOT_LEADER,
    NOWHERE,
    OFFLINE,
    STORAGE,
    THEIRS,
    UNKNOWN,
    fetched,
    produced,
    run,
)


async def listed(node: OneOfThree, number: int, name: str = "t", epoch: int = -1) -> ErrorCode:
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=number, current_leader_epoch=epoch, timestamp=-1)
    answer = await node.call(
        ApiKey.LIST_OFFSETS, "ListOffsetsRequest", 9, replica_id=-1, isolation_level=0, timeout=timedelta(0),
        topics=(module.ListOffsetsTopic(name=name, partitions=(asked,)),),
    )  # fmt: skip
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def epoch_end(node: OneOfThree, number: int, name: str = "t", epoch: int = -1) -> ErrorCode:
    module = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    asked = module.OffsetForLeaderPartition(partition=number, current_leader_epoch=epoch, leader_epoch=0)
    answer = await node.call(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpochRequest", 4,
        topics=(module.OffsetForLeaderTopic(topic=name, partitions=(asked,)),),
    )  # fmt: skip
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def deleted(node: OneOfThree, number: int, name: str = "t") -> ErrorCode:
    module = request_module(ApiKey.DELETE_RECORDS)
    asked = module.DeleteRecordsPartition(partition_index=number, offset=0)
    answer = await node.call(
        ApiKey.DELETE_RECORDS, "DeleteRecordsRequest", 2, timeout=timedelta(seconds=5),
        topics=(module.DeleteRecordsTopic(name=name, partitions=(asked,)),),
    )  # fmt: skip
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def producers(node: OneOfThree, number: int, name: str = "t") -> tuple[ErrorCode, str | None]:
    module = request_module(ApiKey.DESCRIBE_PRODUCERS)
    answer = await node.call(
        ApiKey.DESCRIBE_PRODUCERS, "DescribeProducersRequest", 0,
        topics=(module.TopicRequest(name=name, partition_indexes=(number,)),),
    )  # fmt: skip
    found = answer.topics[0].partitions[0]
    return ErrorCode(found.error_code), found.error_message


async def producers_error(node: OneOfThree, number: int) -> ErrorCode:
    return (await producers(node, number))[0]


ASKED = (produced, fetched, listed, epoch_end, deleted, producers_error)


@pytest.mark.parametrize("asked", ASKED)
def test_requests_for_other_partitions_are_refused_with_a_reason(tmp_path: Path, asked: Any) -> None:
    async def scenario(node: OneOfThree) -> None:
        errors = [await asked(node, number) for number in (MINE, OFFLINE, THEIRS, NOWHERE)]
        assert errors == [NONE, STORAGE, NOT_LEADER, UNKNOWN]

    run(tmp_path, scenario)


@pytest.mark.parametrize("asked", [produced, fetched])
def test_an_id_that_no_topic_has_is_unknown(tmp_path: Path, asked: Any) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert await asked(node, 0, topic_id=UUID(int=5)) == ErrorCode.unknown_topic_id

    run(tmp_path, scenario)


def test_another_nodes_producers_are_not_described(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert await producers(node, THEIRS) == (NOT_LEADER, None)
        assert await producers(node, 0, "nowhere") == (
            UNKNOWN,
            "This server does not host this topic-partition.",
        )

    run(tmp_path, scenario)


@pytest.mark.parametrize("asked", [produced, fetched, listed, epoch_end, deleted])
def test_a_leaderless_replica_refuses_until_it_is_elected(tmp_path: Path, asked: Any) -> None:
    """As while this broker is fenced."""

    async def scenario(node: OneOfThree) -> None:
        assert await asked(node, MINE) == NONE
        await node.tell(fenced(ME), changed(MINE, leader=-1))
        assert await asked(node, MINE) == NOT_LEADER
        assert await producers_error(node, MINE) == NONE  # any replica can say that
        replica = node.broker.replicas.get(TOPIC, MINE)
        assert replica is not None
        assert replica.leader_epoch == 1
        assert not replica.is_leader
        await node.tell(fenced(ME, back=True), changed(MINE, leader=ME))
        assert await asked(node, MINE) == NONE
        assert node.broker.replicas.get(TOPIC, MINE) is replica

    run(tmp_path, scenario, topic(), partition(MINE, ME))


@pytest.mark.parametrize("asked", [fetched, listed, epoch_end])
def test_the_leader_epoch_is_checked_before_the_leadership(tmp_path: Path, asked: Any) -> None:
    name = "current_leader_epoch" if asked is fetched else "epoch"

    async def scenario(node: OneOfThree) -> None:
        await node.tell(changed(MINE, leader=-1))
        errors = [await asked(node, MINE, **{name: epoch}) for epoch in (0, 1, 2)]
        assert errors == [ErrorCode.fenced_leader_epoch, NOT_LEADER, ErrorCode.unknown_leader_epoch]

    run(tmp_path, scenario, topic(), partition(MINE, ME))


def test_an_epoch_is_in_the_log_only_where_this_node_led_in_it(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        await node.produce(MINE)
        await node.tell(changed(MINE, leader=-1))
        await node.tell(changed(MINE, leader=ME))
        replica = node.broker.replicas.get(TOPIC, MINE)
        assert replica is not None
        assert [(one[0], one[1]) for one in replica.log.epochs.entries] == [(0, 0), (2, 1)]

    run(tmp_path, scenario, topic(), partition(MINE, ME))


@pytest.mark.parametrize("acks", [1, -1, 2])
def test_acks_and_replicas_are_looked_at_in_kafkas_order(tmp_path: Path, acks: int) -> None:
    async def scenario(node: OneOfThree) -> None:
        error = NOT_LEADER if acks != 2 else ErrorCode.invalid_required_acks
        await node.tell(changed(MINE, leader=-1, isr=(), eligible_leader_replicas=(ME,)))
        assert await produced(node, MINE, acks=acks) == error

    run(tmp_path, scenario, topic(), partition(MINE, ME))


def test_clients_cannot_write_to_internal_topics(tmp_path: Path) -> None:
    offsets = UUID(int=200)

    async def scenario(node: OneOfThree) -> None:
        errors = [await produced(node, number, topic_id=offsets) for number in (0, 1, 9)]
        assert errors == [ErrorCode.invalid_topic_exception] * 2 + [UNKNOWN]
        errors = [await deleted(node, number, OFFSETS) for number in (0, 1, 9)]
        assert errors == [ErrorCode.invalid_topic_exception] * 2 + [UNKNOWN]

    places = (partition(0, ME, topic_id=offsets), partition(1, OTHER, topic_id=offsets))
    run(tmp_path, scenario, topic(OFFSETS, offsets), *places)


def test_a_not_leader_response_names_the_leader_and_its_endpoint(tmp_path: Path) -> None:
    """KIP-951: the new leader and its epoch, and where it is, if the client's listener has it."""

    def leader_of(one: Any) -> tuple[int, int]:
        return one.current_leader.leader_id, one.current_leader.leader_epoch

    def places(answer: Any) -> list[tuple[int, str, int, str]]:
        return [(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]

    async def scenario(node: OneOfThree) -> None:
        there = [(OTHER, "outside-2", 9092, "rack-2")]
        answer = await node.produce(1)
        assert leader_of(answer.responses[0].partition_responses[0]) == (OTHER, 4)
        assert places(answer) == there
        answer = await node.produce(2)
        assert leader_of(answer.responses[0].partition_responses[0]) == (HIDDEN, 0)
        assert places(answer) == []
        answer = await node.fetch(0, 1, 2)
        partitions = answer.responses[0].partitions
        assert [one.error_code for one in partitions] == [NONE, NOT_LEADER, NOT_LEADER]
        assert [leader_of(one) for one in partitions] == [(-1, -1), (OTHER, 4), (HIDDEN, 0)]
        assert places(answer) == there
        await node.tell(changed(0, leader=-1), changed(0, leader=ME))
        answer = await node.fetch(0, current_leader_epoch=0)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.fenced_leader_epoch
        assert leader_of(answer.responses[0].partitions[0])[0] == ME
        assert places(answer) == [(ME, "outside-1", 9091, "rack-1")]
        for old in ((await node.fetch(1, version=15)), await node.fetch(9)):
            assert leader_of(old.responses[0].partitions[0]) == (-1, -1)
            assert places(old) == []

    run(
        tmp_path,
        scenario,
        topic(),
        partition(0, ME),
        partition(1, OTHER, leader_epoch=4),
        partition(2, HIDDEN),
    )


@pytest.mark.parametrize(("version", "error"), [(4, NOT_LEADER), (5, NOT_LEADER), (6, STORAGE)])
def test_a_fetch_of_an_offline_replica_is_told_so_in_words_that_its_version_knows(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    """Clients before version 6 do not know that they may try again after KAFKA_STORAGE_ERROR."""
    asked = [FetchPartition(one, -1, 0, -1, -1, 1 << 20) for one in (MINE, OFFLINE)]
    request = FetchRequestView(-1, -1, 0, 1, 1 << 20, 0, 0, -1, [("t", asked)], [], "", None)

    async def scenario(node: OneOfThree) -> None:
        context = RequestContext(1, "127.0.0.1", 50_000, INSIDE, anonymous("127.0.0.1", INSIDE))
        context.api_version = version
        response: Any = fetch_handler.handle(node.broker, context, request)
        frame = bytearray(b"".join(response.parts))[4:]
        (answers,) = decode_response(ApiKey.FETCH, version, frame)[1].responses
        assert [one.error_code for one in answers.partitions] == [NONE, error]

    run(tmp_path, scenario)


# Fetches that wait


def waiting(node: OneOfThree, *numbers: int, **fields: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(node.fetch(*numbers, max_wait=timedelta(seconds=25), **fields))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_a_fetch_that_waits_is_answered_when_leadership_goes(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        fetch = waiting(node, MINE, 1)
        await until(lambda: node.broker.metrics.waiting == 1)
        await node.tell(changed(MINE, leader=-1))
        partitions = (await fetch).responses[0].partitions
        assert [one.error_code for one in partitions] == [NOT_LEADER, NONE]

    run(tmp_path, scenario, topic(), partition(MINE, ME), partition(1, ME))


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_fetch_session_sees_that_leadership_went_and_that_it_came(tmp_path: Path, is_waiting: bool) -> None:
    async def scenario(node: OneOfThree) -> None:
        begun = await node.fetch(0, 1, session_epoch=0)
        number = begun.session_id
        assert number
        assert (await node.fetch(session_id=number, session_epoch=1)).responses == ()

        async def next_answer(epoch: int, *records: Any) -> dict[int, ErrorCode]:
            if is_waiting:
                fetch = waiting(node, session_id=number, session_epoch=epoch)
                await until(lambda: node.broker.metrics.waiting == 1)
                await node.tell(*records)
                answer = await fetch
            else:
                await node.tell(*records)
                answer = await node.fetch(session_id=number, session_epoch=epoch)
            return {p.partition_index: p.error_code for one in answer.responses for p in one.partitions}

        assert await next_answer(2, changed(0, leader=-1)) == {0: NOT_LEADER}
        await node.tell(changed(0, leader=ME))
        answer = await node.fetch(session_id=number, session_epoch=3)
        assert [p.error_code for one in answer.responses for p in one.partitions] == [NONE]
        assert await next_answer(4, moved(1, OTHER)) == {1: NOT_LEADER}

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, ME))
