"""A restore that is killed at any write of a file, and run again: what is left is what it would have been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError
from service.base.types import Buffer
from service.base.world import World
from service.hot.log_dir import read_meta
from service.inspect.restore_file import read_restore, write_restore
from service.metadata.bootstrap import FILE_NAME, InitialController
from service.metadata.formatting import FIRST_SNAPSHOT, Order, format_directories
from service.metadata.frames import newest
from tests.support.fault_disk import Fault, FaultDisk
from tests.support.world import WORLD, make_world
from tests.unit.inspect.test_restore_file import HEADER, RECORDS
from tests.unit.metadata.test_formatting import CLUSTER_ID, LEVELS, OWN
from tests.unit.tiering.world import Crash

NOW_MS = 1_700_000_000_000
FEW = [*RECORDS[:4], RECORDS[-1]]


class DeadlyDisk(FaultDisk):
    """The process ends at the call of this number, in the middle of what it writes; 0: never."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._left = number
        self.is_dead = False

    def _strike(self, call: str, path: Path) -> Fault | None:
        if self.is_dead:
            raise Crash(call)
        self._left -= 1
        if self._left == 0:
            self.is_dead = True
            raise Crash(call)
        return super()._strike(call, path)

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        if self._left == 1:
            self.disk.pwrite(fd, memoryview(data)[: len(data) // 2], position)
        super().pwrite(fd, data, position)

    def end(self) -> None:
        """Close what the process had open."""
        for fd in self._paths:
            self.disk.close(fd)


class AlreadyDone(Exception):
    """Raised where the first run had nothing left to do when it was killed."""


def killed_anywhere(tmp_path: Path, work: Callable[[World, Path], object]) -> Iterator[Path]:
    """Yield a folder for each call of the disk at which `work` was killed before it was done once more."""
    number = 0
    while True:
        number += 1
        folder = tmp_path / f"{number}"
        folder.mkdir()
        disk = DeadlyDisk(number)
        try:
            work(make_world(ManualClock(NOW_MS), disk=disk), folder)
        except Crash:
            disk.end()
        else:
            assert number > 5
            return
        with suppress(AlreadyDone):
            work(make_world(ManualClock(NOW_MS), seed=2), folder)
        yield folder


def test_the_file_of_a_restore_is_whole_or_not_there(tmp_path: Path) -> None:
    def write(world: World, folder: Path) -> None:
        write_restore(world.disk, folder / "restore.checkpoint", HEADER, FEW, 7)

    for folder in killed_anywhere(tmp_path, write):
        found = read_restore(WORLD.disk, folder / "restore.checkpoint")
        assert (found.header, [one.record for one in found.frames]) == (HEADER, FEW)


@pytest.mark.parametrize(
    ("metadata", "controllers"),
    [("a", ()), ("b", ()), ("a", (InitialController(1, "a", 9093, OWN),))],
)
def test_directories_are_formatted_for_a_restore_whenever_the_first_run_was_killed(
    tmp_path: Path, metadata: str, controllers: tuple[InitialController, ...]
) -> None:
    frames = tuple(map(newest, FEW))

    def work(world: World, folder: Path) -> None:
        order = Order(
            CLUSTER_ID,
            1,
            (folder / "a", folder / "b"),
            folder / metadata,
            "CONTROLLER",
            {**LEVELS, "kraft.version": 1 if controllers else 0},
            controllers,
            restored=frames,
        )
        try:
            format_directories(world, order, lambda words: None)
        except ConfigError as e:
            raise (AlreadyDone if "formatted already" in str(e) else e) from e

    (tmp_path / "whole").mkdir()
    work(make_world(ManualClock(NOW_MS)), tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert f"{metadata}/{FILE_NAME}" in expected
    assert any(name.endswith(FIRST_SNAPSHOT.file_name) for name in expected) is bool(controllers)
    for folder in killed_anywhere(tmp_path, work):
        assert contents(folder) == expected
        for name in "ab":
            meta = read_meta(WORLD.disk, folder / name)
            assert meta is not None
            assert (meta.cluster_id, meta.node_id) == (CLUSTER_ID, 1)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those with an identity of their own, and those that hold nothing."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("meta.properties", ".lock")
    }


def test_a_directory_of_another_restore_is_not_gone_on_with(tmp_path: Path) -> None:
    def order(number: int) -> Order:
        folders = (tmp_path / "a", tmp_path / "b")
        frames = tuple(map(newest, RECORDS[:number]))
        return Order(CLUSTER_ID, 1, folders[:number], tmp_path / "a", "", LEVELS, restored=frames)

    format_directories(make_world(ManualClock(NOW_MS)), order(1), lambda words: None)
    with pytest.raises(ConfigError, match="formatted already"):
        format_directories(make_world(ManualClock(NOW_MS)), order(2), lambda words: None)
