"""Runs that a thread writes behind the end of a log, while others want to change it, or the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.disk import DiskError
from service.base.types import Buffer
from service.hot.background_append import BackgroundAppend
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.records.scan import scan_batches
from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, WORLD, make_world
from tests.unit.hot.logs import batch, open_log, raw

EPOCH = 4
WAIT_S = 30


def a_log(directory: Path, disk: FaultDisk | None = None) -> LocalLog:
    """Return a log with three records of `EPOCH`."""
    log = open_log(directory, world=make_world(disk=disk))
    log.append(batch(3), EPOCH, START_MS)
    return log


def a_run(log: LocalLog, count: int = 5) -> memoryview:
    end = log.log_end_offset
    return raw(*((end + 2 * number, 2, EPOCH) for number in range(count)))


def begun(log: LocalLog) -> BackgroundAppend:
    data = a_run(log)
    ahead = log.appender.begin(data, scan_batches(data))
    assert ahead is not None
    return ahead


CHANGES: dict[str, Callable[[LocalLog], object]] = {
    "a leader appends": lambda log: log.append(batch(1), EPOCH, START_MS),
    "a run comes": lambda log: log.appender.append_raw(raw((log.log_end_offset + 10, 1, EPOCH))),
    "a segment ends": lambda log: log.appender.roll(),
    "a leader is elected": lambda log: log.appender.note_leader_epoch(EPOCH + 1),
    "nothing is cut": lambda log: log.truncation.truncate_to(1 << 40),
    "it is closed": lambda log: log.close(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_background_append_finishes_before_other_changes(change: str, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    ahead = begun(log)
    ahead.write()
    assert (log.log_end_offset, log.size) == (3, log.state.segments.active.size)
    CHANGES[change](log)
    assert ahead.is_appended
    assert log.log_end_offset == {"a leader appends": 14, "a run comes": 14}.get(change, 13)
    if change == "a leader is elected":
        assert log.epochs.entries[-1] == (EPOCH + 1, 13)


@pytest.mark.parametrize("change", CHANGES)
def test_a_background_append_that_no_thread_began_is_abandoned(change: str, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    ahead = begun(log)
    CHANGES[change](log)
    end, size = log.log_end_offset, log.size
    ahead.write()
    log.appender.finish()
    assert not ahead.is_appended
    assert (log.log_end_offset, log.size) == (end, size)
    assert sum(path.stat().st_size for path in log.dir.glob("*.log")) == size


def test_truncation_and_restart_remove_a_background_append(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    begun(log).write()
    assert log.truncation.truncate_to(3) == 3
    ahead = begun(log)
    ahead.write()
    assert log.truncation.restart_at(100) == 100
    assert log.size == 0
    assert ahead.is_appended


def test_an_epoch_or_a_segment_that_begins_is_for_the_loop(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    newer = raw((3, 1, EPOCH + 1))
    assert log.appender.begin(newer, scan_batches(newer)) is None
    log.appender.roll()
    data = a_run(log)
    assert log.appender.begin(data, scan_batches(data)) is None


class Gate(FaultDisk):
    """A disk that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_shut = False
        self.came = threading.Event()
        self.opens = threading.Event()

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        if self.is_shut:
            self.came.set()
            assert self.opens.wait(WAIT_S)
        super().pwrite(fd, data, position)


async def given_up(log: LocalLog, disk: Gate, io: LogIo) -> None:
    """A run is being written, and whoever wanted it waits no more; the disk takes its time."""
    data = a_run(log)
    disk.is_shut = True
    appending = asyncio.create_task(log.appender.append_on_thread(io, data, scan_batches(data)))
    while not disk.came.is_set():
        await asyncio.sleep(0.001)
    disk.is_shut = False
    appending.cancel()
    await asyncio.wait({appending})


def test_a_change_of_the_log_waits_for_a_running_append(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, io = Gate(), LogIo(WORLD.threads, 1)
        log = a_log(tmp_path / "log", disk)
        await given_up(log, disk, io)
        assert log.log_end_offset == 3, "the loop goes on"
        threading.Timer(0.05, disk.opens.set).start()
        assert log.append(batch(1), EPOCH, START_MS).first_offset == 13
        await io.finish()
        assert log.log_end_offset == 14

    asyncio.run(scenario())


def test_a_background_append_without_a_waiter_still_completes(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, io = Gate(), LogIo(WORLD.threads, 1)
        log = a_log(tmp_path / "log", disk)
        await given_up(log, disk, io)
        disk.opens.set()
        async with asyncio.timeout(WAIT_S):
            while log.log_end_offset != 13:
                await asyncio.sleep(0.001)
        await io.finish()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_process_without_descriptors_refuses_and_goes_on(is_beside: bool, tmp_path: Path) -> None:
    disk = FaultDisk()
    a_log(tmp_path / "log", disk).close()
    log = open_log(tmp_path / "log", world=make_world(disk=disk), clean=True, recovery_point=3)
    data = a_run(log)
    disk.fail("open", errno.EMFILE, path=".log")
    append = log.appender.begin if is_beside else log.appender.append_fetched
    with pytest.raises(DiskError):
        append(data, scan_batches(data))
    disk.heal()
    assert log.failure is None
    assert log.appender.append_fetched(data, scan_batches(data)).last_offset == 12


def test_a_bug_in_the_thread_leaves_nothing(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    ahead, size = begun(log), log.size
    ahead.data = memoryview(b"")
    ahead.segment.write(memoryview(b"torn"))
    ahead.is_begun = True
    log.appender.finish()
    assert not ahead.is_appended
    assert (log.dir / f"{0:020}.log").stat().st_size == size
    assert log.failure is None


@pytest.mark.parametrize("torn", [None, 0.5])
@pytest.mark.parametrize("is_taken_back", [True, False])
def test_a_failed_background_append_is_rolled_back(
    torn: float | None, is_taken_back: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        disk = FaultDisk()
        log = a_log(tmp_path / "log", disk)
        size, io = log.size, LogIo(WORLD.threads, 1)
        data = a_run(log)
        disk.fail("pwrite", errno.ENOSPC, times=1, path=".log", torn=torn)
        if not is_taken_back:
            disk.fail("truncate", errno.EIO)
        with pytest.raises(DiskError):
            await log.appender.append_on_thread(io, data, scan_batches(data))
        assert (log.log_end_offset, log.size) == (3, size)
        assert (log.failure is None) is is_taken_back
        if is_taken_back:
            assert (log.dir / f"{0:020}.log").stat().st_size == size
            assert await log.appender.append_on_thread(io, data, scan_batches(data))
            assert log.log_end_offset == 13
        await io.finish()

    asyncio.run(scenario())
