"""Leader epochs are noted when they begin; an emptied log goes on with what its archive knows."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from service.base.disk import DiskError, SystemDisk
from service.base.errors import StorageError
from service.base.files import write_checkpoint
from service.base.purgatory import Purgatory
from service.hot.log import LocalLog
from service.hot.producers import BatchMemory, ProducerEntry
from service.partition.partition import Partition
from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import TIP, batch, open_log, records_from

EPOCHS = ((2, 0), (5, 700), (6, 900))
PRODUCERS = [(77, ProducerEntry(3, START_MS, batches=[BatchMemory(10, 19, 990, 999, START_MS)]))]


def led(log: LocalLog, epoch: int) -> Partition:
    return Partition(TIP, log, None, epoch, 1, 1 << 20, Purgatory(0))


def rows_of(log: LocalLog) -> list[str]:
    """Lines of its checkpoint, without the checksum behind the last one."""
    return [line.rstrip() for line in (log.dir / "leader-epoch-checkpoint").read_text().splitlines()]


def test_an_idle_partition_knows_where_its_last_epoch_ends_after_any_number_of_elections(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    partition = led(log, 4)
    for _ in range(3):
        partition.append(batch(2), START_MS)
    for epoch in range(5, 9):
        log.close(clean=epoch % 2 == 0)
        log = open_log(tmp_path, clean=epoch % 2 == 0)
        partition = led(log, epoch)
        assert partition.unified.end_offset_of_epoch(4) == (4, 6)
        assert partition.unified.end_offset_of_epoch(epoch) == (epoch, 6)
        assert log.epochs.epoch_at(6) == epoch
        assert rows_of(log) == ["0", "1", "4 0"]
        partition.leader_epoch = epoch  # the same election told twice
    partition.append(batch(2), START_MS)
    assert rows_of(log) == ["0", "2", "4 0", "8 6"]
    assert partition.unified.end_offset_of_epoch(7) == (4, 6)


def test_an_election_writes_nothing(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    disk.log.clear()
    partition = led(log, 4)
    partition.leader_epoch = 5
    assert disk.log == []
    assert partition.unified.end_offset_of_epoch(5) == (5, 0)


def test_an_epoch_is_on_disk_before_its_first_batch(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    disk.fail("rename", errno.EIO, path="leader-epoch-checkpoint")
    partition = led(log, 4)
    with pytest.raises(DiskError):
        partition.append(batch(1), START_MS)
    assert (log.log_end_offset, log.epochs.latest) == (0, -1)
    disk.heal()
    assert partition.unified.end_offset_of_epoch(4) == (4, 0)
    assert partition.append(batch(1), START_MS).first_offset == 0
    disk.log.clear()
    log.durability.flush()
    assert ("fsync", log.dir / "leader-epoch-checkpoint") in disk.log


def test_an_emptied_log_goes_on_with_the_archives_epochs_and_producers(tmp_path: Path) -> None:
    log = open_log(tmp_path, remote_storage_enable=True)
    log.truncation.restart_at(1000, 50, epochs=EPOCHS, producers=PRODUCERS)
    for again in (log, None):
        if again is None:
            log.close(clean=False)
            log = open_log(tmp_path, log_start_offset=50, remote_storage_enable=True)
        assert (log.log_start_offset, log.log_end_offset) == (50, 1000)
        assert log.epochs.end_offset_for(5, 1000) == (5, 900)
        assert log.epochs.epoch_at(950) == 6
        last = batch(10, producer_id=77, epoch=3, sequence=10)
        assert log.append(last, 6, START_MS)[:2] == (990, 999)
        entry = log.producers.get(77)
        assert entry is not None
        assert entry.last_sequence == 19


def test_a_restart_that_ends_anywhere_is_finished_or_has_not_begun(tmp_path: Path) -> None:
    def restart(directory: Path, disk: FaultDisk) -> None:
        log = open_log(directory, world=make_world(disk=disk), segment_bytes=400, remote_storage_enable=True)
        for n in range(12):
            log.append(batch(2, timestamp=START_MS + n), n // 5, START_MS)
        log.durability.flush()
        disk.calls.clear()
        for fault in disk.faults:
            fault.seen = fault.hits = 0
            fault.call = "*"
        log.truncation.restart_at(1000, 50, epochs=EPOCHS, producers=PRODUCERS)

    disk = FaultDisk()
    restart(tmp_path / "plain", disk)
    finished = 0
    for k in range(disk.calls.total()):
        faulty = FaultDisk()
        faulty.fail("never", errno.EIO, after=k)
        with contextlib.suppress(StorageError):
            restart(tmp_path / str(k), faulty)
        again = open_log(
            tmp_path / str(k),
            recovery_point=24,
            log_start_offset=0,
            segment_bytes=400,
            remote_storage_enable=True,
        )
        if again.log_end_offset == 1000:
            finished += 1
            assert again.log_start_offset in (0, 50)
            assert again.epochs.end_offset_for(5, 1000) == (5, 900)
            assert again.producers.get(77) is not None
            assert again.append(batch(1), 7, START_MS).first_offset == 1000
        else:
            assert again.log_end_offset == 24
            assert [record.offset for record in records_from(again)] == list(range(24))
        again.close()
    assert 0 < finished < disk.calls.total()


def test_a_restart_that_could_not_be_announced_has_changed_nothing(tmp_path: Path) -> None:
    """The next opening finds the log as it was, with the epochs of segments that it does not read."""
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), segment_bytes=700)
    for n in range(20):
        log.append(batch(1), n // 10, START_MS)
    log.durability.flush()
    disk.fail("open", errno.EIO, path="restart-checkpoint")
    with pytest.raises(StorageError):
        log.truncation.restart_at(100)
    disk.heal()
    again = open_log(tmp_path, recovery_point=20)
    assert (again.log_end_offset, again.epochs.entries) == (20, ((0, 0), (1, 10)))


def test_a_restart_that_was_announced_brings_its_epochs(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), segment_bytes=700)
    for n in range(20):
        log.append(batch(1), n // 10, START_MS)
    disk.fail("open", errno.EIO, path="leader-epoch-checkpoint")
    with pytest.raises(StorageError):
        log.truncation.restart_at(100, 50, epochs=[(3, 50), (4, 100)])
    again = open_log(tmp_path, remote_storage_enable=True)
    assert (again.log_start_offset, again.log_end_offset) == (50, 100)
    assert again.epochs.entries == ((3, 50),)


def test_a_restart_that_an_earlier_version_announced_is_finished(tmp_path: Path) -> None:
    """Its epochs are in their file."""
    log = open_log(tmp_path)
    log.append(batch(5), 2, START_MS)
    log.close()
    write_checkpoint(SystemDisk(), log.dir / "leader-epoch-checkpoint", ["1 7"])
    write_checkpoint(SystemDisk(), log.dir / "restart-checkpoint", ["100 3"])
    again = open_log(tmp_path, remote_storage_enable=True)
    assert (again.log_start_offset, again.log_end_offset) == (3, 100)
    assert again.epochs.entries == ((1, 7),)
