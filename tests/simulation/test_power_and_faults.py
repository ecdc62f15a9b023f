"""A log on a disk that fails now and then, in a machine that loses its power again and again.

What was flushed stays, what was cut and flushed does not come back, and the log is opened each time: no draw
of losses, kills and single errors damages it. Its open transactions and aborted rows are those of a replay.
"""

from __future__ import annotations

import asyncio
from errno import EIO, EMFILE, ENOSPC
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.records.validation import AppendOrigin, ValidatedBatch
from simulator.power_loss import Loss, Platter
from tests.simulation.replayed_rows import Kind, check_transactions, replay
from tests.simulation.test_disk_and_network import ROOT, disk_of, platter
from tests.unit.hot.logs import START_MS, batch, headers_from

TIP = TopicIdPartition(UUID(int=7), "t", 0)
DIRECTORY = ROOT / "logs"
CONFIGS = (
    LogConfig(segment_bytes=1000, file_delete_delay_ms=0, index_interval_bytes=0),
    LogConfig(segment_bytes=1000, file_delete_delay_ms=0, index_interval_bytes=0, flush_messages=1),
    LogConfig(segment_bytes=1000, file_delete_delay_ms=5, retention_bytes=3000),
    LogConfig(segment_bytes=1000, file_delete_delay_ms=0, remote_storage_enable=True),
)

Batch = tuple[int, int]
"""first offset and timestamp"""


class Fault(NamedTuple):
    """Which calls fail, from a drawn one on: that one alone, or all that follow, too."""

    calls: tuple[str, ...]
    errno: int
    is_for_ever: bool
    is_at_start: bool


FLUSHES = ("fsync", "fsync_dir")
ANY = (*FLUSHES, "open", "pread", "pwrite", "truncate", "size", "stat", "list", "rename", "unlink", "mkdir")
FAULTS = (
    None,
    None,
    *(Fault(FLUSHES, EIO, False, is_at_start) for is_at_start in (False, True)),
    *(Fault(("open",), EMFILE, False, is_at_start) for is_at_start in (False, True)),
    Fault(("open",), EMFILE, True, False),
    Fault(("pwrite",), ENOSPC, False, False),
    Fault(ANY, EIO, False, False),
    *(Fault(ANY, EIO, True, is_at_start) for is_at_start in (False, True)),
)


class Faults:
    """`simulator.process_disk.DiskFaults`: none before `strike`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._fault: Fault | None = None
        self._left = 0
        self.has_struck = False

    def strike(self, fault: Fault, within: int) -> None:
        self._fault, self._left = fault, self._random.randint(1, within)

    def fail(self, call: str, path: Path) -> int | None:
        fault = self._fault
        if fault is None or call not in fault.calls:
            return None
        self._left -= 1
        if self._left > 0 or (self._left < 0 and not fault.is_for_ever):
            return None
        self.has_struck = True
        return fault.errno

    def slow_s(self, call: str, path: Path) -> float:
        return 0.0

    def part(self, size: int) -> int:
        return self._random.randint(0, size)

    def drops_dirty(self) -> bool:
        return self._fault is not None and not self._fault.is_for_ever and self._random.random() < 0.7

    def left(self) -> float:
        return 0.5


class Past:
    """What the log may hold: part of one of `eras`, up to `floor` at least, the newest era last.

    An era ends where the log is cut, or a batch is refused; a flush leaves the newest alone.
    """

    def __init__(self) -> None:
        self.eras: list[dict[Batch, None]] = [{}]
        self.floor = 0
        self.start = 0
        self.boot = 0
        self.was_killed = False
        self.number = 0
        self.kinds: dict[int, tuple[int, Kind]] = {}
        """by timestamp: producer id and kind of each batch"""

    def begin(self, end: int) -> None:
        """The log is cut there, or about to be."""
        self.eras.append({one: None for one in self.eras[-1] if one[0] < end})
        self.floor = min(self.floor, end)
        self.start = min(self.start, end)

    def settle(self, end: int) -> None:
        self.floor = max(self.floor, end)
        del self.eras[:-1]

    def check(self, log: LocalLog) -> None:
        found = [
            (one.base_offset, one.base_timestamp) for one in headers_from(log, log.local_log_start_offset)
        ]
        assert log.log_end_offset >= self.floor, f"{log.log_end_offset}, {self.floor} was flushed"
        assert log.log_start_offset <= self.start
        era = next((era for era in reversed(self.eras) if all(one in era for one in found)), None)
        assert era is not None, f"{found} is of no past: {[list(era)[-5:] for era in self.eras]}"
        there = sorted(one for one in era if one[0] < log.log_end_offset)
        check_transactions(log, replay((offset, *self.kinds[timestamp]) for offset, timestamp in there))
        if not self.was_killed:
            self.eras.clear()
        # Segments in front of these that were deleted may be there again after the next loss of power.
        self.eras.append(dict.fromkeys(one for one in era if one[0] < log.log_end_offset))


class Life:
    """One run of the process: what it does to the log."""

    def __init__(self, manager: LogManager, log: LocalLog, past: Past, random: Random) -> None:
        self._manager = manager
        self._log = log
        self._past = past
        self._random = random

    async def step(self) -> None:
        log, random = self._log, self._random
        match random.randrange(20):
            case 0 | 1:
                await self._flush()
            case 2:
                await self._cut()
            case 3:
                self._start_at(random.randint(log.log_start_offset, log.log_end_offset))
            case 4:
                log.appender.roll()
            case 5:
                await self._manager.checkpoint_starts()
            case 6:
                await self._delete_files()
            case 7:
                await self._manager._maintenance.flusher.flush_waiting()
            case 8:
                self._delete()
            case _:
                self._append()
                if log.flush_due:
                    await self._flush()

    async def _delete_files(self) -> None:
        maintenance = self._manager._maintenance
        maintenance.delete_due(START_MS + 1_000_000)
        if (task := maintenance.deletion._task) is not None:
            await task

    def _append(self) -> None:
        log, past, random = self._log, self._past, self._random
        past.number += 10
        now_ms = START_MS + past.number
        producer_id = random.choice([-1, 5, 6, 7])
        kinds: tuple[Kind, ...] = ("data", "commit", "abort") if producer_id >= 0 else ("data",)
        kind = random.choice(kinds)
        past.kinds[now_ms] = producer_id, kind
        leader_epoch = max(log.epochs.latest, 0) + (random.random() < 0.1)
        before = dict(past.eras[-1])
        past.eras[-1][log.log_end_offset, now_ms] = None
        try:
            if kind == "data":
                log.append(self._data(producer_id, now_ms), leader_epoch, START_MS, VERIFICATION_OFF)
            else:
                [done] = log.append_markers(
                    [Marker(producer_id, 0, 1, kind == "commit", 1)], leader_epoch, now_ms
                )
                assert not isinstance(done, Exception), done
        except StorageError:
            past.eras.append(before)
            raise

    def _data(self, producer_id: int, timestamp: int) -> ValidatedBatch:
        count, size = self._random.randint(1, 3), self._random.choice([5, 50, 200])
        if producer_id < 0:
            return batch(count, timestamp=timestamp, value=bytes(size))
        made = batch(
            count,
            timestamp=timestamp,
            value=bytes(size),
            producer_id=producer_id,
            epoch=0,
            sequence=-1,
            is_transactional=True,
        )
        return made._replace(origin=AppendOrigin.COORDINATOR)

    async def _flush(self) -> None:
        log, past = self._log, self._past
        end = log.log_end_offset
        await self._manager.flush(log)
        past.floor = max(past.floor, end)
        if end or not past.was_killed:  # what a killed process has cut to nothing looks like a new log
            past.settle(end)

    async def _cut(self) -> None:
        log, past, random = self._log, self._past, self._random
        start, end = log.log_start_offset, log.log_end_offset
        bases = [base for base in log.state.segments.bases if start <= base <= end]
        offset = random.choice([*bases, random.randint(start, end), random.randint(start, end)])
        least = log.truncation.end_after(offset)
        async with self._manager.lower_recovery_point(log, least) as may_cut:
            if not may_cut:
                return
            known = past.start, past.floor
            past.begin(least)
            try:
                assert log.truncation.truncate_to(offset) == least
            except StorageError:
                past.start = known[0]  # which may be above `least`: a batch lies across it
                if log.failure is None:  # it was refused before anything was cut
                    past.floor = known[1]
                    past.eras.append(dict(past.eras[-2]))
                raise
        if least < end and random.random() < 0.7:
            await self._flush()

    def _start_at(self, offset: int) -> None:
        log = self._log
        self._past.start = max(self._past.start, offset)
        log.deletion.move_log_start(
            offset
        ) if self._random.random() < 0.5 else log.deletion.advance_log_start(offset)
        log.deletion.delete_below_start()

    def _delete(self) -> None:
        """By retention, or because the bucket has it."""
        log = self._log
        if log.config.remote_storage_enable:
            bases = [base for base in log.state.segments.bases if base <= log.recovery_point]
            if bases:
                log.deletion.delete_segments(self._random.choice(bases) - 1, "it was copied")
            return
        log.deletion.apply_retention(START_MS, None, log.recovery_point)
        self._past.start = max(self._past.start, log.log_start_offset)


def run(medium: Platter, past: Past, config: LogConfig, fault: Fault | None, random: Random) -> None:
    faults = Faults(random)
    disk, _ = disk_of(medium, faults)
    world = World(ManualClock(START_MS), disk, SystemThreads(), random, boot_id=f"boot {past.boot}")

    async def live(manager: LogManager) -> None:
        await manager.open_all(lambda _: config)
        assert not any(one.is_damaged for one in manager._offline), manager.offline()
        (log,) = await manager.create([(TIP, config)])
        if not isinstance(log, LocalLog):
            raise log
        past.check(log)
        await manager._open_again()  # as `run` does
        if fault is not None and not fault.is_at_start:
            faults.strike(fault, 60)
        life = Life(manager, log, past, random)
        for _ in range(random.randrange(60)):
            try:
                await life.step()
            except StorageError:
                if log.failure is not None or not faults.has_struck:
                    raise

    async def main() -> None:
        manager = LogManager([DIRECTORY], world)
        if fault is not None and fault.is_at_start:
            faults.strike(fault, 40)
        try:
            await live(manager)
        except StorageError:
            assert faults.has_struck
        finally:
            await manager.close(clean=False)

    asyncio.run(main())


@pytest.mark.parametrize(
    "first",
    [
        0,
        750,  # an index whose fsync has failed is written again
        pytest.param(3660, marks=pytest.mark.thorough),  # a killed process has cut a segment
        *(pytest.param(first, marks=pytest.mark.thorough) for first in range(30, 1500, 30) if first != 750),
    ],
)
def test_flushed_records_survive_every_loss_and_truncated_ones_stay_away(first: int) -> None:
    for seed in range(first, first + 30):
        random, medium, past = Random(seed), platter(), Past()
        config = random.choice(CONFIGS)
        for number in range(10):
            fault = random.choice(FAULTS)
            try:
                run(medium, past, config, fault, random)
            except AssertionError as e:
                raise AssertionError(f"seed {seed}, run {number}, {fault}: {e}") from e
            past.was_killed = random.random() < 0.25 and not (fault is not None and fault.is_for_ever)
            if past.was_killed:
                medium.locks.clear()
                continue
            past.boot += 1
            loss = random.choice(list(Loss))
            has_holes = loss is Loss.HOLES and config.flush_messages > 1
            medium.lose_power(random, loss if has_holes or loss is not Loss.HOLES else Loss.ANY)
