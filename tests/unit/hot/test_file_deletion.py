"""Files that wait for their removal: when they go, in which order, and what holds them up."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from service.base.clock import ManualClock
from service.hot.file_deletion import FileDeletion, Permission, delete, delete_in_order
from service.hot.fsync_failure import Latch
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, batch, open_log


def made(directory: Path, *names: str) -> list[Path]:
    for name in names:
        (directory / name).write_bytes(b"x")
    return [directory / name for name in names]


def test_each_segment_is_gone_for_good_before_the_next_one_goes(tmp_path: Path) -> None:
    disk = FaultDisk()
    paths = made(tmp_path, "0.snapshot", "0.log", "0.index", "5.log", "5.index")
    assert delete_in_order(disk, paths, Latch()) == 5
    assert not list(tmp_path.iterdir())
    assert [(call, path.name) for call, path in disk.log if call != "stat"] == [
        ("unlink", "0.snapshot"),
        ("unlink", "0.log"),
        ("fsync_dir", tmp_path.name),
        ("unlink", "0.index"),
        ("unlink", "5.log"),
        ("fsync_dir", tmp_path.name),
        ("unlink", "5.index"),
    ]
    assert delete_in_order(disk, paths, Latch()) == 5, "they may be gone already"
    assert delete_in_order(disk, [tmp_path / "gone" / "0.log"], Latch()) == 1


def test_nothing_goes_before_what_stays(tmp_path: Path) -> None:
    disk, latch = FaultDisk(), Latch()
    paths = made(tmp_path, "0.log", "5.log", "9.log")
    disk.fail("unlink", errno.EIO, path="5.log")
    assert delete_in_order(disk, paths, latch) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5.log", "9.log"]
    assert latch.failure is None, "what stays is no lost write"


def test_a_failed_directory_fsync_stops_ordered_deletion(tmp_path: Path) -> None:
    disk, latch = FaultDisk(), Latch()
    paths = made(tmp_path, "0.log", "5.log")
    disk.fail("fsync_dir", errno.EIO, times=1)
    assert delete_in_order(disk, paths, latch) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["5.log"]
    assert latch.failure is not None


def test_unordered_deletion_skips_what_it_cannot_remove(tmp_path: Path) -> None:
    disk = FaultDisk()
    (tmp_path / "a-0").mkdir()
    made(tmp_path / "a-0", "0.log", "0.index")
    (file,) = made(tmp_path, "b")
    stays = tmp_path / "c-0"
    stays.mkdir()
    disk.fail("rmdir", errno.EIO, path="c-0")
    delete(disk, [stays, tmp_path / "gone", tmp_path / "a-0", file])
    assert list(tmp_path.iterdir()) == [stays]


class Waiting:
    """A log whose first segments have left it, and who looks after their files."""

    def __init__(self, directory: Path) -> None:
        self.disk, self.clock = FaultDisk(), ManualClock(START_MS)
        world = make_world(self.clock, self.disk)
        self.log: LocalLog = open_log(directory, world=world, segment_bytes=400, file_delete_delay_ms=0)
        for _ in range(100):
            self.log.append(batch(2), 0, START_MS)
        self.bases = [segment.base_offset for segment in self.log]
        self.log.deletion.delete_segments(self.bases[12], "test")
        self.removals = FileDeletion(LogIo(world.threads, 1), self.disk)
        self.checkpoints = 0
        self.may = Permission.NOW

    async def checkpoint(self) -> None:
        self.checkpoints += 1

    def run(self, now_ms: int) -> None:
        asyncio.run(self.removals.delete_due(now_ms, self.checkpoint, lambda _: self.may))

    @property
    def left(self) -> list[int]:
        """Segments of which the log file is there."""
        return sorted(int(path.stem) for path in self.log.dir.glob("*.log"))


def test_files_go_at_their_time_once_the_start_is_durable(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    waiting.removals.schedule(waiting.log, START_MS + 5)
    assert not waiting.removals.is_due(START_MS + 4)
    waiting.run(START_MS + 4)
    assert (waiting.left, waiting.checkpoints) == (waiting.bases, 0)
    assert waiting.removals.is_due(START_MS + 5)
    waiting.may = Permission.LATER
    waiting.run(START_MS + 5)
    assert (waiting.left, waiting.checkpoints) == (waiting.bases, 1)
    assert waiting.removals.is_due(START_MS + 5), "it is asked for again"
    waiting.may = Permission.NOW
    waiting.run(START_MS + 5)
    assert (waiting.left, waiting.checkpoints) == (waiting.bases[12:], 2)
    assert not waiting.removals.is_due(1 << 62)
    waiting.log.close()


def test_files_of_a_log_that_is_not_here_any_more_are_left_to_its_directory(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    waiting.removals.schedule(waiting.log, START_MS)
    waiting.may = Permission.NEVER
    waiting.run(START_MS)
    assert waiting.left == waiting.bases
    assert not waiting.removals.is_due(1 << 62)


def test_a_failed_deletion_is_retried_after_ten_seconds_in_order(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    waiting.removals.schedule(waiting.log, START_MS)
    waiting.disk.fail("unlink", errno.EIO, times=1, path=f"{waiting.bases[3]:020d}.log")
    waiting.run(START_MS)
    assert waiting.left == waiting.bases[3:]
    assert not waiting.removals.is_due(START_MS + 9_999)
    assert waiting.removals.is_due(START_MS + 10_000)
    waiting.run(START_MS + 10_000)
    assert waiting.left == waiting.bases[12:]
    waiting.log.close()


def test_directories_go_without_a_checkpoint(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    doomed = [tmp_path / f"a-{n}" for n in range(40)]
    for path in doomed:
        path.mkdir()
        waiting.removals.schedule(path, START_MS)
    waiting.run(START_MS)
    assert waiting.checkpoints == 0
    assert not any(path.exists() for path in doomed)
