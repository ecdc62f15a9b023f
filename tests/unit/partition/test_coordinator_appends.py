"""The log of a coordinator: appends in one epoch, high watermarks, reads of the whole log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.purgatory import Purgatory
from service.coordinator.batching import OpenBatch, size_of
from service.coordinator.records import decode_batches
from service.coordinator.shard import CoordinatorRecord, Producer
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.hot.verification import VERIFICATION_OFF
from service.partition.partition import Partition
from service.records.batch import CompressionType
from service.serving.coordinator_log import CoordinatorLog
from tests.unit.hot.logs import START_MS, batch, open_log, raw
from tests.unit.partition.leading import EPOCH as LED_IN
from tests.unit.partition.leading import Led

EPOCH = 3


def partition_of(directory: Path) -> Partition:
    log = open_log(directory)
    return Partition(log.tip, log, None, EPOCH, 1, 1 << 20, Purgatory(0))


def build(base_offset: int, *keys: bytes, producer: Producer | None = None) -> bytearray:
    records = tuple(CoordinatorRecord(key, b"value") for key in keys)
    made = OpenBatch(base_offset, 0)
    made.add(records, size_of(records), START_MS)
    data = made.build(CompressionType.NONE, producer)
    assert len(data) <= 61 + size_of(records)
    return data


def refused(partition: Partition, data: bytearray, epoch: int = EPOCH) -> ErrorCode:
    before = partition.log.log_end_offset
    with pytest.raises(RequestError) as caught:
        partition.append_records(data, epoch, START_MS)
    assert partition.log.log_end_offset == before
    return caught.value.code


def test_a_batch_is_appended_in_the_epoch_that_it_was_made_in_and_in_no_other(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    assert partition.append_records(build(0, b"a", b"b"), EPOCH, START_MS) == 0
    assert partition.append_records(build(2, b"c"), EPOCH, START_MS) == 2
    for epoch in (EPOCH - 1, EPOCH + 1):
        assert refused(partition, build(3, b"d"), epoch) is ErrorCode.not_leader_or_follower
    partition.leader_epoch = EPOCH + 1
    assert refused(partition, build(3, b"d")) is ErrorCode.not_leader_or_follower


def test_coordinator_appends_need_min_isr_and_respect_max_message_bytes(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    partition.configure(replace(partition.config, min_insync_replicas=2))
    partition.replica_count = 2
    assert refused(partition, build(0, b"a")) is ErrorCode.not_enough_replicas
    partition.isr_size = 2
    partition.configure(replace(partition.config, max_message_bytes=60))
    assert refused(partition, build(0, b"a")) is ErrorCode.message_too_large


def test_a_listener_is_told_every_high_watermark(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    told: list[int] = []
    partition.listen(told.append)
    partition.append_records(build(0, b"a", b"b"), EPOCH, START_MS)
    partition.append(batch(3), START_MS)
    partition.listen(None)
    partition.append(batch(1), START_MS)
    assert told == [2, 5]


def test_a_listener_is_not_told_commits_of_the_next_leader(tmp_path: Path) -> None:
    """That may be in the place of what the coordinator here has written, and still waits for."""
    led = Led(tmp_path)
    led.partition.append_records(build(0, b"a"), LED_IN, START_MS)
    led.partition.follow(LED_IN + 1)
    led.log.truncation.truncate_to(0)
    led.log.appender.append_raw(raw((0, 1, LED_IN + 1)))
    led.partition.set_follower_high_watermark(1)
    assert led.partition.high_watermark == 1
    assert led.marks == []


class SlowDisk:
    """Each flush ends when it is let go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Queue[asyncio.Event]()

    async def flush(self, log: LocalLog) -> None:
        done = asyncio.Event()
        self.begun.put_nowait(done)
        await done.wait()


def test_nor_is_it_when_it_is_flushed_what_the_next_leader_commits(tmp_path: Path) -> None:
    async def scenario() -> None:
        led, disk, told = Led(tmp_path), SlowDisk(), list[int]()
        partition = led.partition
        partition.configure(replace(partition.config, flush_messages=1))
        log = CoordinatorLog(partition, cast("LogManager", disk), led.log.state.world.clock)
        log.listen(told.append)
        for offset in range(2):
            log.append(build(offset, b"a"), LED_IN)
        led.fetch(2, 1)
        led.fetch(3, 1)
        flushed = await disk.begun.get()
        partition.follow(LED_IN + 1)
        led.log.truncation.truncate_to(1)
        led.log.appender.append_raw(raw((1, 1, LED_IN + 1)))
        partition.set_follower_high_watermark(2)
        flushed.set()
        while log._flushing is not None:
            if not disk.begun.empty():
                disk.begun.get_nowait().set()
            await asyncio.sleep(0)
        assert told == [1]

    asyncio.run(scenario())


class FailingDisk:
    """The first flushes find no descriptor."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def flush(self, log: LocalLog) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageError("Too many open files")


def test_a_mark_whose_flush_failed_is_told_without_a_further_append(tmp_path: Path) -> None:
    """Who waits for it writes nothing else before."""

    async def scenario() -> None:
        partition, told = partition_of(tmp_path), asyncio.Queue[int]()
        partition.configure(replace(partition.config, flush_messages=1))
        disk = cast("LogManager", FailingDisk(2))
        log = CoordinatorLog(partition, disk, partition.log.state.world.clock)
        log.listen(told.put_nowait)
        log.append(build(0, b"a", b"b"), EPOCH)
        assert log.high_watermark == 0
        assert await asyncio.wait_for(told.get(), 30) == 2

    asyncio.run(scenario())


def test_flushes_that_fail_again_and_again_are_told_of_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.serving.coordinator_log._RETRY_S", (0.0,))

    async def scenario() -> None:
        partition, told = partition_of(tmp_path), asyncio.Queue[int]()
        partition.configure(replace(partition.config, flush_messages=1))
        disk = cast("LogManager", FailingDisk(20))
        log = CoordinatorLog(partition, disk, partition.log.state.world.clock)
        log.listen(told.put_nowait)
        log.append(build(0, b"a"), EPOCH)
        assert await asyncio.wait_for(told.get(), 30) == 1

    asyncio.run(scenario())
    lines = [one.getMessage() for one in caplog.records if "flush failed" in one.getMessage()]
    assert len(lines) == 5, "after 1, 2, 4, 8 and 16 failures"


def test_a_flush_is_not_retried_without_a_listener_or_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        for is_offline in (False, True):
            partition = partition_of(tmp_path / str(is_offline))
            partition.configure(replace(partition.config, flush_messages=1))
            disk = FailingDisk(1 << 30)
            log = CoordinatorLog(partition, cast("LogManager", disk), partition.log.state.world.clock)
            log.listen(lambda mark: None)
            log.append(build(0, b"a"), EPOCH)
            task = log._flushing
            assert task is not None
            if is_offline:
                partition.log.state.fail("its device is gone")
            else:
                log.listen(None)
            await asyncio.wait_for(task, 30)

    asyncio.run(scenario())


def test_a_closed_replica_refuses_appends(tmp_path: Path) -> None:
    """Its coordinator hears of that when the files are out of the way, and all would be lost with them."""
    partition = partition_of(tmp_path)
    told: list[int] = []
    partition.listen(told.append)
    partition.append_records(build(0, b"a"), EPOCH, START_MS)
    partition.close()
    assert refused(partition, build(1, b"b")) is ErrorCode.not_leader_or_follower
    assert told == [1]


def test_all_of_the_log_is_read_and_what_is_in_it(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    partition.append_records(build(0, b"a", b"b"), EPOCH, START_MS)
    partition.append_records(build(2, b"t", producer=Producer(7, 1)), EPOCH, START_MS, VERIFICATION_OFF)
    partition.high_watermark = 1
    [found] = partition.read_to_end(0, 1 << 20).parts
    stored = decode_batches(found.read())
    assert [(one.base_offset, one.last_offset, one.producer_id, one.producer_epoch) for one in stored] == [
        (0, 1, -1, -1),
        (2, 2, 7, 1),
    ]
    assert list(stored[0].records(1)) == [(1, b"b", b"value")]


def test_a_coordinators_batches_have_no_sequence_and_an_epoch_that_counts(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    for offset in range(3):
        partition.append_records(
            build(offset, b"t", producer=Producer(7, 1)), EPOCH, START_MS, VERIFICATION_OFF
        )
    assert refused(partition, build(3, b"t", producer=Producer(7, 0))) is ErrorCode.invalid_producer_epoch
    newer = build(3, b"t", producer=Producer(7, 2))
    assert refused(partition, newer) is ErrorCode.invalid_txn_state
    assert partition.append_records(newer, EPOCH, START_MS, VERIFICATION_OFF) == 3


def coordinator_log(partition: Partition) -> CoordinatorLog:
    return CoordinatorLog(partition, cast("LogManager", SlowDisk()), partition.log.state.world.clock)


def test_a_built_batch_is_written_as_any_and_committed_by_its_append(tmp_path: Path) -> None:
    partition, other = partition_of(tmp_path / "built"), partition_of(tmp_path / "any")
    log, told = coordinator_log(partition), list[int]()
    log.listen(told.append)
    for offset, keys in ((0, (b"a", b"b")), (2, (b"c",))):
        assert log.commits_at_once(len(keys), 100)
        assert log.append_built(build(offset, *keys), len(keys), START_MS, EPOCH) == offset
        other.append_records(build(offset, *keys), EPOCH, START_MS)
    assert (told, partition.high_watermark) == ([2, 3], 3)
    written, same = (one.log.state.segments.active.log.path.read_bytes() for one in (partition, other))
    assert len(written) > 2 * 61
    assert written == same
    assert partition.log.producers.end_offset == partition.log.log_end_offset == 3
    assert partition.log.size == len(written)


def test_a_built_batch_is_refused_as_any(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    log = coordinator_log(partition)
    refusals: list[tuple[int, dict[str, Any], ErrorCode]] = [
        (EPOCH + 1, {}, ErrorCode.not_leader_or_follower),
        (EPOCH, {"max_message_bytes": 60}, ErrorCode.message_too_large),
        (EPOCH, {"segment_bytes": 60}, ErrorCode.record_list_too_large),
        (EPOCH, {"min_insync_replicas": 2}, ErrorCode.not_enough_replicas),
    ]
    for epoch, change, code in refusals:
        before = partition.config
        partition.configure(replace(before, **change))
        partition.replica_count = 2
        with pytest.raises(RequestError) as caught:
            log.append_built(build(0, b"a"), 1, START_MS, epoch)
        assert caught.value.code is code
        partition.configure(before)
    assert (partition.log.log_end_offset, partition.log.size) == (0, 0)


def test_an_append_that_waits_is_not_committed_at_once(tmp_path: Path) -> None:
    """Followers, the device and a cut make it wait; what is too large is refused."""
    led, partition = Led(tmp_path / "led"), partition_of(tmp_path / "alone")
    assert not coordinator_log(led.partition).commits_at_once(1, 100)
    log = coordinator_log(partition)
    assert log.commits_at_once(1, partition.config.max_message_bytes)
    assert not log.commits_at_once(1, partition.config.max_message_bytes + 1)
    partition.configure(replace(partition.config, flush_messages=3))
    assert log.commits_at_once(2, 100)
    assert not log.commits_at_once(3, 100)
    partition.gate.close(UUID(int=1), START_MS, 1000)
    assert not log.commits_at_once(1, 100)
