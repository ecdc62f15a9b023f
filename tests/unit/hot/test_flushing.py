"""What a flush costs, and what it makes durable."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, open_log


def synced(disk: FaultDisk) -> Counter[str]:
    """Which files were made durable, how often, since this was asked last."""
    found = Counter(path.name for call, path in disk.log if call in ("fsync", "fsync_dir"))
    disk.log.clear()
    return found


def test_a_flush_is_one_fsync_of_the_log(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    for n in range(3):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    log.flush()
    assert synced(disk)[f"{0:020d}.log"] == 1
    for n in range(3, 6):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
        log.flush()
    assert synced(disk) == {f"{0:020d}.log": 3}
    log.flush()
    assert not synced(disk)


def test_a_sealed_segment_is_made_durable_with_its_indexes_and_its_successors_name_once(
    tmp_path: Path,
) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    log.append(batch(3), 0, START_MS)
    log.flush()
    synced(disk)
    log.roll()
    log.flush(log.active_base_offset)
    files = {f"{0:020d}{suffix}": 1 for suffix in (".log", ".index", ".timeindex")}
    assert synced(disk) == {**files, f"{3:020d}.snapshot": 1, "events-0": 1}
    log.append(batch(3), 0, START_MS)
    log.flush()
    assert synced(disk) == {f"{3:020d}.log": 1}


def test_a_clean_close_makes_the_active_segments_indexes_durable_and_nothing_if_nothing_was_written(
    tmp_path: Path,
) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=0)
    log.append(batch(3), 0, START_MS)
    log.flush()
    synced(disk)
    log.close()
    assert {f"{0:020d}.index", f"{0:020d}.timeindex"} <= synced(disk).keys()
    again = open_log(tmp_path, world=make_world(disk=disk), clean=True, index_interval_bytes=0)
    disk.calls.clear()
    synced(disk)
    again.close()
    assert not synced(disk)
    assert disk.calls["pwrite"] == disk.calls["open"] == 0
