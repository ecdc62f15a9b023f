"""Flushes: their cost, and what they make durable."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.base.files import FsyncFailed
from service.hot.state import LogOffline
from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, open_log


def synced(disk: FaultDisk) -> Counter[str]:
    """Return the files that were made durable since the last call, and how often."""
    found = Counter(path.name for call, path in disk.log if call in ("fsync", "fsync_dir"))
    disk.log.clear()
    return found


def test_a_flush_is_one_fsync_of_the_log(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    for n in range(3):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    log.durability.flush()
    assert synced(disk)[f"{0:020d}.log"] == 1
    for n in range(3, 6):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
        log.durability.flush()
    assert synced(disk) == {f"{0:020d}.log": 3}
    log.durability.flush()
    assert not synced(disk)


def test_a_sealed_segment_is_made_durable_with_its_indexes_and_its_successors_name_once(
    tmp_path: Path,
) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    log.append(batch(3), 0, START_MS)
    log.durability.flush()
    synced(disk)
    log.appender.roll()
    log.durability.flush(log.active_base_offset)
    files = {f"{0:020d}{suffix}": 1 for suffix in (".log", ".index", ".timeindex")}
    assert synced(disk) == {**files, f"{3:020d}.snapshot": 1, "events-0": 1}
    log.append(batch(3), 0, START_MS)
    log.durability.flush()
    assert synced(disk) == {f"{3:020d}.log": 1}


def test_a_clean_close_makes_the_active_segments_indexes_durable_and_nothing_if_nothing_was_written(
    tmp_path: Path,
) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    log.append(batch(3), 0, START_MS)
    log.durability.flush()
    synced(disk)
    log.close()
    assert {f"{0:020d}.index", f"{0:020d}.timeindex"} <= synced(disk).keys()
    again = open_log(tmp_path, world=make_world(disk=disk), clean=True, index_interval_bytes=0)
    disk.calls.clear()
    synced(disk)
    again.close()
    assert not synced(disk)
    assert disk.calls["pwrite"] == disk.calls["open"] == 0


DOORS = [
    ("fsync", f"{0:020d}.log"),
    ("fsync", f"{0:020d}.index"),
    ("fsync", f"{0:020d}.timeindex"),
    ("fsync", f"{3:020d}.snapshot"),
    ("fsync", f"{3:020d}.log"),
    ("fsync_dir", "events-0"),
]
"""Whatever a flush of a log with a sealed segment has the disk make durable."""


@pytest.mark.parametrize(("call", "name"), DOORS)
def test_a_failed_fsync_is_final_through_whichever_door_it_came(tmp_path: Path, call: str, name: str) -> None:
    """The kernel has dropped the pages and says so once: an fsync that succeeds later proves nothing."""
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    log.append(batch(3), 0, START_MS)
    log.durability.flush()
    log.appender.roll()
    log.append(batch(3), 0, START_MS)
    fault = disk.fail(call, errno.EIO, times=1, only=lambda path: path.name == name)
    with pytest.raises(FsyncFailed):
        log.durability.flush()
    assert fault.hits == 1
    for _ in range(2):
        with pytest.raises(LogOffline):
            log.durability.flush()
    assert log.recovery_point == 3
    assert log.latch.failure is not None
    asked = len(disk.log)
    with pytest.raises(LogOffline):
        log.durability.flush()
    assert len(disk.log) == asked, "nothing is asked of the disk any more"


def test_the_time_until_the_next_flush_begins_with_one_that_covers_all(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock)
    opened_ms = log.durability.last_flush_ms
    for _ in range(2):
        log.append(batch(3), 0, START_MS)
    clock.advance(50)
    assert log.durability.flush(3) == 3
    assert log.durability.last_flush_ms == opened_ms
    clock.advance(50)
    assert log.durability.flush() == 6
    assert log.durability.last_flush_ms == opened_ms + 100
