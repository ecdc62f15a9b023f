"""The fetcher over real logs and real messages: replicas become equal byte for byte, whatever fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import SystemClock
from service.base.errors import InvariantError, StorageError
from service.base.types import TopicIdPartition
from service.client.node_channel import Channel, ChannelOptions
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.records.scan import BatchScan
from service.replication.leader import Leadership
from service.replication.throttle import Quota, ReplicationThrottle
from service.wire.api import ApiKey
from service.wire.fetch import FetchPartition, FetchPartitionResult
from tests.support.peers import peer
from tests.support.world import WORLD
from tests.unit.hot.logs import START_MS, batch
from tests.unit.replication.fetching import (
    EPOCH,
    FOLLOWER,
    SETTINGS,
    LeaderNode,
    LocalReplica,
    Pair,
    at_once,
    content,
    tip_of,
)


@at_once
async def test_replicas_become_equal_byte_for_byte(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 3, segment_bytes=4_000)
    for tip in pair.replicas:
        pair.write(200, tip)
    pair.leader.max_bytes = 5_000
    await pair.become_equal(pair.fetcher())
    assert pair.warnings == []


@at_once
async def test_lagging_partitions_are_appended_on_threads(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 6, segment_bytes=40_000)
    for tip in pair.replicas:
        pair.write(400, tip)
    pair.leader.max_bytes = 20_000
    io = LogIo(WORLD.threads, 2)
    await pair.become_equal(pair.fetcher(io=io), 60)
    assert pair.warnings == []
    assert sum(replica.appended for replica in pair.replicas.values()) == 0
    assert set(pair.caught_up) == set(pair.replicas)
    await io.finish()


@at_once
async def test_an_append_that_a_segment_roll_ended_is_fetched_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    io, may_go = LogIo(WORLD.threads, 1), threading.Event()
    pair.write(20)
    fetcher = pair.fetcher(io=io)
    await pair.become_equal(fetcher)
    pair.write(20)
    busy = io.run(may_go.wait, 30)
    running = asyncio.create_task(pair.fetcher(io=io).run())
    async with asyncio.timeout(30):
        while pair.replica.log.appender.background is None:
            await asyncio.sleep(0.001)
        assert pair.replica.log.appender.roll(), "whatever it was to be written to is sealed"
        assert pair.replica.log.log_end_offset == 60
        may_go.set()
        while not pair.are_equal():
            await asyncio.sleep(0.005)
    running.cancel()
    await busy
    await io.finish()
    assert content(pair.replica.log, 0) == content(pair.log, 0)
    assert pair.warnings == []


class Patient(LeaderNode):
    """Leader whose fetches without records wait until the next request, as a node's do."""

    def __init__(self, logs: Mapping[TopicIdPartition, LocalLog]) -> None:
        super().__init__(logs)
        self.waits = asyncio.Event()
        self.interrupts = 0

    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        if api_key == ApiKey.API_VERSIONS:
            self.interrupts += 1
            self.waits.set()
            return None
        answer = await super().call(api_key, version, message, timeout_ms=timeout_ms)
        if api_key == ApiKey.FETCH and not any(one.records for t in answer.responses for one in t.partitions):
            self.waits.clear()
            await self.waits.wait()
        return answer


@at_once
async def test_a_new_partition_interrupts_a_waiting_fetch(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 4)
    first, *others = pair.replicas
    leader = Patient(pair.leader.logs)
    pair.write(1, first)
    late = {tip: pair.replicas.pop(tip) for tip in others}
    fetcher = pair.fetcher(leader)
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(30):
        while pair.replica.log_end_offset < 3 or leader.waits.is_set() or leader.requests < 2:
            await asyncio.sleep(0.001)
        asked = leader.requests
        for tip, replica in late.items():
            pair.write(1, tip)
            fetcher.assign(tip, replica, EPOCH, is_clean=True)
        while any(replica.log_end_offset < 3 for replica in late.values()):
            await asyncio.sleep(0.001)
    assert leader.interrupts == 1, "once for all that came while it waited"
    assert leader.requests <= asked + 3
    running.cancel()


@at_once
async def test_over_real_connections_that_are_lost_now_and_then(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 3)
    pair.leader.max_bytes = 5_000
    for tip in pair.replicas:
        pair.write(300, tip)
    async with peer(pair.leader.behave) as node:
        channel = Channel(node.address, ChannelOptions("replica", backoff_ms=5))
        dropping = asyncio.get_running_loop().call_later(0.05, node.drop)
        await pair.become_equal(pair.fetcher(channel))
        dropping.cancel()
        await channel.close()


@at_once
async def test_a_large_answer_is_appended_in_runs(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(2_000)
    await pair.become_equal(pair.fetcher())
    assert pair.replica.appended >= 2


@at_once
async def test_flush_messages_1_flushes_each_run_before_the_next(tmp_path: Path) -> None:
    pair = Pair(tmp_path, flush_messages=1)
    pair.write(2_000)
    await pair.become_equal(pair.fetcher())
    flushed = pair.replica.files.flushed
    assert flushed[0] == 1_500
    assert flushed[-1] == 6_000
    assert len(flushed) == pair.replica.appended


@at_once
async def test_records_of_another_leader_are_truncated(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for log in (pair.log, pair.replica.log):
        for _ in range(5):
            log.append(batch(3), 1, START_MS)
    pair.write(4)
    for _ in range(9):
        pair.replica.log.append(batch(2), 2, START_MS)
    pair.replica.log.appender.note_leader_epoch(3)
    await pair.become_equal(pair.fetcher())
    assert pair.replica.log.epochs.entries == ((1, 0), (EPOCH, 15))


@at_once
async def test_an_epoch_in_which_it_led_and_wrote_nothing_is_forgotten(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.replica.log.append(batch(3), 1, START_MS)
    pair.log.append(batch(3), 1, START_MS)
    pair.replica.log.appender.note_leader_epoch(4)
    pair.log.append(batch(3), 1, START_MS)
    pair.write(1)
    pair.log.epochs.replace([(1, 0), (EPOCH, 6)])
    await pair.become_equal(pair.fetcher())
    assert pair.replica.log.end_offset_of_epoch(1) == (1, 6)


@at_once
async def test_bytes_that_are_wrong_are_fetched_again_and_the_others_go_on(tmp_path: Path) -> None:
    pair, garbled = Pair(tmp_path, 2), list[int]()

    def garble(tip: TopicIdPartition, data: bytes) -> bytes:
        if tip == pair.tip and data and len(garbled) < 3:
            garbled.append(1)
            return data[:-1] + bytes([data[-1] ^ 1]) if len(garbled) < 3 else data[: len(data) - 5]
        return data

    pair.leader.garbles = garble
    for tip in pair.replicas:
        pair.write(20, tip)
    await pair.become_equal(pair.fetcher())
    assert len(garbled) == 3
    assert any("checksum" in one for one in pair.warnings)


@at_once
async def test_a_replica_below_the_leaders_start_restarts_there(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.replica.log.append(batch(3), EPOCH - 1, START_MS)
    pair.log.truncation.restart_at(50)
    pair.leader.leaders[pair.tip].end_offset = 50
    pair.write(5)
    await pair.become_equal(pair.fetcher())
    assert pair.replica.log_start_offset == 50


@at_once
async def test_a_log_beyond_the_leaders_end_is_truncated(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(2)
    for _ in range(8):
        pair.replica.log.append(batch(3), EPOCH + 2, START_MS)
    fetcher = pair.fetcher()
    fetcher.assign(pair.tip, pair.replica, EPOCH, is_clean=False)
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(10):
        while pair.replica.log_end_offset > 6:
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})


@at_once
async def test_a_replica_below_the_local_start_is_built_from_the_archive(tmp_path: Path) -> None:
    pair = Pair(tmp_path, segment_bytes=400, remote_storage_enable=True)
    pair.write(20)
    assert pair.log.deletion.advance_local_start(30)
    pair.bucket.end, pair.bucket.epochs, pair.bucket.refusals = 33, [(EPOCH, 0)], 1
    await pair.become_equal(pair.fetcher())
    assert pair.replica.log.local_log_start_offset == 33
    assert pair.replica.log_start_offset == 0


@at_once
async def test_an_unreachable_leader_is_retried(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(3)
    pair.leader.fails = [ConnectionRefusedError("nobody"), TimeoutError("late"), ConnectionResetError("lost")]
    began = asyncio.get_running_loop().time()
    await pair.become_equal(pair.fetcher())
    assert asyncio.get_running_loop().time() - began >= 3 * SETTINGS.backoff_ms / 1000


@at_once
async def test_a_leader_of_an_unsupported_version_is_reported(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.leader.newest = 14
    running = asyncio.create_task(pair.fetcher().run())
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.wait({running})
    assert pair.warnings == ["the leader serves Fetch up to version 14 to replicas"]
    assert pair.leader.requests == 0


@at_once
async def test_a_log_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 2)
    for tip in pair.replicas:
        pair.write(10, tip)
    pair.replica.fails = StorageError("the disk is gone")
    fetcher = pair.fetcher()
    other = pair.replicas[tip_of(1)]
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(10):
        while other.high_watermark < 30:
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})
    assert pair.replica.log_end_offset == 0
    assert set(pair.warnings) == {"t0-0: the disk is gone"}


@at_once
async def test_a_disk_that_was_full_is_tried_again_and_a_log_that_is_offline_is_not(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(10)
    pair.replica.fails = StorageError("the disk is full")
    running = asyncio.create_task(pair.fetcher().run())
    async with asyncio.timeout(10):
        while len(pair.warnings) < 3:
            await asyncio.sleep(0.005)
        assert pair.replica.log_end_offset == 0
        pair.replica.fails = None
        while pair.replica.log_end_offset < 30:
            await asyncio.sleep(0.005)
    pair.replica.log.fail(StorageError("torn"))
    pair.warnings.clear()
    pair.write(10)
    await asyncio.sleep(0.2)
    running.cancel()
    await asyncio.wait({running})
    assert pair.warnings == ["t0-0: events-0 is offline: torn"]


@at_once
async def test_a_partition_that_goes_while_it_is_flushed_gets_nothing_more(tmp_path: Path) -> None:
    """It may lead by then: what its old leader had sent would come behind the beginning of its epoch."""
    pair = Pair(tmp_path, flush_messages=1)
    pair.write(2_000)
    fetcher, flushes = pair.fetcher(), pair.replica.flush

    async def flush() -> None:
        await flushes()
        fetcher.remove(pair.tip)

    pair.replica.flush = flush  # type: ignore[method-assign]
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(10):
        while len(fetcher) or not pair.replica.appended:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait({running})
    assert pair.replica.log_end_offset == 1_500


class Unflushed:
    """The device takes nothing for good until `has_room`; what is asked of it is counted."""

    def __init__(self, replica: LocalReplica) -> None:
        self.has_room = False
        self.refusals = 0
        self._flushes = replica.flush
        replica.flush = self.flush  # type: ignore[method-assign]

    async def flush(self) -> None:
        if not self.has_room:
            self.refusals += 1
            raise StorageError("no descriptor is left")
        await self._flushes()


@at_once
async def test_unflushed_records_are_not_reported_to_the_leader(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 2, flush_messages=1)
    other = tip_of(1)
    for tip in pair.replicas:
        pair.write(10, tip)
    device = Unflushed(pair.replica)
    running = asyncio.create_task(pair.fetcher().run())
    async with asyncio.timeout(10):
        while device.refusals < 3 or pair.replicas[other].log_end_offset < 30:
            await asyncio.sleep(0.005)
        assert set(pair.warnings) == {"t0-0: no descriptor is left"}
        assert pair.leader.leaders[pair.tip].followers[0].end_offset == 0, "all that it has said"
        device.has_room = True
        while not pair.are_equal():
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})
    assert pair.replica.files.flushed[0] == 30


@at_once
async def test_a_new_leader_gets_no_offset_that_is_not_flushed(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, flush_messages=1)
    pair.write(1)
    device, fetcher = Unflushed(pair.replica), pair.fetcher()
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(10):
        while not device.refusals:
            await asyncio.sleep(0.005)
        (leader,) = pair.leader.leaders.values()
        leader.image(Leadership(EPOCH + 1, 2, (1, FOLLOWER), (1, FOLLOWER)), START_MS)
        refusals = device.refusals
        fetcher.assign(pair.tip, pair.replica, EPOCH + 1, is_clean=True)
        while device.refusals < refusals + 2:
            await asyncio.sleep(0.005)
        assert leader.followers[0].end_offset == -1
        device.has_room = True
        while leader.followers[0].end_offset < 3:
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})


@at_once
async def test_a_partition_that_goes_gets_nothing_more(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(12_000)
    pair.leader.max_bytes = 10 << 20
    fetcher = pair.fetcher()
    append = pair.replica.append

    def appends(data: memoryview, run: BatchScan) -> None:
        append(data, run)
        asyncio.get_running_loop().call_soon(fetcher.remove, pair.tip)

    pair.replica.append = appends  # type: ignore[method-assign]
    running = asyncio.create_task(fetcher.run())
    await asyncio.sleep(0.3)
    running.cancel()
    await asyncio.wait({running})
    assert 0 < pair.replica.log_end_offset < 36_000
    assert len(fetcher) == 0


@at_once
async def test_an_answer_may_tell_of_what_is_gone_meanwhile(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 2)
    gone, stays = pair.leader.logs
    fetcher = pair.fetcher()
    look = pair.leader.look

    def looks(tip: TopicIdPartition, asked: FetchPartition) -> FetchPartitionResult:
        if tip == gone and gone in pair.replicas:
            fetcher.remove(gone)
            del pair.replicas[gone], pair.leader.leaders[gone]
            return FetchPartitionResult(0, high_watermark=1)
        return look(tip, asked)

    pair.leader.look = looks  # type: ignore[method-assign]
    pair.write(20, stays)
    running = asyncio.create_task(fetcher.run())
    while pair.replicas[stays].high_watermark < 60:
        await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})
    assert pair.warnings == []
    assert gone not in pair.leader.asked, "the session went on without it"
    assert pair.leader.epoch == pair.leader.requests, "one session"


@at_once
async def test_a_bug_ends_the_fetcher(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(1)
    pair.replica.fails = InvariantError("a bug")
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(pair.fetcher().run(), 5)
    assert isinstance(ended.value.exceptions[0], InvariantError)


@at_once
async def test_throttled_partitions_are_fetched_at_the_quotas_rate(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.leader.leaders[pair.tip].image(Leadership(EPOCH, 2, (1, FOLLOWER), (1,)), START_MS)
    pair.write(200)
    size = len(content(pair.log, 0))
    pair.leader.max_bytes = size // 8
    throttle = ReplicationThrottle(FOLLOWER, Quota(11, 1))
    throttle.mark(pair.tip.topic, ["*"])
    throttle.limit(size // 2)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await pair.become_equal(pair.fetcher(throttle=throttle), within_s=30)
    # The first second's worth comes at once, and the last answer is not waited for.
    assert loop.time() - begun > (size - size // 2 - size // 8) / (size // 2) - 0.1
    assert throttle.quota.recorded == size
    assert pair.leader.requests < 40


@at_once
async def test_removing_a_throttle_wakes_a_waiting_fetcher(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(20)
    throttle = ReplicationThrottle(FOLLOWER, Quota(11, 1))
    throttle.mark(pair.tip.topic, ["*"])
    throttle.limit(1)
    throttle.quota.record(1_000_000, SystemClock().monotonic_ms())
    fetcher = pair.fetcher(throttle=throttle)
    running = asyncio.create_task(fetcher.run())
    await asyncio.sleep(0.1)
    assert pair.leader.requests == 0
    throttle.mark(pair.tip.topic, ())
    fetcher.throttled((pair.tip,))
    async with asyncio.timeout(10):
        while not pair.are_equal():
            await asyncio.sleep(0.005)
    throttle.limit(5)
    fetcher.throttled()
    running.cancel()
    await asyncio.wait({running})
