"""A failed fsync is final, whichever of a directory's files or names it was asked for.

The kernel drops the pages and says so once: an fsync that succeeds later proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from tests.support.fault_disk import OneFsyncFails
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch

A = TopicIdPartition(UUID(int=1), "a", 0)
B = TopicIdPartition(UUID(int=2), "b", 0)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)


async def started(directory: Path, disk: OneFsyncFails) -> LogManager:
    logs = LogManager([directory], make_world(ManualClock(START_MS), disk))
    logs.checkpoint_high_watermarks(lambda: {A: 5}.items())
    logs.claim("cluster", 1)
    await logs.open_all(lambda _: CONFIG)
    return logs


async def use(logs: LogManager) -> None:
    """Make everything in a log directory flush, as long as the disk allows."""
    made = await logs.create([(tip, CONFIG) for tip in (A, B)])
    log = made[0]
    if not isinstance(log, LocalLog):
        return
    for n in range(12):
        with contextlib.suppress(StorageError):
            log.append(batch(1, producer_id=7, epoch=0, sequence=n), n // 4, START_MS)
            if n % 4 == 3:
                await logs.flush(log)
    with contextlib.suppress(StorageError):
        await logs.checkpoint_starts()
        async with logs.lower_recovery_point(log, 10) as may_be_cut:
            if may_be_cut:
                log.truncation.truncate_to(10)
        log.deletion.delete_segments(3, "test")
        await logs.flush(log)
    with contextlib.suppress(StorageError):
        await logs.delete([B])


def life(directory: Path, disk: OneFsyncFails) -> int:
    """Run from a start to a clean end; return how many fsyncs the start made."""

    async def run() -> int:
        logs = await started(directory, disk)
        of_start = len(disk.asked)
        await use(logs)
        await logs.close(clean=True, broker_epoch=1)
        return of_start

    return asyncio.run(run())


def test_a_failed_fsync_is_final_whatever_it_was_asked_for(tmp_path: Path) -> None:
    whole = OneFsyncFails()
    of_start = life(tmp_path / "whole", whole)
    doors = {name.rpartition("/")[2] for name in whole.asked[of_start:]}
    print(doors)
    assert doors >= {
        "partition.metadata.tmp", "leader-epoch-checkpoint", f"{3:020d}.log", f"{3:020d}.index",
        f"{3:020d}.timeindex", f"{3:020d}.snapshot", "whole", "a-0", "b-0", ".kafka_cleanshutdown.tmp",
        "recovery-point-offset-checkpoint.tmp", "log-start-offset-checkpoint.tmp",
        "replication-offset-checkpoint.tmp",
    }  # fmt: skip
    assert (tmp_path / "whole" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "whole" / ".fsync-failed").exists()
    for number in range(of_start + 1, len(whole.asked) + 1):
        directory, disk = tmp_path / str(number), OneFsyncFails(number)
        life(directory, disk)
        door = f"fsync {number} of {whole.asked[number - 1]}"
        # The next start writes anew what may be in memory alone; only the marker itself may be there.
        assert (directory / ".fsync-failed").exists(), door
        is_last = number == len(whole.asked)
        assert (directory / ".kafka_cleanshutdown").exists() is is_last, f"L5: {door}"
        # What was made in the same call may be flushed, and nothing that speaks for all logs.
        later = [name.rpartition("/")[2] for name in disk.asked[number:]]
        assert set(later) <= {"partition.metadata.tmp", "b-0", directory.name}, door


def test_a_failed_fsync_of_a_recovery_is_final_too(tmp_path: Path) -> None:
    """A torn tail is cut, and the segment behind it goes: each has an fsync of its own."""

    async def leave(logs: LogManager) -> Path:
        (log,) = await logs.create([(A, CONFIG)])
        assert isinstance(log, LocalLog)
        for n in range(12):
            log.append(batch(1, producer_id=7, epoch=0, sequence=n), 0, START_MS)
        await logs.close(clean=False)
        return log.dir

    async def open_again(directory: Path, disk: OneFsyncFails, boot_id: str) -> LogManager:
        logs = LogManager([directory], replace(make_world(disk=disk), boot_id=boot_id))
        logs.claim("cluster", 1)
        await logs.open_all(lambda _: CONFIG)
        return logs

    async def recover(directory: Path, disk: OneFsyncFails) -> bool:
        path = await leave(await open_again(directory, OneFsyncFails(), "one"))
        first, *behind = sorted(path.glob("*.log"))
        assert behind
        os.truncate(first, first.stat().st_size - 5)
        logs = await open_again(directory, disk, "two")
        found = logs.get(A.topic_id, 0) is not None
        await logs.close(clean=True, broker_epoch=1)
        return found

    whole = OneFsyncFails()
    assert asyncio.run(recover(tmp_path / "whole", whole))
    names = [name.rpartition("/")[2] for name in whole.asked]
    cut = names.index(f"{0:020d}.log")
    assert names[cut - 1] == "a-0", "what lies behind it has gone for good"
    for number in (cut, cut + 1):
        directory = tmp_path / str(number)
        assert not asyncio.run(recover(directory, OneFsyncFails(number)))
        assert (directory / ".fsync-failed").exists(), names[number - 1]
        assert not (directory / ".kafka_cleanshutdown").exists()


def test_a_directory_that_cannot_be_opened_to_be_flushed_is_flushed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was asked of the device, so it has dropped nothing: descriptors come back."""
    is_short = False
    really_open = os.open

    def short(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if is_short and flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, "")
        return really_open(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", short)

    async def run() -> None:
        nonlocal is_short
        logs = LogManager([tmp_path], make_world(ManualClock(START_MS)))
        logs.claim("cluster", 1)
        await logs.open_all(lambda _: CONFIG)
        (log,) = await logs.create([(A, CONFIG)])
        assert isinstance(log, LocalLog)
        log.append(batch(1), 0, START_MS)
        log.appender.roll()
        is_short = True
        with pytest.raises(StorageError):
            await logs.flush(log)
        (other,) = await logs.create([(B, CONFIG)])
        assert isinstance(other, StorageError)
        is_short = False
        assert log.failure is None
        await logs.flush(log)
        assert log.recovery_point == 1
        (other,) = await logs.create([(B, CONFIG)])
        assert isinstance(other, LocalLog)
        await logs.close(clean=True, broker_epoch=1)

    asyncio.run(run())
    assert not (tmp_path / ".fsync-failed").exists()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_failed_fsync_is_noted_without_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the bytes for written: a start that did not know would never write them again."""
    really_open = os.open

    def short(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if str(path).endswith(".fsync-failed") and flags & os.O_CREAT:
            raise OSError(errno.EMFILE, "")
        return really_open(path, flags, *args, **options)

    whole = OneFsyncFails()
    of_start = life(tmp_path / "whole", whole)
    directory = tmp_path / "short"
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", short)
        life(directory, OneFsyncFails(of_start + 1))
    assert not (directory / ".fsync-failed").exists()
    assert (directory / ".lock").stat().st_size > 0

    async def start_again() -> bool:
        logs = await started(directory, OneFsyncFails())
        is_noted = (directory / ".lock").stat().st_size > 0
        await logs.close(clean=True, broker_epoch=1)
        return is_noted

    assert not asyncio.run(start_again()), "it was written again"
