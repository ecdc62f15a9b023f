"""A log that follows: unchanged appends, and truncation that no later start takes for damage."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import CorruptionError, StorageError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.partition.follower_log import LocalFollowerLog
from service.records.batch import stamp
from service.records.scan import scan_batches
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, batch, checkpointed, headers_from, open_log, raw
from tests.unit.partition.following import NoFiles, Standing

A = TopicIdPartition(UUID(int=1), "a", 0)
CONFIG = LogConfig(segment_bytes=1000)
POINTS = "recovery-point-offset-checkpoint"


def at_once(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def follow(log: LocalLog, high_watermark: int = 0) -> tuple[LocalFollowerLog, Standing, NoFiles]:
    standing, files = Standing(log, high_watermark), NoFiles()
    return LocalFollowerLog(standing, files), standing, files


def append(followed: LocalFollowerLog, data: memoryview) -> None:
    followed.append(data, scan_batches(data))


def always() -> bool:
    return True


async def open_logs(directory: Path, disk: FaultDisk | None = None) -> LogManager:
    logs = LogManager([directory], make_world(disk=disk))
    await logs.open_all(lambda _: CONFIG)
    return logs


async def log_of(logs: LogManager) -> LocalLog:
    (log,) = await logs.create([(A, CONFIG)])
    assert isinstance(log, LocalLog)
    return log


def test_no_batch_is_too_large_for_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    followed, _, _ = follow(log)
    append(followed, raw((0, 1, 0), (1, 20, 0), (21, 1, 0)))
    assert [segment.base_offset for segment in log] == [0, 1, 21]
    assert [header.base_offset for header in headers_from(log, 0)] == [0, 1, 21]


def test_records_below_the_log_end_are_refused(tmp_path: Path) -> None:
    followed, _, _ = follow(open_log(tmp_path))
    append(followed, raw((0, 2, 3), (2, 2, 3)))
    with pytest.raises(CorruptionError, match="at 4"):
        append(followed, raw((2, 2, 3), (4, 2, 3)))
    assert (followed.log_end_offset, followed.latest_epoch) == (4, 3)


def test_offsets_may_be_missing_where_records_are_compacted_or_were(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    followed, _, _ = follow(log)
    assert followed.may_lack, "its leader may have compacted under a policy that is no more"
    append(followed, raw((0, 1, 0), (7, 1, 0)))
    assert followed.log_end_offset == 8


def test_producers_are_remembered_from_when_their_records_came(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    followed, _, _ = follow(log)
    old = batch(2, timestamp=1, producer_id=9, epoch=0, sequence=0).data
    stamp(old, 0, 0, 1)
    append(followed, old)
    entry = log.producers.get(9)
    assert entry is not None
    assert entry.last_timestamp == START_MS


@at_once
async def test_the_high_watermark_goes_with_what_is_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    followed, standing, files = follow(log)
    append(followed, raw((0, 4, 1), (4, 4, 1), (8, 4, 2)))
    followed.follow(12, 2)
    assert (standing.high_watermark, log.log_start_offset) == (12, 2)
    assert await followed.truncate(6, always)  # the batch that it lies in goes, too
    assert files.asked == [4]
    assert (log.log_end_offset, standing.high_watermark, followed.latest_epoch) == (4, 4, 1)
    assert followed.end_offset_of_epoch(1) == (1, 4)


@at_once
async def test_a_restart_keeps_a_later_log_start_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    followed, standing, _ = follow(log)
    assert await followed.restart(10, always)
    assert (log.log_start_offset, log.log_end_offset, standing.high_watermark) == (10, 10, 10)
    assert await followed.restart(8, always)
    append(followed, raw((8, 5, 1)))
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (10, 10, 13)
    followed.follow(13, 0)
    assert standing.high_watermark == 13


@at_once
async def test_nothing_is_cut_that_is_not_wanted_any_more_or_not_told(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    followed, _, files = follow(log)
    append(followed, raw((0, 4, 1), (4, 4, 1)))
    assert not await followed.truncate(4, lambda: False)
    assert not await followed.restart(20, lambda: False)
    files.says_so = False
    assert not await followed.truncate(4, always)
    assert log.log_end_offset == 8


def test_producers_are_as_they_were_at_the_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    followed, _, _ = follow(log)
    for n in range(8):
        one = batch(2, producer_id=9, epoch=0, sequence=2 * n).data
        stamp(one, 0, 2 * n, 1)
        append(followed, one)
    asyncio.run(followed.truncate(6, always))
    entry = log.producers.get(9)
    assert entry is not None
    assert (entry.last_sequence, entry.last_offset) == (5, 5)
    again = batch(2, producer_id=9, epoch=0, sequence=6)
    assert log.append(again, 2, START_MS)[:2] == (6, 7)


# -- with files


async def filled(logs: LogManager) -> LocalLog:
    log = await log_of(logs)
    for n in range(8):
        log.appender.append_raw(raw((4 * n, 4, n // 3)))
    return log


@at_once
async def test_a_log_that_is_cut_below_what_was_durable_is_sound_after_a_crash(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    log = await filled(logs)
    await logs.flush(log)
    await logs.checkpoint_starts()
    assert checkpointed(tmp_path / POINTS) == {("a", 0): 32}
    followed = LocalFollowerLog(Standing(log, 32), logs)
    assert await followed.truncate(10, always)
    assert log.log_end_offset == 8
    assert checkpointed(tmp_path / POINTS) == {("a", 0): 8}
    await logs.close(clean=False)
    again = await open_logs(tmp_path)
    assert again.offline() == []
    assert (await log_of(again)).log_end_offset == 8
    await again.close()


@at_once
async def test_a_flush_does_not_raise_a_lowered_recovery_point_checkpoint(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    log = await filled(logs)
    async with logs.lower_recovery_point(log, 8) as is_told:
        assert is_told
        await logs.flush(log)
        await logs.checkpoint_starts()
        assert (log.recovery_point, checkpointed(tmp_path / POINTS)) == (32, {("a", 0): 8})
    await logs.checkpoint_starts()
    assert checkpointed(tmp_path / POINTS) == {("a", 0): 32}
    await logs.close()


@at_once
async def test_truncating_unflushed_records_writes_no_checkpoint(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    log = await filled(logs)
    followed = LocalFollowerLog(Standing(log, 8), logs)
    assert await followed.truncate(8, always)
    assert not (tmp_path / POINTS).exists()
    await logs.close()


@at_once
async def test_a_disk_that_takes_no_checkpoint_keeps_the_log_as_it_is(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = await open_logs(tmp_path, disk)
    log = await filled(logs)
    await logs.flush(log)
    await logs.checkpoint_starts()
    followed = LocalFollowerLog(Standing(log, 32), logs)
    disk.fail("rename", errno.ENOSPC, path=POINTS)
    assert not await followed.truncate(8, always)
    assert log.log_end_offset == 32
    disk.heal()
    assert await followed.truncate(8, always)
    await logs.close()


@at_once
async def test_a_cut_for_one_leader_is_not_disturbed_by_that_for_the_leader_before(tmp_path: Path) -> None:
    """The first waits for its checkpoint, and is not wanted any more when that is written."""
    logs = await open_logs(tmp_path)
    log = await filled(logs)
    await logs.flush(log)
    await logs.checkpoint_starts()
    followed = LocalFollowerLog(Standing(log, 32), logs)
    before = asyncio.create_task(followed.truncate(10, lambda: False))
    await asyncio.sleep(0)
    async with logs.lower_recovery_point(log, 4) as is_told:
        assert is_told
        assert not await before
        await logs.checkpoint_starts()
        assert checkpointed(tmp_path / POINTS) == {("a", 0): 4}
        assert log.recovery_point == 32
    await logs.checkpoint_starts()
    assert checkpointed(tmp_path / POINTS) == {("a", 0): 32}
    await logs.close()


@at_once
async def test_a_log_that_goes_while_it_is_to_be_cut_leaves_no_word_to_its_successor(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    log = await filled(logs)
    await logs.flush(log)
    async with logs.lower_recovery_point(log, 8):
        await logs.delete([A])
    await logs.checkpoint_starts()
    assert checkpointed(tmp_path / POINTS) == {}
    await log_of(logs)
    await logs.close(clean=False)
    again = await open_logs(tmp_path)
    assert again.offline() == []
    await again.close()


@at_once
async def test_a_log_that_is_gone_is_not_cut(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    log = await filled(logs)
    followed = LocalFollowerLog(Standing(log), logs)
    await logs.delete([A])
    with pytest.raises(StorageError, match="not here any more"):
        await followed.truncate(8, always)
    await logs.close()


def cut_with_faults(directory: Path, after: int | None) -> int:
    """Cut a log whose disk refuses everything after `after` calls (None: nothing); how many calls it took."""

    async def cut() -> int:
        disk = FaultDisk()
        logs = await open_logs(directory, disk)
        log = await filled(logs)
        await logs.flush(log)
        await logs.checkpoint_starts()
        before = disk.calls.total()
        if after is not None:
            disk.fail("*", errno.EIO, after=after)
        with contextlib.suppress(StorageError):
            await LocalFollowerLog(Standing(log, 32), logs).truncate(10, always)
        took = disk.calls.total() - before
        disk.heal()
        await logs.close(clean=False)
        return took

    return asyncio.run(cut())


async def end_at_the_next_start(directory: Path) -> int:
    logs = await open_logs(directory)
    assert logs.offline() == []
    end = (await log_of(logs)).log_end_offset
    await logs.close()
    return end


def test_a_process_that_ends_anywhere_in_a_cut_leaves_a_sound_log(tmp_path: Path) -> None:
    calls = cut_with_faults(tmp_path / "plain", None)
    assert calls > 5
    ends = set()
    for after in range(calls):
        directory = tmp_path / str(after)
        cut_with_faults(directory, after)

        ends.add(asyncio.run(end_at_the_next_start(directory)))
    assert {8, 32} <= ends


@at_once
async def test_producers_are_rebuilt_alike_on_a_thread(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    log = await log_of(logs)
    for n in range(40):
        one = batch(2, producer_id=n % 3, epoch=0, sequence=2 * (n // 3)).data
        stamp(one, 0, 2 * n, 1)
        log.appender.append_raw(one)
    assert len(log.state.segments) > 3
    for end in (72, 50, 30, 4, 0):
        found = {pid: entry.last_sequence for pid, entry in log.truncation.producers_at(end)}
        assert await LocalFollowerLog(Standing(log), logs).truncate(end, always)
        assert {pid: entry.last_sequence for pid, entry in log.producers} == found
        assert found == {pid: 2 * len(range(pid, end // 2, 3)) - 1 for pid in range(min(end // 2, 3))}
    await logs.close()
