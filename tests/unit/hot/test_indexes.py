"""Indexes are hints: missing or wrong ones cost one scan of the log, and never reach the bucket."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.errors import CorruptionError
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.records.segment_indexes import OFFSET_ENTRY, TIME_ENTRY
from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, open_log

BATCHES = 200


def filled(tmp_path: Path, disk: FaultDisk) -> LocalLog:
    """Two segments, of which the first one is sealed and has a hundred index entries."""
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=100, files=FileCache(disk, 1))
    for n in range(BATCHES):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    log.appender.roll()
    log.append(batch(1, timestamp=START_MS + BATCHES), 0, START_MS)
    log.durability.flush()
    return log


def bytes_read(disk: FaultDisk, log: LocalLog, offset: int) -> int:
    before = disk.bytes_read
    found = log.read(offset, 100)
    assert found.start_offset == offset
    return disk.bytes_read - before


Damage = Callable[[bytes], bytes]
DAMAGE: dict[str, Damage] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 16 * 8],
    "shifted": lambda data: data[8:] + data[:8],
    "zeros": lambda data: bytes(len(data)),
    "ones": lambda data: b"\xff" * len(data),
    "flipped": lambda data: data[:403] + bytes([data[403] ^ 0x01]) + data[404:],
}


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("damage", ["lost", *DAMAGE])
def test_a_missing_or_wrong_sealed_index_is_rebuilt_once(
    tmp_path: Path, damage: str, restarted: bool
) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    path = log.dir / f"{0:020d}.index"
    right = path.read_bytes()
    if restarted:
        log.close()
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](right))
    if restarted:
        log = open_log(
            tmp_path,
            world=make_world(disk=disk),
            index_interval_bytes=100,
            files=FileCache(disk, 1),
            clean=True,
            recovery_point=BATCHES + 1,
        )
    for offset in range(BATCHES):
        assert log.read(offset, 100).start_offset == offset
    assert path.read_bytes() == right
    assert max(bytes_read(disk, log, offset) for offset in range(1, BATCHES, 7)) < 12_000


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["lost", *DAMAGE])
def test_indexes_are_proved_before_they_are_uploaded(tmp_path: Path, damage: str, suffix: str) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    (sealed,) = log.sealed.describe_all()
    path = sealed.log_file.path.with_suffix(suffix)
    right = (
        sealed.log_file.path.with_suffix(".index").read_bytes(),
        sealed.log_file.path.with_suffix(".timeindex").read_bytes(),
    )
    assert tuple(sealed.prove_indexes()) == right
    assert len(right[0]) > 50 * OFFSET_ENTRY.size
    assert len(right[1]) > 50 * TIME_ENTRY.size
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    proved = sealed.prove_indexes()
    assert tuple(proved) == right
    assert log.read(50, 100).start_offset == 50
    assert path.read_bytes() == (right[0] if suffix == ".index" else right[1]), "made anew by the lookup"


def test_no_index_is_made_of_a_damaged_log(tmp_path: Path) -> None:
    log = filled(tmp_path, FaultDisk())
    (sealed,) = log.sealed.describe_all()
    data = bytearray(sealed.log_file.path.read_bytes())
    data[1000] ^= 1
    sealed.log_file.path.write_bytes(data)
    with pytest.raises(CorruptionError):
        sealed.prove_indexes()


def test_a_disk_that_takes_no_index_costs_time_and_nothing_else(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    (log.dir / f"{0:020d}.index").unlink()
    disk.fail("open", errno.EIO, path="index")
    for offset in (0, 77, 150):
        assert log.read(offset, 100).start_offset == offset
        found = log.offset_for_timestamp(START_MS + offset)
        assert found is not None
        assert found.offset == offset
    disk.heal()
    assert log.read(150, 100).start_offset == 150
    assert (log.dir / f"{0:020d}.index").stat().st_size > 50 * OFFSET_ENTRY.size


def test_a_read_goes_on_in_the_next_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for n in range(30):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    size = len(batch(1).data)
    data = b"".join(path.read_bytes() for path in sorted(log.dir.glob("*.log")))
    for start in range(0, 30, 7):
        for limit in (1, size, 3 * size + 5, 10 * size, 1 << 20):
            for end in (start + 1, 17, 29, 30):
                found, _, more = log.read(start, limit, max(end, start))
                parts = [found, *more] if found is not None else []
                got = b"".join(part.read() for part in parts)
                last = max(end, start)
                wanted = data[start * size : min(last * size, max(start * size + limit, (start + 1) * size))]
                assert wanted.startswith(got), (start, limit, end)
                # Whatever is left out is less than one batch of the next segment.
                assert len(wanted) - len(got) < size, (start, limit, end)


def test_sequential_reads_share_one_index_lookup(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = open_log(tmp_path, world=make_world(disk=disk), index_interval_bytes=100)
    for n in range(2000):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    disk.log.clear()
    for offset in range(10, 1500, 10):
        found = log.read(offset, 100)
        assert found.start_offset == offset
    asked = [path for call, path in disk.log if call == "pread"]
    of_index = sum(path.suffix == ".index" for path in asked)
    assert of_index <= 40, f"{of_index} reads of the index for 149 of the log"
    assert len(asked) - of_index <= 149 + 5, "a batch's size is read with its place"


def test_entries_that_were_cut_off_are_not_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, index_interval_bytes=100)
    for n in range(600):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    log.truncation.truncate_to(200)
    for n in range(500):
        log.append(batch(3, timestamp=START_MS + n), 0, START_MS)
    for offset in (251, 290, 1000):
        assert log.read(offset, 100).start_offset == 200 + (offset - 200) // 3 * 3
    assert not caplog.records, "the index was taken for wrong"
