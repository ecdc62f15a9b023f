"""A node with followers, over the wire: the test gives its partitions a leader's machine, and follows."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.partition.partition import Partition
from service.records.batch import iter_headers
from service.records.builder import BatchBuilder
from service.replication.leader import BrokerStatus, LeaderSettings, Leadership, LeaderState
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until

NONE, NOT_LEADER, TIMED_OUT = ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out
FOLLOWERS = (2, 3)
NOW_MS = SystemClock().now_ms()


class Led:
    """Topic "t" of one node, as if brokers 2 and 3 had replicas of it."""

    def __init__(self, running: NodeThread, partitions: int) -> None:
        self.running = running
        assert running.node.parts.broker is not None
        self.broker = running.node.parts.broker
        self.talk = Talk(running.client())
        assert self.talk.create("t", partitions).error_code == NONE
        self.topic_id = self.talk.topic_id("t")
        self.partitions = partitions
        self.pool = concurrent.futures.ThreadPoolExecutor(8)
        self.on_loop(self._lead)

    def on_loop(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.running._loop).result(20)

    def partition(self, number: int) -> Partition:
        found = self.broker.replicas.get(self.topic_id, number)
        assert found is not None
        return found

    def _lead(self) -> None:
        own = self.broker.config.node_id
        members = (own, *FOLLOWERS)
        for number in range(self.partitions):
            found = self.partition(number)
            self.epoch = found.leader_epoch
            leading = LeaderState(
                own,
                LeaderSettings(),
                {one: BrokerStatus(7, is_active=True) for one in members},
                found.log,
                Leadership(self.epoch, 9, members, members),
                high_watermark=found.high_watermark,
                min_insync_replicas=2,
                now_ms=self.broker.clock.monotonic_ms(),
            )
            found.lead(self.epoch, leading)

    def produce(self, *numbers: int, timeout_ms: int = 20_000) -> concurrent.futures.Future[list[Any]]:
        """Produce over a connection of its own; return the errors per partition."""
        module = request_module(ApiKey.PRODUCE)
        data = []
        for number in numbers:
            builder = BatchBuilder()
            builder.add(NOW_MS, None, b"value")
            data.append(module.PartitionProduceData(index=number, records=bytes(builder.build())))

        def call() -> list[Any]:
            answer = Talk(self.running.client())(
                ApiKey.PRODUCE,
                "ProduceRequest",
                transactional_id=None,
                acks=-1,
                timeout=timedelta(milliseconds=timeout_ms),
                topic_data=(module.TopicProduceData(topic_id=self.topic_id, partition_data=tuple(data)),),
            )
            return [ErrorCode(one.error_code) for one in answer.responses[0].partition_responses]

        return self.pool.submit(call)

    def ends(self) -> list[int]:
        return [self.partition(n).log.log_end_offset for n in range(self.partitions)]


class Follower:
    """Fetches what there is, over and over, in one session."""

    def __init__(self, led: Led, broker_id: int) -> None:
        self.led, self.broker_id = led, broker_id
        self.talk = Talk(led.running.client())
        self.offsets = dict.fromkeys(range(led.partitions), 0)
        self.marks: dict[int, int] = {}
        self.session, self.session_epoch = 0, 0
        self.named = dict(self.offsets)

    def fetch(self, wait_ms: int = 0) -> int:
        """Batches that came."""
        module = request_module(ApiKey.FETCH)
        asked = tuple(
            module.FetchPartition(
                partition=n,
                fetch_offset=offset,
                partition_max_bytes=1 << 20,
                current_leader_epoch=self.led.epoch,
                log_start_offset=0,
            )
            for n, offset in self.named.items()
        )
        topics = (module.FetchTopic(topic_id=self.led.topic_id, partitions=asked),) if asked else ()
        answer = self.talk(
            ApiKey.FETCH,
            "FetchRequest",
            replica_state=module.ReplicaState(replica_id=self.broker_id, replica_epoch=7),
            max_wait=timedelta(milliseconds=wait_ms),
            min_bytes=1,
            session_id=self.session,
            session_epoch=self.session_epoch,
            topics=topics,
            forgotten_topics_data=(),
        )
        assert answer.error_code == NONE
        self.session, self.session_epoch = answer.session_id, self.session_epoch + 1
        self.named = {}
        came = 0
        for topic in answer.responses:
            for one in topic.partitions:
                assert one.error_code == NONE, ErrorCode(one.error_code)
                self.marks[one.partition_index] = one.high_watermark
                for header in iter_headers(memoryview(one.records or b"")):
                    assert header.base_offset == self.offsets[one.partition_index]
                    came += 1
                    self.offsets[one.partition_index] = header.base_offset + header.record_count
                    self.named[one.partition_index] = self.offsets[one.partition_index]
        return came


@pytest.fixture
def led(tmp_path: Path) -> Iterator[Led]:
    running = NodeThread(tmp_path / "data").start()
    try:
        made = Led(running, 3)
        yield made
        made.pool.shutdown()
    finally:
        running.stop()


def test_acks_all_is_answered_when_followers_that_wait_have_fetched_beyond(led: Led) -> None:
    followers = [Follower(led, one) for one in FOLLOWERS]
    for one in followers:
        assert one.fetch() == 0
    for _ in range(5):
        fetches = [led.pool.submit(one.fetch, 10_000) for one in followers]
        produced = led.produce(0, 2)
        assert [fetch.result(20) >= 1 for fetch in fetches] == [True, True]
        wait_until("both appends", lambda: led.ends()[0] == led.ends()[2])
        for one in followers:
            while [one.offsets[n] for n in range(3)] != led.ends():
                one.fetch()
            assert not produced.done() or one is followers[-1]
            one.fetch()
        assert produced.result(20) == [NONE, NONE]
    assert led.ends() == [5, 0, 5]
    assert led.partition(0).high_watermark == 5
    for one in followers:
        one.fetch()
        assert one.marks[0] == 5, "the mark comes with the next answer"


def test_produces_time_out_without_followers(led: Led) -> None:
    first, second = Follower(led, 2), Follower(led, 3)
    slow, patient = led.produce(0, timeout_ms=300), led.produce(1)
    assert slow.result(20) == [TIMED_OUT]
    assert first.fetch() == 2
    first.fetch()
    assert not patient.done()
    assert second.fetch() == 2
    second.fetch()
    assert patient.result(20) == [NONE]
    deposed = led.produce(2)
    wait_until("the append", lambda: led.ends()[2] == 1)
    led.on_loop(lambda: led.partition(2).follow(led.epoch + 1))
    assert deposed.result(20) == [NOT_LEADER]


def test_late_requests_of_an_old_session_do_not_count_as_silence(led: Led) -> None:
    """It asks by a session of another connection for what is in sync no more. The old one may have been under
    way for long: what it repeats does not count, nor what it names below what is known, and what it names
    else does until it is silent."""

    def who_tells() -> list[Any]:
        return [led.on_loop(partial(who_tells_of, led, number)) for number in range(3)]

    def same(those: list[Any], others: list[Any]) -> list[bool]:
        return [one is other for one, other in zip(those, others, strict=True)]

    before, now = Follower(led, 2), Follower(led, 2)
    before.fetch()
    led.produce(0, timeout_ms=100)
    wait_until("the append", lambda: led.ends()[0] == 1)  # so that its session looks there unasked
    now.fetch()
    its_own = who_tells()
    before.named = {2: 0}
    before.fetch()
    assert same(who_tells(), its_own) == [True, True, False]
    now.fetch()
    now.fetch()  # it has the record, and says so
    before.offsets[0], before.named = 0, {0: 0}
    before.fetch()
    assert same(who_tells(), its_own) == [True, True, False]
    led.on_loop(lambda: setattr(who_tells_of(led, 2), "last_fetch_ms", -(10**9)))
    now.fetch()  # and names nothing, as nothing has changed for it
    assert all(same(who_tells(), its_own))


def who_tells_of(led: Led, number: int) -> Any:
    leading = led.partition(number).leading
    assert leading is not None
    follower = leading.follower(2)
    assert follower is not None
    return follower.session


def test_a_node_stops_while_clients_and_followers_wait(led: Led) -> None:
    follower = Follower(led, 2)
    follower.fetch()
    led.produce(0)
    wait_until("the append", lambda: led.ends()[0] == 1)
    assert follower.fetch() == 1
    waiting = led.pool.submit(follower.fetch, 60_000)
    led.running.stop()
    assert led.running.failure is None
    with pytest.raises(Exception, match=r"."):
        waiting.result(20)
