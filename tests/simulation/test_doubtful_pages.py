"""Memory and device differ, and only memory is read: until the power fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.disk import MissingFile
from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import DOUBTFUL
from service.hot.manager import LogManager
from simulator.power_loss import Loss, Platter
from simulator.process_disk import NoFaults
from tests.simulation.test_disk_and_network import ROOT, disk_of, platter
from tests.unit.hot.logs import batch, checkpoint, records_from

TIP = TopicIdPartition(UUID(int=7), "t", 0)
DIRECTORY = ROOT / "logs"


class FailingFsync(NoFaults):
    """Every fsync of a segment fails and drops its pages, while it is on."""

    def __init__(self) -> None:
        self.is_on = False

    def fail(self, call: str, path: Path) -> int | None:
        return 5 if self.is_on and call == "fsync" and path.suffix == ".log" else None

    def drops_dirty(self) -> bool:
        return True


def run(medium: Platter, faults: NoFaults, work: Callable[[LogManager], Awaitable[None]]) -> None:
    """One process on the disk, killed after `work`."""
    disk, _ = disk_of(medium, faults)

    async def main() -> None:
        manager = LogManager([DIRECTORY], World(ManualClock(), disk, SystemThreads(), Random(1)))
        try:
            await manager.open_all(lambda _: LogConfig())
            await work(manager)
        finally:
            await manager.close(clean=False)

    asyncio.run(main())


async def made(manager: LogManager) -> LocalLog:
    (log,) = await manager.create([(TIP, LogConfig())])
    assert isinstance(log, LocalLog)
    return log


def test_records_lost_by_a_failed_fsync_are_rewritten_before_use() -> None:
    medium, faults = platter(), FailingFsync()

    async def fails(manager: LogManager) -> None:
        log = await made(manager)
        log.append(batch(3), 0, 0)
        await manager.flush(log)
        faults.is_on = True
        log.append(batch(4), 0, 0)
        with pytest.raises(StorageError):
            await manager.flush(log)

    async def goes_on(manager: LogManager) -> None:
        log = manager.logs()[TIP.topic_id, TIP.partition]
        assert log.log_end_offset == 7
        log.append(batch(2), 0, 0)
        await manager.flush(log)
        assert log.recovery_point == 9

    async def finds_all(manager: LogManager) -> None:
        log = manager.logs()[TIP.topic_id, TIP.partition]
        assert [record.offset for record in records_from(log)] == list(range(9))

    run(medium, faults, fails)
    faults.is_on = False
    run(medium, faults, goes_on)
    with pytest.raises(MissingFile):
        disk_of(medium)[0].stat(DIRECTORY / DOUBTFUL)
    medium.lose_power(Random(3), Loss.ALL)
    run(medium, faults, finds_all)


def test_a_segment_that_went_before_it_was_flushed_is_whole_when_a_crash_brings_it_back() -> None:
    medium = platter()

    async def goes(manager: LogManager) -> None:
        log = await made(manager)
        await manager.flush(log)
        log.append(batch(3), 0, 0)
        log.appender.roll()
        log.append(batch(2), 0, 0)
        log.deletion.delete_segments(2, "retention")
        await manager.flush(log)
        assert log.recovery_point == 5
        checkpoint(manager)

    async def is_there(manager: LogManager) -> None:
        assert manager.offline() == []
        assert manager.logs()[TIP.topic_id, TIP.partition].log_end_offset == 5

    run(medium, NoFaults(), goes)
    medium.lose_power(Random(3), Loss.ALL)
    run(medium, NoFaults(), is_there)
