"""An offset lookup reads nothing from the device that was not prefetched."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from service.base.disk import Open, SystemDisk
from service.base.types import Buffer
from service.hot.log import LocalLog
from service.hot.lookup_prefetch import MOST_PREFETCHES, prefetch
from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, open_log

PAGE = 4096
SEED = 20261126


class CoolDisk(SystemDisk):
    """Knows which pages are in memory; once it is `strict`, no others may be read but by `bring`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_strict = False
        self._near: set[tuple[str, int]] = set()
        self._names: dict[int, str] = {}

    def open(self, path: Path, how: Open = Open.READ) -> int:
        fd = super().open(path, how)
        self._names[fd] = path.name
        return fd

    def _pages(self, fd: int, size: int, position: int) -> set[tuple[str, int]]:
        return {(self._names[fd], n) for n in range(position // PAGE, (position + size - 1) // PAGE + 1)}

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        missing = self._pages(fd, len(data), position) - self._near if self.is_strict and data else set()
        assert not missing, f"{sorted(missing)} would be waited for"
        return data

    def pread_nowait(self, fd: int, size: int, position: int) -> Buffer | None:
        return self.pread(fd, size, position) if self.is_resident(fd, size, position) else None

    def is_resident(self, fd: int, size: int, position: int) -> bool:
        return self._pages(fd, size, position) <= self._near

    def prefetch(self, fd: int, size: int, position: int) -> None:
        self._near |= self._pages(fd, size, position)


def filled(tmp_path: Path, disk: SystemDisk | FaultDisk, source: random.Random) -> LocalLog:
    """Some segments, closed in between so that none of their indexes has been looked at."""
    options: dict[str, Any] = {"segment_bytes": 400_000, "world": make_world(disk=disk)}
    log = open_log(tmp_path, **options)
    now_ms = START_MS
    while log.size < 1_500_000:
        now_ms += source.randrange(1_000)
        value = source.randbytes(source.choice((10, 500, 20_000)))
        log.append(batch(source.randint(1, 5), timestamp=now_ms, value=value), 0, now_ms)
        if not source.randrange(40):
            log.appender.roll()
    log.close()
    return open_log(tmp_path, **options)


def test_a_lookup_prefetches_its_pages_in_a_few_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, source = CoolDisk(), random.Random(SEED)
    log = filled(tmp_path, disk, source)
    disk.is_strict = True
    asked = [source.randrange(log.log_end_offset) for _ in range(100)]
    steps = 0
    for offset in (0, *asked, log.log_end_offset - 1):
        for _ in range(MOST_PREFETCHES):
            missing = log.reader.missing_pages(offset)
            steps += bool(missing)
            prefetch(missing)
        assert not log.reader.missing_pages(offset), f"{offset}, seed {SEED}"
        found = log.read(offset, 1)
        assert found.start_offset <= offset, f"seed {SEED}"
        log.reader.forget()
    assert steps >= 10, f"seed {SEED}: all was there"
    assert not caplog.records, f"seed {SEED}: large batches behind small ones are no lack of entries"


def test_reads_at_a_known_position_need_no_prefetch(tmp_path: Path) -> None:
    disk = CoolDisk()
    log = open_log(tmp_path, world=make_world(disk=disk))
    for _ in range(3):
        log.append(batch(2), 0, START_MS)
    assert log.reader.missing_pages(4)
    log.read(0, 1_000_000, 4)
    assert not log.reader.missing_pages(4)


@pytest.mark.parametrize("call", ["open", "pread"])
def test_an_error_belongs_to_the_read(tmp_path: Path, call: str) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk, random.Random(SEED))
    disk.fail(call)
    assert not log.reader.missing_pages(0)
    disk.heal()
    assert log.read(0, 1).start_offset == 0


def test_a_wrong_index_leads_nowhere(tmp_path: Path) -> None:
    """It is hearsay: the read finds out, and makes it anew."""
    log = filled(tmp_path, SystemDisk(), random.Random(SEED))
    index = log.dir / f"{0:020d}.index"
    index.write_bytes(b"\xff" * index.stat().st_size)
    for _ in range(2):
        prefetch(log.reader.missing_pages(1))
    assert log.read(1, 1).start_offset <= 1
