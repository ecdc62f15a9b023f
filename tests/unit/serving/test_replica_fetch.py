"""Fetches of replicas: their responses, their effect on the ISR, and refusals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.records.batch import iter_headers
from service.replication.leader import BrokerStatus, Leadership
from service.wire.api import ApiKey, request_module
from tests.support.followers import ALL_THREE, EPOCH, SPREAD, Followed, produced
from tests.support.one_of_three import HIDDEN, ME, OTHER, TOPIC, OneOfThree, changed, one_of_three

NONE, NOT_LEADER = ErrorCode.none, ErrorCode.not_leader_or_follower
UNKNOWN_EPOCH, FENCED = ErrorCode.unknown_leader_epoch, ErrorCode.fenced_leader_epoch
OUT_OF_RANGE = ErrorCode.offset_out_of_range


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *SPREAD) as node:
            await scenario(node)

    asyncio.run(whole())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def offsets(answer: Any) -> list[int]:
    return [one.base_offset for one in iter_headers(memoryview(answer.records or b""))]


def ends(followed: list[Followed]) -> list[int]:
    return [one.of(OTHER).end_offset for one in followed]


def attached(followed: list[Followed]) -> list[bool]:
    return [one.of(OTHER).session is not None for one in followed]


async def append(one: Followed, count: int = 1) -> None:
    for _ in range(count):
        await produced(one.node, one.number, acks=1)


def test_replicas_get_all_there_is_and_consumers_what_is_committed(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one, 3)
        answer = await one.fetch(OTHER, 0)
        assert (answer.error_code, offsets(answer), answer.high_watermark) == (NONE, [0, 1, 2], 0)
        seen = (await node.fetch(0)).responses[0].partitions[0]
        assert (offsets(seen), seen.high_watermark) == ([], 0)
        assert offsets(await one.fetch(OTHER, 2)) == [2]
        answer = await one.fetch(HIDDEN, 1)
        assert answer.high_watermark == 1, "it was moved by this very fetch"
        seen = (await node.fetch(0)).responses[0].partitions[0]
        assert (offsets(seen), seen.high_watermark) == ([0], 1)
        assert one.of(OTHER).end_offset == 2

    run(tmp_path, scenario)


def test_a_produce_request_is_answered_when_the_replicas_have_fetched_beyond_it(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = asyncio.create_task(produced(node, 0))
        await settle()
        for replica in (OTHER, HIDDEN):
            assert offsets(await one.fetch(replica, 0)) == [0]
            await one.fetch(replica, 1)
        assert [answer.error_code for answer in await task] == [NONE]

    run(tmp_path, scenario)


def test_a_fetch_waits_for_what_is_appended_and_not_for_what_is_committed(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one)
        task = asyncio.create_task(one.fetch(OTHER, 1, wait_ms=20_000))
        await settle()
        one.has(1)
        await settle()
        assert one.partition.high_watermark == 1
        assert not task.done(), "the high watermark alone is not worth an answer"
        await append(one)
        answer = await asyncio.wait_for(task, 5)
        assert (offsets(answer), answer.high_watermark) == ([1], 1)

    run(tmp_path, scenario)


def test_a_read_after_a_wait_is_no_progress_of_the_follower(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = asyncio.create_task(one.fetch(OTHER, 0, wait_ms=20_000))
        await settle()
        follower = one.of(OTHER)
        follower.end_offset = -1
        await append(one)
        assert offsets(await task) == [0]
        assert follower.end_offset == -1

    run(tmp_path, scenario)


@pytest.mark.parametrize("change", ["another leader", "a new epoch", "the topic"])
def test_a_waiting_replica_fetch_is_answered_on_changes(tmp_path: Path, change: str) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        task = asyncio.create_task(one.fetch(OTHER, 0, wait_ms=20_000))
        await settle()
        if change == "another leader":
            await node.tell(changed(0, leader=OTHER))
            expected = FENCED
        elif change == "a new epoch":
            what = one.leading.image(Leadership(EPOCH + 1, 10, ALL_THREE, ALL_THREE), 0)
            one.partition.lead(EPOCH + 1, one.leading)
            one.partition.happened(what)
            expected = FENCED
        else:
            node.broker.replicas.take_offline(one.partition.tip, "the disk is gone")
            expected = ErrorCode.kafka_storage_error
        assert (await asyncio.wait_for(task, 5)).error_code == expected

    run(tmp_path, scenario)


REFUSED: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"epoch": EPOCH - 1}, FENCED),
    ({"epoch": EPOCH + 1}, UNKNOWN_EPOCH),
    ({"replica": 9}, UNKNOWN_EPOCH),
    ({"replica": ME}, UNKNOWN_EPOCH),
    ({"replica": 9, "epoch": -1}, NOT_LEADER),
    ({"replica": 9, "epoch": EPOCH - 1}, FENCED),
    ({"broker_epoch": 3}, NOT_LEADER),
    ({"offset": 4}, OUT_OF_RANGE),
    ({"offset": -1}, OUT_OF_RANGE),
    ({"offset": 1, "last_epoch": EPOCH + 3}, OUT_OF_RANGE),
]


@pytest.mark.parametrize(("how", "expected"), REFUSED)
def test_a_refused_replica_fetch_changes_no_state(
    tmp_path: Path, how: dict[str, Any], expected: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one, 3)
        with caplog.at_level(logging.INFO):
            answer = await one.fetch(**how)
        assert (ErrorCode(answer.error_code), answer.records or b"") == (expected, b"")
        assert "refused" in caplog.text
        assert "127.0.0.1" in caplog.text
        follower = one.of(OTHER)
        assert (follower.end_offset, follower.session) == (-1, None)
        assert one.partition.high_watermark == 0
        if expected is FENCED:
            assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (ME, EPOCH)

    run(tmp_path, scenario)


def test_any_leader_epoch_below_zero_says_none_to_replicas_and_consumers(tmp_path: Path) -> None:
    """As in Kafka, whose ``FetchRequest`` takes those for none."""

    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one, 3)
        answer = await one.fetch(epoch=-5, offset=3)
        assert (answer.error_code, one.of(OTHER).end_offset) == (NONE, 3)
        assert (await one.fetch(replica=9, epoch=-5)).error_code == NOT_LEADER
        answer = (await node.fetch(0, current_leader_epoch=-5)).responses[0].partitions[0]
        assert answer.error_code == NONE

    run(tmp_path, scenario)


def test_a_broker_epoch_that_is_not_said_or_is_newer_than_ours_counts(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one)
        assert (await one.fetch(OTHER, 1, broker_epoch=-1)).error_code == NONE
        assert (await one.fetch(HIDDEN, 1, broker_epoch=10_000)).error_code == NONE
        assert one.partition.high_watermark == 1

    run(tmp_path, scenario)


def test_a_diverging_replica_gets_the_epoch_and_makes_no_progress(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one, 3)
        answer = await one.fetch(OTHER, 8, last_epoch=EPOCH)
        assert answer.error_code == NONE
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (EPOCH, 3)
        assert offsets(answer) == []
        assert one.of(OTHER).end_offset == -1

    run(tmp_path, scenario)


def test_records_only_in_the_bucket_are_not_sent_to_replicas(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        await append(one, 4)
        one.has(4)
        log = one.partition.log
        log.appender.roll()
        await append(one, 2)
        log.deletion.delete_segments(3, "the test")
        log.state.start = 1  # the rest is in the bucket
        answer = await one.fetch(OTHER, 2)
        assert ErrorCode(answer.error_code) is ErrorCode.offset_moved_to_tiered_storage
        assert (answer.high_watermark, answer.log_start_offset) == (4, 1), "the start of both tiers"
        assert (await one.fetch(OTHER, 0)).error_code == OUT_OF_RANGE
        assert offsets(await one.fetch(OTHER, 4)) == [4, 5]

    run(tmp_path, scenario)


def test_others_than_leaders_have_nothing_for_replicas(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        assert (await one.fetch()).error_code == NONE
        one.partition.follow(EPOCH + 1)
        errors = [(await one.fetch(epoch=epoch)).error_code for epoch in range(EPOCH - 1, EPOCH + 3)]
        assert errors == [FENCED, FENCED, NOT_LEADER, UNKNOWN_EPOCH]
        alone = Followed(node, 1)
        alone.partition.lead(EPOCH, None)
        assert (await alone.fetch()).error_code == UNKNOWN_EPOCH
        assert (await alone.fetch(epoch=-1)).error_code == NOT_LEADER

    run(tmp_path, scenario)


def test_topics_are_known_by_their_ids(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        one = Followed(node)
        one.topic_id = UUID(int=77)
        assert (await one.fetch()).error_code == ErrorCode.unknown_topic_id
        one.topic_id = TOPIC
        one.number = 40
        assert (await one.fetch()).error_code == ErrorCode.unknown_topic_or_partition
        # A topic of the same name has come, and what is here is of the one before.
        one.number = 0
        tip = one.partition.tip
        node.broker.replicas.remove(one.partition)
        one.partition.tip = tip._replace(topic_id=UUID(int=78))
        node.broker.replicas.add(one.partition)
        assert (await one.fetch()).error_code == ErrorCode.inconsistent_topic_id

    run(tmp_path, scenario)


def test_one_answer_has_its_room_and_all_that_is_said_counts(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        all_of_them = [Followed(node, n) for n in range(3)]
        for one in all_of_them:
            await append(one, 5)
        module = request_module(ApiKey.FETCH)
        topics = (
            module.FetchTopic(
                topic_id=TOPIC,
                partitions=tuple(
                    module.FetchPartition(
                        partition=n, fetch_offset=2, partition_max_bytes=1 << 20, current_leader_epoch=EPOCH
                    )
                    for n in range(3)
                ),
            ),
        )
        for session in (-1, 0):
            answer = await all_of_them[0].fetch_all(OTHER, topics=topics, max_bytes=1, session_epoch=session)
            found = {one.partition_index: offsets(one) for one in answer.responses[0].partitions}
            assert found == {0: [2], 1: [], 2: []}
            assert ends(all_of_them) == [2, 2, 2]
        # In a session, those that have no room left are not lost, either.
        topics = (
            module.FetchTopic(
                topic_id=TOPIC,
                partitions=tuple(
                    module.FetchPartition(
                        partition=n, fetch_offset=3, partition_max_bytes=1 << 20, current_leader_epoch=EPOCH
                    )
                    for n in range(3)
                ),
            ),
        )
        answer = await all_of_them[0].fetch_all(
            OTHER, topics=topics, max_bytes=1, session_id=answer.session_id, session_epoch=1
        )
        assert sum(len(offsets(one)) for one in answer.responses[0].partitions) == 1
        assert ends(all_of_them) == [3, 3, 3]

    run(tmp_path, scenario)


class Session:
    """Fetch session of one replica with all partitions, as a fetcher has one."""

    def __init__(self, followed: list[Followed], replica: int = OTHER) -> None:
        self.followed, self.replica = followed, replica
        self.id, self.epoch = 0, 0

    async def fetch(
        self,
        offsets: dict[int, int],
        forget: tuple[int, ...] = (),
        wait_ms: int = 0,
        epoch: int = EPOCH,
        broker_epoch: int | None = None,
    ) -> dict[int, Any]:
        module = request_module(ApiKey.FETCH)
        asked = tuple(
            module.FetchPartition(
                partition=n, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch,
                log_start_offset=0,
            )
            for n, offset in offsets.items()
        )  # fmt: skip
        gone = (module.ForgottenTopic(topic_id=TOPIC, partitions=forget),) if forget else ()
        answer = await self.followed[0].fetch_all(
            self.replica,
            topics=(module.FetchTopic(topic_id=TOPIC, partitions=asked),) if asked else (),
            forgotten_topics_data=gone, session_id=self.id, session_epoch=self.epoch, wait_ms=wait_ms,
            broker_epoch=broker_epoch,
        )  # fmt: skip
        assert answer.error_code == NONE
        self.id, self.epoch = answer.session_id, self.epoch + 1
        return {one.partition_index: one for topic in answer.responses for one in topic.partitions}


def test_an_idle_session_confirms_what_it_said(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node, n) for n in range(3)]
        clock: Any = node.broker.clock
        session = Session(followed)
        assert sorted(await session.fetch({0: 0, 1: 0, 2: 0})) == [0, 1, 2]
        for _ in range(3):
            clock.advance(20_000)
            assert await session.fetch({}) == {}
        now = clock.monotonic_ms()
        for one in followed:
            follower = one.of(OTHER)
            assert follower.last_fetch_ms == now
            what = one.leading.tick(now)
            assert one.leading.proposal is not None, what
            assert [member.broker_id for member in one.leading.proposal.isr] == [ME, OTHER], "3 was silent"

    run(tmp_path, scenario)


def test_a_reregistered_broker_joins_the_isr_by_its_session(tmp_path: Path) -> None:
    """Of partitions to which nothing is written it says no more by itself."""

    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node, n, isr=(ME, HIDDEN)) for n in range(3)]
        for one in followed:
            del one.brokers[OTHER]  # an operator has unregistered it; it fetches on, and asks for a new epoch
        session = Session(followed)
        await session.fetch({0: 0, 1: 0, 2: 0})
        for one in followed:
            one.brokers[OTHER] = BrokerStatus(25, is_active=True)
            one.partition.happened(one.leading.reevaluate(node.broker.clock.monotonic_ms()))
            assert one.leading.proposal is None, "the process that is registered has not fetched"
        assert await session.fetch({}, broker_epoch=25) == {}
        for one in followed:
            assert one.leading.proposal is not None
            assert (OTHER, 25) in one.leading.proposal.isr

    run(tmp_path, scenario)


def test_a_session_that_ended_or_forgot_confirms_nothing(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node, n) for n in range(3)]
        session = Session(followed)
        await session.fetch({0: 0, 1: 0, 2: 0})
        assert attached(followed) == [True, True, True]
        await session.fetch({}, forget=(1,))
        assert attached(followed) == [True, False, True]
        await session.fetch({2: 99})
        assert attached(followed) == [True, False, False], "it was refused"
        await session.fetch({2: 0})
        assert attached(followed) == [True, False, True]
        node.broker.fetch_sessions.close(session.id)
        assert attached(followed) == [False, False, False]

    run(tmp_path, scenario)


def test_a_session_is_answered_with_what_was_appended_and_the_mark_goes_with_it(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node, n) for n in range(3)]
        session = Session(followed)
        await session.fetch({0: 0, 1: 0, 2: 0})
        task = asyncio.create_task(session.fetch({}, wait_ms=20_000))
        await settle()
        await append(followed[1])
        found = await asyncio.wait_for(task, 5)
        assert {n: offsets(one) for n, one in found.items()} == {1: [0]}
        task = asyncio.create_task(session.fetch({1: 1}, wait_ms=20_000))
        await settle()
        followed[1].has(1, HIDDEN)
        await settle()
        assert followed[1].partition.high_watermark == 1
        assert not task.done()
        await append(followed[2])
        found = await asyncio.wait_for(task, 5)
        assert {n: (offsets(one), one.high_watermark) for n, one in found.items()} == {
            1: ([], 1),
            2: ([0], 0),
        }
        assert await session.fetch({2: 1}) == {}, "nothing is new"

    run(tmp_path, scenario)


def test_the_mark_is_told_again_in_another_epoch(tmp_path: Path) -> None:
    """What was told in the one before may have been dropped: it did not fit the follower's log any more."""

    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node)]
        await append(followed[0])
        followed[0].has(1)
        session = Session(followed)
        found = await session.fetch({0: 1})
        assert found[0].high_watermark == 1
        assert await session.fetch({0: 1}) == {}
        found = await session.fetch({0: 1}, epoch=-1)
        assert found[0].high_watermark == 1

    run(tmp_path, scenario)


def test_a_session_of_a_replica_goes_before_those_of_consumers(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node)]
        session = Session(followed)
        await session.fetch({0: 0})
        found = node.broker.fetch_sessions._sessions[session.id]
        assert found.privileged
        assert found.replica is not None
        stranger = await followed[0].fetch_all(9, session_epoch=0)
        assert not node.broker.fetch_sessions._sessions[stranger.session_id].privileged

    run(tmp_path, scenario)


def test_a_session_is_confirmed_by_its_replica_alone(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        followed = [Followed(node)]
        clock: Any = node.broker.clock
        session = Session(followed)
        await session.fetch({0: 0})
        was = followed[0].of(OTHER).last_fetch_ms
        clock.advance(1_000)
        for stranger in (-1, HIDDEN):
            await followed[0].fetch_all(
                stranger, topics=(), session_id=session.id, session_epoch=session.epoch
            )
            session.epoch += 1
            assert followed[0].of(OTHER).last_fetch_ms == was
        await session.fetch({})
        assert followed[0].of(OTHER).last_fetch_ms == was + 1_000

    run(tmp_path, scenario)
