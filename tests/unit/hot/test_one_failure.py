"""One call to the disk fails, once or for ever: nothing acknowledged is lost, nothing refused is there."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.base.disk import DiskError, SystemDisk
from service.base.errors import CorruptionError, RequestError, StorageError
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.hot.state import LogOffline
from service.records.batch import iter_headers
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, batch, headers_from, open_log

SETTINGS: dict[str, Any] = {"segment_bytes": 900, "index_interval_bytes": 0, "file_delete_delay_ms": 0}


def opened(tmp_path: Path, disk: FaultDisk, **options: Any) -> LocalLog:
    return open_log(tmp_path, world=make_world(disk=disk), **{**SETTINGS, **options})


def stamps(log: LocalLog) -> list[tuple[int, int]]:
    """(base offset, timestamp) of every batch from the log's start on."""
    return [(header.base_offset, header.max_timestamp) for header in headers_from(log, log.log_start_offset)]


# A batch that is written is in the log, whatever fails afterwards.


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_written_refuses_no_batch(tmp_path: Path, suffix: str) -> None:
    disk = FaultDisk()
    log = opened(tmp_path, disk, segment_bytes=100_000)
    disk.fail("pwrite", errno.ENOSPC, path=suffix)
    for n in range(30):
        assert log.append(batch(1, timestamp=START_MS + n), 0, START_MS).first_offset == n
    disk.heal()
    log.append(batch(1, timestamp=START_MS + 30), 0, START_MS)
    assert log.offset_for_timestamp(START_MS + 29) == (29, START_MS + 29, 0)
    assert [base for base, _ in stamps(opened(tmp_path, disk))] == list(range(31))


def test_a_process_without_descriptors_goes_on_with_the_segments_it_writes_to(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = opened(tmp_path, disk, segment_bytes=100_000, files=FileCache(disk, 1))
    other = open_log(tmp_path / "other", world=make_world(disk=disk), files=FileCache(disk, 1))
    log.append(batch(1), 0, START_MS)
    other.append(batch(1), 0, START_MS)
    disk.fail("open", errno.EMFILE)
    for n in range(1, 100):
        assert log.append(batch(1), 0, START_MS).first_offset == n
    disk.heal()
    assert [base for base, _ in stamps(opened(tmp_path, disk))] == list(range(100))


@pytest.mark.parametrize("suffix", [".timeindex", ".index"])
def test_an_index_that_cannot_be_opened_refuses_no_batch(tmp_path: Path, suffix: str) -> None:
    disk = FaultDisk()
    opened(tmp_path, disk).append(batch(1), 0, START_MS)
    log = opened(tmp_path, disk)
    disk.fail("open", errno.EMFILE, path=f"{0:020d}{suffix}")
    for n in range(1, 50):
        assert log.append(batch(1), 0, START_MS + n).first_offset == n
    disk.heal()
    assert [base for base, _ in stamps(log)] == list(range(50))
    assert [base for base, _ in stamps(opened(tmp_path, disk))] == list(range(50))


def test_a_batch_whose_segment_cannot_be_opened_is_refused_before_it_is_written(tmp_path: Path) -> None:
    disk = FaultDisk()
    opened(tmp_path, disk).append(batch(1), 0, START_MS)
    log = opened(tmp_path, disk)
    size = log.size
    disk.fail("open", errno.EMFILE, path=f"{0:020d}.log")
    with pytest.raises(DiskError):
        log.append(batch(1), 0, START_MS)
    disk.heal()
    assert (log.log_end_offset, log.size, (log.dir / f"{0:020d}.log").stat().st_size) == (1, size, size)
    assert log.append(batch(1), 0, START_MS).first_offset == 1


def test_a_write_that_cannot_be_taken_back_takes_the_replica_offline(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = opened(tmp_path, disk)
    log.append(batch(1), 0, START_MS)
    disk.fail("pwrite", errno.ENOSPC, torn=0.5, times=1, path=".log")
    disk.fail("truncate", errno.EIO, times=1)
    with pytest.raises(DiskError):
        log.append(batch(3), 0, START_MS)
    attempts: list[Callable[[], object]] = [
        lambda: log.append(batch(1), 0, START_MS),
        lambda: log.read(0, 1000),
        lambda: log.durability.flush(),
        lambda: log.appender.roll(),
        lambda: log.offset_for_timestamp(0),
    ]
    for attempt in attempts:
        with pytest.raises(LogOffline, match="events-0 is offline: a failed write could not be undone"):
            attempt()
    again = opened(tmp_path, disk)
    assert again.log_end_offset == 1
    assert again.append(batch(1), 0, START_MS).first_offset == 1


# Rolling and trimming


@pytest.mark.parametrize("suffix", [".timeindex", ".index", ".log"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_roll_that_fails_half_way_leaves_no_segment(tmp_path: Path, suffix: str, clean: bool) -> None:
    disk = FaultDisk()
    log = opened(tmp_path, disk, segment_ms=1000)
    for n in range(3):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    disk.fail("open", errno.EMFILE, path=f"{3:020d}{suffix}")
    with pytest.raises(DiskError):
        log.append(batch(1, timestamp=START_MS + 5000), 0, START_MS)
    for n in range(3):  # this one belongs into the old segment
        assert log.append(batch(1, timestamp=START_MS + n), 0, START_MS).first_offset == 3 + n
    disk.heal()
    log.close(clean=clean)
    again = opened(tmp_path, disk, clean=clean)
    assert again.log_end_offset == 6
    assert [base for base, _ in stamps(again)] == list(range(6))


@pytest.mark.parametrize("call", ["unlink", "rename", "pwrite", "open"])
def test_retention_that_the_disk_refuses_makes_no_read_skip_anything(tmp_path: Path, call: str) -> None:
    disk = FaultDisk()
    log = opened(tmp_path, disk, retention_bytes=1000)
    for n in range(40):
        log.append(batch(1, timestamp=START_MS + n), n // 10, START_MS)
    disk.fail(call, errno.EIO)
    with contextlib.suppress(StorageError):
        log.deletion.apply_retention(START_MS)
    disk.heal()
    start = log.log_start_offset
    assert stamps(log) == [(n, START_MS + n) for n in range(start, 40)]
    with pytest.raises(RequestError):
        log.read(start - 1, 1000)


def test_no_file_goes_before_the_start_is_told(tmp_path: Path) -> None:
    log = opened(tmp_path, FaultDisk(), retention_bytes=1000)
    for n in range(40):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    assert log.deletion.apply_retention(START_MS) > 2
    # The process ends here, before anybody called `take_due`: all of it is there as it was.
    assert [base for base, _ in stamps(opened(tmp_path, FaultDisk()))] == list(range(40))


# Every call, every error


class Outcome:
    """Answers to a workload: (offset, timestamp) of acknowledged batches, timestamps of refused ones."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self.refused: list[int] = []
        self.start = 0
        self.recovery_point = 0


def workload(tmp_path: Path, disk: FaultDisk, outcome: Outcome) -> None:
    log = opened(tmp_path, disk)
    for n in range(24):
        timestamp = START_MS + n
        try:
            info = log.append(batch(1, timestamp=timestamp, value=b"v" * 60), n // 9, START_MS)
            outcome.acknowledged.append((info.first_offset, timestamp))
        except StorageError:
            outcome.refused.append(timestamp)
        with contextlib.suppress(StorageError, RequestError):
            if n % 7 == 6:
                log.durability.flush()
            if n == 15:
                log.deletion.advance_log_start(5)
                for path in log.deletion_queue.take_due(1 << 62):
                    disk.unlink(path)
        outcome.start, outcome.recovery_point = log.log_start_offset, log.recovery_point
    log.close(clean=False)


def check(tmp_path: Path, outcome: Outcome) -> None:
    again = opened(
        tmp_path, FaultDisk(), recovery_point=outcome.recovery_point, log_start_offset=outcome.start
    )
    found = stamps(again)
    assert len({base for base, _ in found}) == len(found)
    kept = [one for one in outcome.acknowledged if one[0] >= again.log_start_offset]
    assert [one for one in found if one[0] >= again.log_start_offset] == kept, "L1: lost"
    assert not set(outcome.refused) & {timestamp for _, timestamp in found}, "L1: refused, and there"
    end = max((base for base, _ in outcome.acknowledged), default=-1) + 1
    assert again.log_end_offset == end
    again.append(batch(1), 9, START_MS)
    again.close()


@pytest.mark.parametrize(("code", "times"), [(errno.EIO, 1), (errno.ENOSPC, None), (errno.EMFILE, None)])
def test_a_log_keeps_acknowledged_records_whatever_call_fails(
    tmp_path: Path, code: int, times: int | None
) -> None:
    disk = FaultDisk()
    workload(tmp_path / "plain", disk, Outcome())
    total = disk.calls.total()
    outcomes = 0
    step = 1 if times == 1 else 4
    for k in range(0, total, step):
        disk, outcome = FaultDisk(), Outcome()
        fault = disk.fail("*", code, after=k, times=times, torn=0.5)
        with contextlib.suppress(StorageError, CorruptionError):
            workload(tmp_path / str(k), disk, outcome)
        outcomes += fault.hits
        check(tmp_path / str(k), outcome)
    print(f"{total} calls, {outcomes} errors")
    assert outcomes >= total // step


# Reading


def test_a_read_that_fails_is_an_error_and_the_next_one_goes_on(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = opened(tmp_path, disk)
    for _ in range(20):
        log.append(batch(1), 0, START_MS)
    disk.fail("pread", errno.EIO, times=1, path=".log")
    with pytest.raises(DiskError):
        log.read(1, 300)
    assert log.read(1, 300).slice is not None


def test_a_batch_that_is_none_takes_the_replica_offline_and_stays(tmp_path: Path) -> None:
    log = opened(tmp_path, FaultDisk(), segment_bytes=100_000)
    for _ in range(20):
        log.append(batch(1), 0, START_MS)
    path = log.dir / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    position = [header.position for header in iter_headers(data)][10]
    data[position + 8 : position + 12] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(LogOffline, match=r"damaged.*000\.log: no batch at position"):
        log.read(10, 1000)
    assert log.failure is not None
    with pytest.raises(LogOffline):
        log.append(batch(1), 0, START_MS)
    assert path.read_bytes() == bytes(data)


def test_a_real_lack_of_descriptors_loses_nothing(tmp_path: Path) -> None:
    """More logs than the process may have descriptors: each batch is refused, or it is there for good."""
    world = make_world(disk=SystemDisk())
    files = FileCache(world.disk, 4)
    logs = [
        open_log(tmp_path / str(n), world=world, files=files, index_interval_bytes=0, segment_bytes=2000)
        for n in range(30)
    ]
    acknowledged: list[list[tuple[int, int]]] = [[] for _ in logs]
    refused = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
    try:
        for n in range(1200):
            one = n * 7 % len(logs)
            try:
                info = logs[one].append(batch(1, timestamp=START_MS + n), 0, START_MS)
            except StorageError:
                refused += 1
            else:
                acknowledged[one].append((info.first_offset, START_MS + n))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused > 50
    assert sum(map(len, acknowledged)) > 50
    for one, known in enumerate(acknowledged):
        again = open_log(tmp_path / str(one), index_interval_bytes=0, segment_bytes=2000)
        assert stamps(again) == known
        again.close(clean=False)


@pytest.mark.parametrize("how", ["cut", "restart"])
def test_a_process_without_descriptors_cuts_nothing_and_does_so_later(tmp_path: Path, how: str) -> None:
    """A follower tries again; one that is offline would wait for the next start."""
    disk = FaultDisk()
    log = opened(tmp_path, disk)
    for n in range(20):
        log.append(batch(1, timestamp=START_MS + n, producer_id=7, epoch=0, sequence=n), n // 8, START_MS)
    before = stamps(log)
    disk.fail("open", errno.EMFILE)
    with pytest.raises(DiskError):
        log.truncation.truncate_to(9) if how == "cut" else log.truncation.restart_at(30)
    disk.heal()
    assert log.failure is None
    assert stamps(log) == before
    assert (log.truncation.truncate_to(9) if how == "cut" else log.truncation.restart_at(30)) == (
        9 if how == "cut" else 30
    )
    assert opened(tmp_path, disk).log_end_offset == (9 if how == "cut" else 30)
