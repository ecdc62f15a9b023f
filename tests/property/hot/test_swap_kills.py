"""Kills while what was cleaned takes its place, each followed by one while that is put right."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, StorageError
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.records.decode import Record
from tests.support.compaction import START_MS, last_of_each
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean, records_in
from tests.unit.hot.logs import TIP
from tests.unit.hot.test_cleaning import POLICY, filled

MODELS = 8
CALLS = 30
"""More than a swap of one group makes, and than a start that undoes or finishes it."""


def opened(folder: Path, disk: FaultDisk, end: int, segment_bytes: int) -> LocalLog:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=200, **POLICY)
    return LocalLog.open(
        folder / "events-0", TIP, config, world=make_world(ManualClock(START_MS), disk), recovery_point=end,
        cleaned_offset=0,
    )  # fmt: skip


def killed_in_the_swap(log: LocalLog, disk: FaultDisk, call: int) -> bool:
    """Clean it; from some call after the first rename on nothing gets through. Whether it came to that."""
    begun = []

    def begins(path: Path) -> bool:
        begun.append(path)
        return False

    disk.fail("rename", path=".cleaned", only=begins)
    end = disk.fail("*", errno.EIO, after=call, only=lambda _: bool(begun))
    with contextlib.suppress(StorageError, CorruptionError):
        clean(log)
    disk.heal()
    return end.hits > 0


@pytest.mark.parametrize("most", [150, pytest.param(1000, marks=pytest.mark.thorough)])
def test_kills_within_the_swap_lose_no_record(most: int, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    models: list[tuple[Path, int, int, dict[bytes, Record]]] = []
    for number in range(MODELS):
        folder, size = tmp_path / f"model-{number}", 600 + 300 * number
        log = filled(folder, batches=chance.randrange(8, 40), segment_bytes=size)
        log.durability.flush()
        models.append((folder, log.log_end_offset, size, last_of_each(records_in(log))))
        log.close(clean=False)
    kills = 0
    while kills < most:
        model, end, size, want = chance.choice(models)
        folder = tmp_path / "now"
        shutil.copytree(model, folder)
        disk, call, again = FaultDisk(), chance.randrange(CALLS), chance.randrange(CALLS)
        log = opened(folder, disk, end, size * chance.randrange(1, 5))
        if killed_in_the_swap(log, disk, call):
            kills += 1
            disk.fail("*", errno.EIO, after=again)
            with contextlib.suppress(StorageError):
                opened(folder, disk, end, size)
            disk.heal()
            log = opened(folder, disk, end, size)
            where = f"killed at call {call}, then at {again}"
            found = records_in(log)
            assert last_of_each(found) == want, where
            assert log.log_end_offset == end, where
            assert {pid: entry.last_sequence for pid, entry in log.producers}.keys() == {0, 1}, where
            left = {path.suffix for path in log.dir.iterdir()}
            assert not left & {".cleaned", ".swap", ".deleted"}, where
            if kills % 10 == 0 and clean(log):
                assert records_in(log) == sorted(want.values()), where
            log.close(clean=False)
        shutil.rmtree(folder)
