"""A machine that loses its power again and again: what one recovery cut must not come back at the next."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from simulator.platter import Loss, Platter
from tests.simulation.test_disk_and_network import ROOT, disk_of, platter
from tests.unit.hot.logs import batch, checkpoint

TIP = TopicIdPartition(UUID(int=7), "t", 0)
DIRECTORY = ROOT / "logs"
CONFIG = LogConfig(segment_bytes=1000)


async def sometimes(manager: LogManager, log: LocalLog, random: Random) -> None:
    """What else befalls a log between two appends."""
    start, end = log.log_start_offset, log.log_end_offset
    match random.randrange(60):
        case 0 | 1 | 2:
            await manager.flush(log)
        case 3:
            offset = random.randint(start, end)
            async with manager.lower_recovery_point(log, log.truncation.end_after(offset)) as may_cut:
                if may_cut:
                    log.truncation.truncate_to(offset)
                    await manager.flush(log)
        case 4:
            log.deletion.advance_log_start(random.randint(start, end))
        case 5:
            async with manager.lower_recovery_point(log, end) as may_cut:
                if may_cut:
                    log.truncation.restart_at(end + random.randrange(3), end)
        case 6:
            log.appender.roll()


def run(medium: Platter, boot: int, random: Random) -> str:
    """One run of the machine: the log is opened and appended to, and some of it flushed; why it could not."""
    disk, _ = disk_of(medium)
    world = World(ManualClock(), disk, SystemThreads(), random, boot_id=f"boot {boot}")

    async def main() -> str:
        manager = LogManager([DIRECTORY], world)
        try:
            await manager.open_all(lambda _: CONFIG)
            if offline := manager.offline():
                return f"{offline}"
            (log,) = await manager.create([(TIP, CONFIG)])
            assert isinstance(log, LocalLog)
            for _ in range(random.randrange(30)):
                log.append(batch(random.randint(1, 3)), 0, 0)
                await sometimes(manager, log, random)
            if random.random() < 0.2:
                checkpoint(manager)
            return ""
        finally:
            await manager.close(clean=False)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(100, 1000, 100))]
)
def test_a_log_is_opened_after_every_loss_of_power(first: int) -> None:
    for seed in range(first, first + 100):
        random, medium = Random(seed), platter()
        for boot in range(8):
            why = run(medium, boot, random)
            assert not why, f"seed {seed}, boot {boot}: {why}"
            medium.lose_power(random, random.choice(list(Loss)))
