"""A leader's logs and a follower's, with a fetcher between them, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.types import TopicIdPartition
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.partition.follower_log import LocalFollowerLog
from service.records.batch import iter_headers
from service.records.scan import BatchScan
from service.replication.fetcher import Fetcher, FetcherSettings, LeaderEndpoint
from service.replication.leader import BrokerStatus, LeaderSettings, Leadership, LeaderState, ReplicaSession
from service.replication.replica_fetch import ReplicaFetch
from service.replication.throttle import ReplicationThrottle
from service.wire.api import (
    ApiKey,
    RequestHeader,
    decode_response,
    encode_request,
    response_frame,
    response_module,
)
from service.wire.fetch import FetchPartition, FetchPartitionResult, encode_fetch_response, parse_fetch
from tests.support.peers import sound
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.partition.following import NoFiles, Standing

EPOCH = 5
FOLLOWER, BROKER_EPOCH = 2, 102
SETTINGS = FetcherSettings(max_wait_ms=20, backoff_ms=30, timeout_ms=1_000)


def tip_of(number: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number + 1), f"t{number}", 0)


class LeaderNode:
    """Leads all partitions in one epoch; it reads requests and writes answers as they are on the wire."""

    def __init__(
        self, logs: Mapping[TopicIdPartition, LocalLog], epoch: int = EPOCH, high_watermark: int = 0
    ) -> None:
        self.logs = logs
        self.leader_epoch = epoch
        self.leaders: dict[TopicIdPartition, LeaderState] = {}
        brokers = {one: BrokerStatus(100 + one, is_active=True) for one in (1, FOLLOWER)}
        for tip, log in logs.items():
            log.appender.note_leader_epoch(epoch)
            self.leaders[tip] = LeaderState(
                1,
                LeaderSettings(),
                brokers,
                log,
                Leadership(epoch, 1, (1, FOLLOWER), (1, FOLLOWER)),
                high_watermark=high_watermark,
                min_insync_replicas=1,
                now_ms=START_MS,
            )
        self.newest = 18
        self.max_bytes = 1 << 20
        self.fails: list[Exception] = []
        self.garbles: Callable[[TopicIdPartition, bytes], bytes] = lambda tip, data: data
        self.session = ReplicaSession()
        self.asked: dict[TopicIdPartition, FetchPartition] = {}
        self.epoch = 0
        self.requests = 0

    async def versions(self) -> dict[int, tuple[int, int]]:
        return {ApiKey.FETCH: (4, self.newest), ApiKey.LIST_OFFSETS: (1, 11)}

    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        await asyncio.sleep(0.001)
        if self.fails:
            raise self.fails.pop(0)
        if api_key == ApiKey.FETCH:
            return decode_response(ApiKey.FETCH, 18, self.fetch(message, 7)[4:])[1]
        return None if api_key == ApiKey.API_VERSIONS else self.list_offsets(message)

    def behave(self, header: RequestHeader, message: Any) -> bytes | None:
        """Answer as a server."""
        if header.api_key == ApiKey.FETCH:
            return self.fetch(message, header.correlation_id)
        if header.api_key == ApiKey.LIST_OFFSETS:
            return bytes(response_frame(header, self.list_offsets(message)))
        return sound(header, message)

    def fetch(self, message: Any, correlation_id: int) -> bytes:
        self.requests += 1
        frame = encode_request(ApiKey.FETCH, 18, 7, "replica", message)
        view = parse_fetch(18, frame, 4 + 8 + 2 + len("replica") + 1)
        assert (view.replica_id, view.replica_epoch) == (FOLLOWER, BROKER_EPOCH)
        tips: dict[Any, TopicIdPartition] = {tip.topic_id: tip for tip in self.logs}
        if view.session_epoch == 0:
            self.asked, self.epoch = {}, 0
        assert view.session_epoch == self.epoch
        self.epoch += 1
        for topic_id, _ in view.forgotten:
            del self.asked[tips[topic_id]]
        for topic_id, partitions in view.topics:
            self.asked[tips[topic_id]] = partitions[0]
        results = [(tip.topic_id, [self.look(tip, one)]) for tip, one in self.asked.items()]
        parts: list[Any] = encode_fetch_response(18, correlation_id, results, session_id=9)
        return b"".join(bytes(one) for one in parts)

    def look(self, tip: TopicIdPartition, asked: FetchPartition) -> FetchPartitionResult:
        whole = ReplicaFetch(
            FOLLOWER,
            BROKER_EPOCH,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
        )
        leader, log = self.leaders[tip], self.logs[tip]
        verdict, _ = leader.fetched(whole, self.session, START_MS)
        if verdict.error is not ErrorCode.none:
            return FetchPartitionResult(0, int(verdict.error), log_start_offset=log.log_start_offset)
        if verdict.diverging is not None:
            return FetchPartitionResult(0, diverging_epoch=verdict.diverging)
        found = log.read(asked.fetch_offset, self.max_bytes).slice
        data = b"" if found is None else self.garbles(tip, bytes(found.read()))
        return FetchPartitionResult(
            0,
            high_watermark=leader.high_watermark,
            log_start_offset=log.log_start_offset,
            records=(data,) if data else (),
        )

    def list_offsets(self, message: Any) -> Any:
        module = response_module(ApiKey.LIST_OFFSETS)
        (topic,) = message.topics
        (asked,) = topic.partitions
        log = next(log for tip, log in self.logs.items() if tip.topic == topic.name)
        assert (message.replica_id, asked.current_leader_epoch) == (FOLLOWER, self.leader_epoch)
        offset = log.log_end_offset if asked.timestamp == -1 else log.log_start_offset
        told = module.ListOffsetsPartitionResponse(
            partition_index=0, error_code=ErrorCode.none, offset=offset, leader_epoch=self.leader_epoch
        )
        answer = module.ListOffsetsTopicResponse(name=topic.name, partitions=(told,))
        return module.ListOffsetsResponse(throttle_time=message.timeout, topics=(answer,))


class LocalReplica(LocalFollowerLog):
    """A log that follows, and may fail."""

    def __init__(self, log: LocalLog) -> None:
        self.files = NoFiles()
        super().__init__(Standing(log), self.files)
        self.log = log
        self.fails: Exception | None = None
        self.appended = 0

    def append(self, data: memoryview, run: BatchScan) -> None:
        if self.fails is not None:
            raise self.fails
        super().append(data, run)
        self.appended += 1


class Bucket:
    def __init__(self, replicas: Mapping[TopicIdPartition, LocalReplica]) -> None:
        self.replicas = replicas
        self.end, self.epochs = 0, [(0, 0)]
        self.refusals = 0

    async def build(
        self, tip: TopicIdPartition, leader_epoch: int, start_offset: int, is_wanted: Callable[[], bool]
    ) -> bool:
        await asyncio.sleep(0.01)
        if self.refusals:
            self.refusals -= 1
            return False
        if is_wanted():
            self.replicas[tip].log.truncation.restart_at(self.end, start_offset, epochs=self.epochs)
        return True


class Pair:
    """A leader's logs and a follower's."""

    def __init__(self, directory: Path, count: int = 1, **options: Any) -> None:
        tips = [tip_of(number) for number in range(count)]
        self.tip = tips[0]
        self.leader = LeaderNode({tip: open_log(directory / "a" / tip.topic, **options) for tip in tips})
        self.replicas = {tip: LocalReplica(open_log(directory / "b" / tip.topic, **options)) for tip in tips}
        self.bucket = Bucket(self.replicas)
        self.warnings: list[str] = []
        self.caught_up: list[TopicIdPartition] = []

    @property
    def log(self) -> LocalLog:
        return self.leader.logs[self.tip]

    @property
    def replica(self) -> LocalReplica:
        return self.replicas[self.tip]

    def write(self, count: int, tip: TopicIdPartition | None = None, epoch: int = EPOCH) -> None:
        tip = tip or self.tip
        for _ in range(count):
            self.leader.logs[tip].append(batch(3), epoch, START_MS)
        self.leader.leaders[tip].appended(START_MS)

    def fetcher(
        self,
        leader: LeaderEndpoint | None = None,
        throttle: ReplicationThrottle | None = None,
        io: LogIo | None = None,
    ) -> Fetcher:
        """`io`: writes what is behind, as all is then."""
        fetcher = Fetcher(
            leader or self.leader,
            FOLLOWER,
            lambda: BROKER_EPOCH,
            SETTINGS,
            SystemClock(),
            self.bucket,
            self.warnings.append,
            throttle,
            on_caught_up=None if io is None else lambda tip, _: self.caught_up.append(tip),
        )
        for tip, replica in self.replicas.items():
            replica.files.io = io
            fetcher.assign(tip, replica, EPOCH, is_clean=True)
        return fetcher

    def are_equal(self) -> bool:
        for tip, log in self.leader.logs.items():
            replica = self.replicas[tip]
            if (replica.log_end_offset, replica.high_watermark) != (log.log_end_offset,) * 2:
                return False
        return True

    async def become_equal(self, fetcher: Fetcher, within_s: float = 10.0) -> None:
        running = asyncio.create_task(fetcher.run())
        try:
            async with asyncio.timeout(within_s):
                while not self.are_equal() and not running.done():
                    await asyncio.sleep(0.005)
        finally:
            running.cancel()
            await asyncio.wait({running})
        if not running.cancelled():
            running.result()
        for tip, log in self.leader.logs.items():
            first = max(log.local_log_start_offset, self.replicas[tip].log.local_log_start_offset)
            assert content(self.replicas[tip].log, first) == content(log, first)
            assert log.epochs.entries[-1][0] == EPOCH


def content(log: LocalLog, offset: int) -> bytes:
    data = b""
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 30)
        assert found.slice is not None
        more = bytes(found.slice.read())
        data += more
        offset = list(iter_headers(more))[-1].next_offset
    return data


def at_once(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """The test in a loop of its own."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run
