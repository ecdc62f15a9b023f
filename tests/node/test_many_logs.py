"""Work on many logs costs as much as changes, and is done in slices."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from uuid import UUID

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot import flusher
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from tests.support.fault_disk import FaultDisk
from tests.support.waiting import until
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import at_once, batch
from tests.unit.hot.test_manager import close, while_running

CONFIG = LogConfig(segment_bytes=1000, file_delete_delay_ms=0)


def manager(disk: FaultDisk, path: Path, clock: ManualClock | None = None) -> LogManager:
    made = LogManager([path], make_world(clock, disk))
    asyncio.run(made.open_all(lambda _: CONFIG))
    return made


def tips(topic: str, count: int) -> list[TopicIdPartition]:
    return [TopicIdPartition(UUID(int=len(topic)), topic, n) for n in range(count)]


def made(logs: LogManager, topic: str, count: int) -> list[LocalLog]:
    found = at_once(logs.create([(tip, CONFIG) for tip in tips(topic, count)]))
    assert all(isinstance(log, LocalLog) for log in found)
    return [log for log in found if isinstance(log, LocalLog)]


def calls_of(disk: FaultDisk) -> Counter[str]:
    found = disk.calls.copy()
    disk.calls.clear()
    return found


def test_making_and_deleting_costs_the_disk_the_same_beside_many_as_beside_none(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    calls_of(disk)
    costs = []
    for others in ("none", "others", "moreothers"):
        made(logs, f"t{others}", 64)
        making = calls_of(disk)
        at_once(logs.delete(tips(f"t{others}", 64)))
        costs.append((making, calls_of(disk)))
        made(logs, others, 300)
        calls_of(disk)
    assert costs[0] == costs[1] == costs[2]
    assert costs[0][1] == {"rename": 64}
    close(logs)


def test_others_take_their_turn_while_many_are_made_and_deleted(tmp_path: Path) -> None:
    logs = manager(FaultDisk(), tmp_path)

    async def scenario() -> tuple[int, int]:
        turns = 0

        async def innocent() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(innocent())
        await logs.create([(tip, CONFIG) for tip in tips("many", 1500)])
        making, turns = turns, 0
        await logs.delete(tips("many", 1500))
        beside.cancel()
        return making, turns

    making, deleting = asyncio.run(scenario())
    assert min(making, deleting) > 6  # slices of two milliseconds, and groups on the threads
    close(logs)


def test_new_logs_hold_no_descriptors_and_written_ones_hold_one(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = LogManager([tmp_path], make_world(None, disk), max_open_files=4)
    asyncio.run(logs.open_all(lambda _: CONFIG))
    before = len(disk._paths)
    found = made(logs, "many", 50)
    assert len(disk._paths) == before
    for log in found:
        log.append(batch(1), 0, START_MS)
    assert len(disk._paths) <= before + 50 + 4
    close(logs)


def test_nothing_is_done_while_nothing_changes(tmp_path: Path) -> None:
    clock, disk = ManualClock(START_MS), FaultDisk()
    logs = manager(disk, tmp_path, clock)
    made(logs, "many", 30)

    async def scenario() -> None:
        work = logs._maintenance
        await until(lambda: (not work.flusher.has_waiting and not work.offsets.is_changed) or wrote())
        await logs._checkpoints.finish()
        disk.calls.clear()
        for _ in range(3):
            clock.advance(70_000)
            logs._maintenance._wake_up()
            await asyncio.sleep(0.02)
        assert not disk.calls

    def wrote() -> bool:
        clock.advance(70_000)
        logs._maintenance._wake_up()
        return False

    while_running(logs, scenario)
    close(logs)


def test_only_logs_with_a_time_to_flush_are_looked_at(tmp_path: Path) -> None:
    clock, disk = ManualClock(START_MS), FaultDisk()
    logs = manager(disk, tmp_path, clock)
    plain, timed, *_ = made(logs, "many", 30)
    timed.config = LogConfig(flush_ms=5_000)
    assert list(logs._maintenance.flusher._timed) == [timed]
    for flush_ms in range(4_000, 100, -10):
        timed.config = LogConfig(flush_ms=flush_ms)
    assert len(logs._maintenance.flusher._wheel) == 1
    timed.config = LogConfig(flush_ms=100)
    for log in (plain, timed):
        log.append(batch(1), 0, START_MS)
    clock.advance(100)
    asyncio.run(logs._maintenance.flusher.flush_due())
    assert (plain.recovery_point, timed.recovery_point) == (0, 1)
    timed.config = CONFIG
    assert not logs._maintenance.flusher._timed
    assert flusher._CHECK_MS >= 1000
    close(logs)


class WallThatGoesBack(ManualClock):
    """Clock whose wall time is set back by an hour."""

    is_set_back = False

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000 * self.is_set_back


def test_a_wall_clock_that_is_set_back_keeps_no_flush_waiting(tmp_path: Path) -> None:
    clock = WallThatGoesBack(START_MS)
    logs = manager(FaultDisk(), tmp_path, clock)
    (log,) = made(logs, "a", 1)
    log.config = LogConfig(flush_ms=100)
    log.append(batch(1), 0, START_MS)
    clock.is_set_back = True
    clock.advance(100)
    asyncio.run(logs._maintenance.flusher.flush_due())
    assert log.recovery_point == 1
    close(logs)


def test_flushes_that_come_together_share_few_jobs(tmp_path: Path) -> None:
    logs = manager(FaultDisk(), tmp_path)
    found = made(logs, "many", 64)
    jobs = 0
    run = logs._io.run

    def counted(job: object, *args: object) -> object:
        nonlocal jobs
        jobs += 1
        return run(job, *args)  # type: ignore[arg-type]

    logs._io.run = counted  # type: ignore[method-assign,assignment]
    for log in found:
        log.append(batch(1), 0, START_MS)

    async def scenario() -> None:
        await asyncio.gather(*(logs.flush(log) for log in found))

    asyncio.run(scenario())
    assert all(log.recovery_point == 1 for log in found)
    assert jobs <= 2 + 64 // 4
    close(logs)


def test_files_of_a_deleted_log_are_not_looked_for_under_its_successors_name(tmp_path: Path) -> None:
    """What retention let go of goes with its directory, once that has another name."""
    clock, disk = ManualClock(START_MS), FaultDisk()
    logs = manager(disk, tmp_path, clock)
    (log,) = made(logs, "a", 1)
    for n in range(30):
        log.append(batch(2, timestamp=START_MS + n), 0, START_MS)
    log.deletion.advance_log_start(30)
    at_once(logs.delete(tips("a", 1)))
    successor = TopicIdPartition(UUID(int=99), "a", 0)
    (again,) = at_once(logs.create([(successor, CONFIG)]))
    assert isinstance(again, LocalLog)
    again.append(batch(3), 0, START_MS)
    clock.advance(60_000)
    while_running(logs, lambda: until(lambda: len(list(tmp_path.glob("a-0*"))) == 1))
    assert (again.dir / f"{0:020d}.log").stat().st_size == again.size
    close(logs)
