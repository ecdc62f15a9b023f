"""The second level of the chunk cache, on a real disk that may fail."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.types import Buffer
from service.remote.reading.disk_cache import LOCK_NAME, DiskCache, Kept
from service.remote.stores.errors import StoreUnavailable
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.remote.archive import Archive
from tests.unit.remote.test_reader import CHUNK, World, settle


class WithDisk(World):
    """A reader with little memory and a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.disk = FaultDisk()
        self.caches: list[DiskCache] = []
        for _ in range(6):
            self.archive.add_segment(60)
        self.restart()

    def restart(self, most_bytes: int = 1 << 20, cache_bytes: int = 4 * CHUNK) -> None:
        self.reader.close()
        self.caches.append(DiskCache(make_world(disk=self.disk), self.folder, most_bytes))
        self.reader = self.new_reader(cache_bytes=cache_bytes, disk_cache=self.caches[-1])

    def read_all(self) -> bytes:
        got, offset = bytearray(), 0
        while offset < self.archive.next_offset:
            read = self.start(offset).result(20)
            got += b"".join(read.data)
            offset = read.next_offset
            settle(self)  # what is read ahead of a reader in a hurry may go before it is on disk
        return bytes(got)

    def downloads(self) -> int:
        return self.reader.stats().flights.downloaded_bytes

    def chunks(self) -> list[Path]:
        return sorted(self.folder.glob("*.chunk"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WithDisk]:
    world = WithDisk(tmp_path / "cache")
    yield world
    world.reader.close()


def test_what_memory_has_no_room_for_is_read_from_disk_the_second_time(world: WithDisk) -> None:
    assert world.read_all() == world.archive.log
    before = world.downloads()
    log = len(world.archive.log)
    assert log <= before <= 1.05 * log, "the log once, and each segment's footer"
    for _ in range(2):
        assert world.read_all() == world.archive.log
    assert world.downloads() == before
    assert world.reader.stats().flights.disk_hits > 0


def test_each_start_begins_with_an_empty_directory_and_leaves_others_files_alone(world: WithDisk) -> None:
    world.read_all()
    assert world.chunks()
    foreign = [world.folder / name for name in ("notes.txt", "00000000000000000000.log", "x.chunk")]
    for path in foreign:
        path.write_bytes(b"mine")
    (world.folder / "0000000000000007.chunk.tmp").write_bytes(b"a write that a crash has cut short")
    world.restart()
    assert world.read_all() == world.archive.log
    assert world.downloads() >= len(world.archive.log), "a slow machine may try one twice"
    assert all(path.read_bytes() == b"mine" for path in foreign)
    assert not list(world.folder.glob("*.tmp"))


def test_the_least_recently_used_files_go_when_the_budget_is_spent(world: WithDisk) -> None:
    world.restart(most_bytes=5 * CHUNK)
    assert world.read_all() == world.archive.log
    assert 0 < sum(path.stat().st_size for path in world.chunks() if path.name != "x.chunk") <= 5 * CHUNK
    assert world.caches[-1].size <= 5 * CHUNK


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("harm", [damage, cut, Path.unlink], ids=lambda harm: harm.__name__)
def test_what_is_damaged_on_disk_is_fetched_again(harm: Any, world: WithDisk) -> None:
    world.read_all()
    for path in world.chunks():
        harm(path)
    before = world.downloads()
    assert world.read_all() == world.archive.log
    assert world.downloads() > before
    for _ in range(10):  # what was in memory the first time is found damaged later
        again = world.downloads()
        assert world.read_all() == world.archive.log
        if world.downloads() == again:
            break
    else:
        pytest.fail("it is not kept anew")


@pytest.mark.parametrize(
    "call", ["mkdir", "lock", "list", "open", "pwrite", "rename", "unlink", "pread", "close"]
)
def test_a_disk_that_fails_costs_the_cache_and_nobodys_read(
    call: str, world: WithDisk, caplog: pytest.LogCaptureFixture
) -> None:
    if call == "unlink":
        world.restart(most_bytes=5 * CHUNK)
    world.disk.fail(call, errno.EIO, path=str(world.folder))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert world.read_all() == world.archive.log
    assert [record for record in caplog.records if "is off until the next start" in record.message]
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_two_nodes_do_not_share_a_directory(world: WithDisk, caplog: pytest.LogCaptureFixture) -> None:
    world.read_all()
    before = world.chunks()
    other = DiskCache(make_world(), world.folder, 1 << 20)
    reader, world.reader = world.reader, world.new_reader(disk_cache=other)
    with caplog.at_level(logging.ERROR):
        assert world.read_all() == world.archive.log
    assert "is off until the next start" in caplog.text
    assert world.chunks() == before
    assert (world.folder / LOCK_NAME).exists()
    world.reader.close()
    world.reader = reader


def test_what_is_on_disk_is_served_while_the_store_is_away(world: WithDisk) -> None:
    world.archive = Archive(world.store.inner, seed=2)
    world.archive.add_segment(600)
    world.restart(cache_bytes=16 * CHUNK)
    world.read_all()

    def away(key: str, data: bytes) -> bytes:
        raise StoreUnavailable("away")

    world.store.interfere = away
    assert world.read_all() == world.archive.log


def test_nothing_is_touched_before_the_first_read(tmp_path: Path) -> None:
    world = World()
    world.reader.close()
    disk = FaultDisk()
    world.reader = world.new_reader(disk_cache=DiskCache(make_world(disk=disk), tmp_path / "cache", 1 << 20))
    world.reader.close()
    assert not disk.calls


def test_a_bug_on_a_thread_costs_no_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(DiskCache):
        def save(self, chunk: Kept, data: Buffer) -> None:
            raise ValueError("a bug")

    world = World()
    for _ in range(6):
        world.archive.add_segment(60)
    world.reader.close()
    cache = Broken(make_world(), tmp_path / "cache", 1 << 20)
    world.reader = world.new_reader(cache_bytes=4 * CHUNK, disk_cache=cache)
    got, offset = bytearray(), 0
    while offset < world.archive.next_offset:
        read = world.start(offset).result(20)
        got += b"".join(read.data)
        offset = read.next_offset
    assert bytes(got) == world.archive.log
    assert "a bug" in caplog.text
    world.reader.close()
    assert world.reader.stats().flights.busy_threads == 0
