"""A machine that loses its power again and again: what one recovery cut must not come back at the next."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from errno import EMFILE, ENOSPC
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.durability import Durability
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from simulator.power_loss import Loss, Platter
from tests.simulation.test_disk_and_network import ROOT, disk_of, platter
from tests.unit.hot.logs import batch, checkpoint, headers_from

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
            assert not why, f"L2: seed {seed}, boot {boot}: {why}"
            medium.lose_power(random, random.choice(list(Loss)))


# One step that is not flushed, and the loss of power that shows it.


def machine(medium: Platter, boot: str, faults: Any = None) -> World:
    disk, _ = disk_of(medium, faults)
    return World(ManualClock(), disk, SystemThreads(), Random(1), boot_id=boot)


async def opened(world: World, config: LogConfig = CONFIG) -> tuple[LogManager, LocalLog]:
    manager = LogManager([DIRECTORY], world)
    await manager.open_all(lambda _: config)
    assert not manager.offline()
    (log,) = await manager.create([(TIP, config)])
    assert isinstance(log, LocalLog)
    return manager, log


def forget(medium: Platter, name: str) -> None:
    """What was done to one file since its last fsync is lost, whatever becomes of the others."""
    medium.file(DIRECTORY / "t-0" / name).pending.clear()


def records(medium: Platter, boot: str = "two", config: LogConfig = CONFIG) -> list[tuple[int, int]]:
    """(first offset, timestamp) of each batch that the next run of the machine finds."""

    async def read() -> list[tuple[int, int]]:
        manager, log = await opened(machine(medium, boot), config)
        found = [(one.base_offset, one.base_timestamp) for one in headers_from(log, log.log_start_offset)]
        await manager.close(clean=False)
        return found

    return asyncio.run(read())


def put(log: LocalLog, count: int, *, epoch: int = 0, timestamp: int = 1000) -> None:
    """Append `count` batches of one record each, with timestamps that go up from `timestamp`."""
    for n in range(count):
        log.append(batch(timestamp=timestamp + n), epoch, 0)


async def cut(manager: LogManager, log: LocalLog, offset: int) -> None:
    async with manager.lower_recovery_point(log, offset) as may_cut:
        assert may_cut
        assert log.truncation.truncate_to(offset) == offset


def test_a_cut_to_the_beginning_of_a_segment_is_flushed_although_nothing_is_left_of_that() -> None:
    medium = platter()

    async def main() -> None:
        manager, log = await opened(machine(medium, "one"))
        put(log, 3)
        log.appender.roll()
        put(log, 3)
        await manager.flush(log)
        await cut(manager, log, 3)
        await manager.flush(log)
        await manager.close(clean=False)

    asyncio.run(main())
    medium.lose_power(Random(1), Loss.ALL)
    assert records(medium) == [(0, 1000), (1, 1001), (2, 1002)]


def test_a_segment_begins_only_when_the_cut_of_the_one_before_it_is_durable() -> None:
    """Else a loss of power brings back what lies beyond its beginning, or what stood in its place."""
    medium = platter()

    async def main() -> None:
        manager, log = await opened(machine(medium, "one"))
        put(log, 6)
        await manager.flush(log)
        await cut(manager, log, 4)
        put(log, 1, epoch=1, timestamp=2000)
        log.appender.roll()
        put(log, 1, epoch=1, timestamp=2001)
        await manager.close(clean=False)

    asyncio.run(main())
    forget(medium, f"{0:020d}.log")
    medium.lose_power(Random(1), Loss.NONE)
    assert records(medium) == [(0, 1000), (1, 1001), (2, 1002), (3, 1003), (4, 2000), (5, 2001)]


def _cut_and_killed(medium: Platter) -> None:
    """A killed process has cut a log and not flushed it; the next begins another segment at the new end."""

    async def main() -> None:
        manager, log = await opened(machine(medium, "one"))
        put(log, 6)
        await manager.flush(log)
        await cut(manager, log, 4)
        await manager.close(clean=False)
        medium.locks.clear()
        manager, log = await opened(machine(medium, "one"))
        log.appender.roll()
        put(log, 1, timestamp=2000)
        await manager.close(clean=False)

    asyncio.run(main())
    forget(medium, f"{0:020d}.log")
    medium.lose_power(Random(1), Loss.NONE)


def test_a_tail_that_a_killed_process_cut_stays_away_once_another_segment_begins() -> None:
    medium = platter()
    _cut_and_killed(medium)
    assert records(medium) == [(0, 1000), (1, 1001), (2, 1002), (3, 1003), (4, 2000)]


def test_segments_that_overlap_take_no_replica_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an earlier release could leave them."""
    monkeypatch.setattr(Durability, "settle_cut", lambda self, segment: None)
    medium = platter()
    _cut_and_killed(medium)
    assert records(medium) == [(n, 1000 + n) for n in range(6)]


class TornWrite:
    """One write finds the disk full when half of it is done."""

    def __init__(self) -> None:
        self.is_due = False

    def fail(self, call: str, path: Path) -> int | None:
        if not self.is_due or call != "pwrite" or path.suffix != ".log":
            return None
        self.is_due = False
        return ENOSPC

    def slow_s(self, call: str, path: Path) -> float:
        return 0.0

    def part(self, size: int) -> int:
        return size // 2

    def drops_dirty(self) -> bool:
        return False

    def left(self) -> float:
        return 0.5


@pytest.mark.parametrize("flush_messages", [1, 1 << 60])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_write_that_was_taken_back_is_no_damage_when_the_power_brings_it_back(
    flush_messages: int, is_told: bool
) -> None:
    """Another segment begins behind it. `is_told`: the checkpoint says that all in front of it is durable."""
    medium, faults = platter(), TornWrite()
    config = replace(CONFIG, flush_messages=flush_messages)

    async def main() -> None:
        manager, log = await opened(machine(medium, "one", faults), config)
        put(log, 3)
        await manager.flush(log)
        if is_told:
            await manager.checkpoint_starts()
        faults.is_due = True
        with pytest.raises(StorageError):
            put(log, 1)
        log.appender.roll()
        put(log, 2, timestamp=2000)
        await manager.close(clean=False)

    asyncio.run(main())
    tail = medium.file(DIRECTORY / "t-0" / f"{0:020d}.log").pending
    assert tail.pop()[2] is None, "what took it back"
    medium.lose_power(Random(1), Loss.NONE)
    assert records(medium, config=config) == [(0, 1000), (1, 1001), (2, 1002), (3, 2000), (4, 2001)]


def test_a_log_that_is_cut_below_its_start_keeps_what_is_flushed_there_from_then_on() -> None:
    """Its start was made durable before; it must not come back."""
    medium = platter()

    async def main() -> None:
        manager, log = await opened(machine(medium, "one"))
        put(log, 6)
        log.deletion.advance_log_start(5)
        await manager.flush(log)
        await manager.checkpoint_starts()
        await cut(manager, log, 3)
        put(log, 1, epoch=1, timestamp=2000)
        await manager.flush(log)
        await manager.close(clean=False)

    asyncio.run(main())
    medium.lose_power(Random(1), Loss.ALL)
    assert records(medium) == [(3, 2000)]


def test_a_run_of_the_machine_that_cannot_be_read_now_is_no_reason_to_find_damage() -> None:
    """Its holes are what the power took, and nobody could tell."""
    medium = platter()

    async def main() -> None:
        manager, log = await opened(machine(medium, "one"))
        put(log, 3)
        await manager.flush(log)
        put(log, 3, timestamp=2000)
        await manager.close(clean=False)

    asyncio.run(main())
    hole = medium.file(DIRECTORY / "t-0" / f"{0:020d}.log").pending
    assert len(hole) == 3
    del hole[0]
    medium.lose_power(Random(1), Loss.NONE)
    with pytest.raises(StorageError):
        asyncio.run(opened(machine(medium, "two", OneOpenFails(".boot-id"))))
    medium.locks.clear()
    assert records(medium) == [(0, 1000), (1, 1001), (2, 1002)]


class OneOpenFails(TornWrite):
    """A file cannot be opened once, for want of descriptors."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def fail(self, call: str, path: Path) -> int | None:
        if call != "open" or path.name != self.name:
            return None
        self.name = ""
        return EMFILE


def test_a_run_of_the_machine_that_could_not_be_noted_at_the_start_is_noted_later() -> None:
    """Else the next one does not know that the power was lost, and takes the holes for damage."""
    medium = platter()

    async def main() -> None:
        manager, log = await opened(machine(medium, "one", OneOpenFails(".boot-id.tmp")))
        keeping_up = asyncio.create_task(manager.run())
        await asyncio.sleep(0.1)
        keeping_up.cancel()
        put(log, 3)
        await manager.flush(log)
        put(log, 3, timestamp=2000)
        await manager.close(clean=False)

    asyncio.run(main())
    del medium.file(DIRECTORY / "t-0" / f"{0:020d}.log").pending[0]
    medium.lose_power(Random(1), Loss.NONE)
    assert records(medium) == [(0, 1000), (1, 1001), (2, 1002)]
