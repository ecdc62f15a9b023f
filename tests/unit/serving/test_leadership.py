"""A broker of three serves what it leads, and takes up, gives up and gives away partitions as it is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from errno import EIO
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.disk import DiskError
from service.metadata.controller.partition_change import UNASSIGNED
from service.metadata.controller.requests import ResourceType
from service.metadata.records import ConfigRecord, RemoveTopicRecord
from service.network.request import RequestContext
from service.serving.handlers import fetch as fetch_handler
from service.serving.internal_topics import OFFSETS
from service.wire.api import ApiKey, decode_response, request_module
from service.wire.fetch import FetchPartition, FetchRequestView
from tests.support.one_of_three import (
    HIDDEN,
    INSIDE,
    ME,
    OTHER,
    OUTSIDE,
    TOPIC,
    OneOfThree,
    changed,
    directory,
    fenced,
    moved,
    one_of_three,
    partition,
    topic,
)

NONE, NOT_LEADER = ErrorCode.none, ErrorCode.not_leader_or_follower
STORAGE, UNKNOWN = ErrorCode.kafka_storage_error, ErrorCode.unknown_topic_or_partition
MINE, OFFLINE, THEIRS, NOWHERE = 0, 1, 2, 9
"""partitions of the topic, by who has them"""
SPREAD = (topic(), partition(MINE, ME), partition(OFFLINE, ME), partition(THEIRS, OTHER))


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]], *records: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *(records or SPREAD)) as node:
            offline = node.broker.replicas.get(TOPIC, OFFLINE)
            if not records and offline is not None:
                node.broker.replicas.take_offline(offline.tip, "the disk is gone")
            await scenario(node)

    asyncio.run(whole())


async def produced(node: OneOfThree, number: int, **how: Any) -> ErrorCode:
    answer = await node.produce(number, **how)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def fetched(node: OneOfThree, number: int, **how: Any) -> ErrorCode:
    answer = await node.fetch(number, **how)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


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
def test_what_is_not_led_here_is_refused_with_why(tmp_path: Path, asked: Any) -> None:
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
def test_a_replica_that_nobody_leads_refuses_until_it_leads_again(tmp_path: Path, asked: Any) -> None:
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
def test_the_epoch_is_compared_before_it_is_asked_who_leads(tmp_path: Path, asked: Any) -> None:
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


def test_internal_topics_are_nobodys_to_change_wherever_they_are(tmp_path: Path) -> None:
    offsets = UUID(int=200)

    async def scenario(node: OneOfThree) -> None:
        errors = [await produced(node, number, topic_id=offsets) for number in (0, 1, 9)]
        assert errors == [ErrorCode.invalid_topic_exception] * 2 + [UNKNOWN]
        errors = [await deleted(node, number, OFFSETS) for number in (0, 1, 9)]
        assert errors == [ErrorCode.invalid_topic_exception] * 2 + [UNKNOWN]

    places = (partition(0, ME, topic_id=offsets), partition(1, OTHER, topic_id=offsets))
    run(tmp_path, scenario, topic(OFFSETS, offsets), *places)


def test_who_is_refused_is_told_who_leads(tmp_path: Path) -> None:
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
        context = RequestContext(1, "127.0.0.1", 50_000, INSIDE)
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


# What comes, and what goes


class Files(NamedTuple):
    """Folders of the topic's partitions, by what they are called."""

    here: list[str]
    going: list[str]
    stray: list[str]


def files(node: OneOfThree) -> Files:
    names = sorted(one.name for path in node.logs.directories for one in path.iterdir() if one.is_dir())
    return Files(
        [one for one in names if re.fullmatch(r"t-\d+", one)],
        [one for one in names if one.endswith("-delete")],
        [one for one in names if one.endswith("-stray")],
    )


def going_of(node: OneOfThree) -> list[str]:
    return [one.partition(".")[0] for one in files(node).going]


def test_a_partition_that_is_given_to_this_node_comes(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert files(node).here == ["t-0"]
        await node.tell(
            changed(1, replicas=(ME,), isr=(ME,), leader=ME, directories=(directory(ME),)),
        )
        assert files(node).here == ["t-0", "t-1"]
        assert await produced(node, 1) == NONE
        replica = node.broker.replicas.get(TOPIC, 1)
        assert replica is not None
        assert replica.leader_epoch == 1

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, OTHER))


def test_a_partition_that_is_given_to_a_node_without_one_of_its_directories_comes_all_the_same(
    tmp_path: Path,
) -> None:
    """Only what was this node's before may lie in the one that cannot be used (Kafka
    `Partition.createLogInAssignedDirectoryId`)."""
    lost = tmp_path / "lost"
    lost.write_text("not a directory")
    known = (topic(), partition(0, ME), partition(1, OTHER))

    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            one_of_three(tmp_path / "used", known=known, more_dirs=(lost,)) as node,
        ):
            both: dict[str, Any] = {"replicas": (OTHER, ME), "directories": (directory(OTHER), UNASSIGNED)}
            await node.tell(changed(1, adding_replicas=(ME,), **both))
            assert [await fetched(node, one) for one in (0, 1)] == [STORAGE, NONE]
            assert files(node).here == ["t-1"]

    asyncio.run(scenario())


def test_a_partition_that_comes_before_its_leadership_takes_nothing(tmp_path: Path) -> None:
    """The middle of a reassignment: it is a replica here, and led elsewhere."""

    async def scenario(node: OneOfThree) -> None:
        both: dict[str, Any] = {"replicas": (OTHER, ME), "directories": (directory(OTHER), directory(ME))}
        await node.tell(changed(0, adding_replicas=(ME,), **both))
        assert await produced(node, 0) == NOT_LEADER
        assert await fetched(node, 0) == NONE, "consumers read from any replica"
        await node.tell(changed(0, isr=(OTHER, ME), leader=ME))
        assert await produced(node, 0) == NONE

    run(tmp_path, scenario, topic(), partition(0, OTHER))


def test_a_partition_that_is_reassigned_away_goes_with_its_files(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        await node.produce(0)
        gone = node.broker.replicas.get(TOPIC, 0)
        assert gone is not None
        await node.tell(moved(0, OTHER))
        assert node.broker.replicas.get(TOPIC, 0) is None
        assert node.logs.get(TOPIC, 0) is None
        assert files(node).here == ["t-1"]
        assert going_of(node) == ["t-0"]
        assert files(node).stray == []
        assert await produced(node, 0) == NOT_LEADER
        assert await fetched(node, 1) == NONE
        # Given back, it begins anew.
        await node.tell(moved(0, ME))
        assert await produced(node, 0) == NONE
        again = node.broker.replicas.get(TOPIC, 0)
        assert again is not None
        assert again is not gone
        assert again.high_watermark == 1

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, ME))


def test_an_offline_partition_that_is_reassigned_away_is_forgotten(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert await fetched(node, OFFLINE) == STORAGE
        await node.tell(moved(OFFLINE, OTHER))
        assert await fetched(node, OFFLINE) == NOT_LEADER
        assert node.broker.replicas.closed_count == 0
        assert going_of(node) == [f"t-{OFFLINE}"]

    run(tmp_path, scenario)


def test_a_partition_that_waits_for_its_disk_does_not_come_when_it_is_reassigned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: OneOfThree) -> None:
        create = node.logs.create

        async def refused(wanted: Any, *_: Any) -> list[Any]:
            return [DiskError("open", "t-1", EIO) for _ in wanted]

        monkeypatch.setattr(node.logs, "create", refused)
        mine = moved(1, ME)
        await node.tell(mine)
        assert await fetched(node, 1) == STORAGE
        monkeypatch.setattr(node.logs, "create", create)
        await node.tell(moved(1, OTHER))
        retry = asyncio.create_task(node.applier.opener.run())
        for _ in range(50):
            await asyncio.sleep(0.001)
        retry.cancel()
        assert await fetched(node, 1) == NOT_LEADER
        assert files(node).here == ["t-0"]

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, OTHER))


def test_what_was_not_seen_to_be_reassigned_is_set_aside_and_kept(tmp_path: Path) -> None:
    """The image at a start does not give it to us, and nobody saw why."""

    async def before(node: OneOfThree) -> None:
        await node.produce(0)

    run(tmp_path, before, topic(), partition(0, ME))

    async def again() -> None:
        async with asyncio.timeout(30), one_of_three(tmp_path) as node:
            before = node.image
            applied = node.publish(topic(), partition(0, OTHER))
            assert applied is None or await applied is None
            assert before.offset < node.image.offset
            assert files(node).here == ["t-0"]
            await node.logs.set_aside_unknown(node.applier.holds)
            assert files(node).here == []
            assert files(node).going == []
            (stray,) = files(node).stray
            (kept,) = [path / stray for path in node.logs.directories]
            assert (kept / "00000000000000000000.log").stat().st_size > 0

    asyncio.run(again())


def test_a_topic_that_is_deleted_and_one_that_moves_go_in_one_change(tmp_path: Path) -> None:
    other = UUID(int=101)

    async def scenario(node: OneOfThree) -> None:
        await node.tell(RemoveTopicRecord(topic_id=other), moved(0, OTHER), moved(1, ME))
        assert going_of(node) == ["t-0", "u-0"]
        assert files(node).here == ["t-1"]
        assert await produced(node, 1) == NONE

    records = (topic(), partition(0, ME), partition(1, OTHER))
    run(tmp_path, scenario, *records, topic("u", other), partition(0, ME, topic_id=other))


def test_changes_of_others_partitions_are_made_at_once(tmp_path: Path) -> None:
    """They take no files here; what takes them is a task."""

    async def scenario(node: OneOfThree) -> None:
        assert node.publish(moved(1, HIDDEN), changed(0, leader_recovery_state=1)) is None
        taken = node.publish(moved(0, OTHER))
        assert taken is not None
        waits = node.publish(changed(1, leader_recovery_state=1))
        assert waits is not None
        await taken
        await waits

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, OTHER))


# Groups


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
    """What a group's offset of partition 0 is answered, once its coordinator has read its log."""
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
        await node.applier.opener.retry()
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
