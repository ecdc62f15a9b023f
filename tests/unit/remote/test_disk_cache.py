"""The second level of the chunk cache, on a real disk that may fail."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.disk import Space
from service.base.types import Buffer
from service.remote.reading.disk_cache import LOCK_NAME, CacheableChunk, DiskCache
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
        return self.reader.stats().downloads.downloaded_bytes

    def chunks(self) -> list[Path]:
        return sorted(self.folder.glob("*.chunk"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WithDisk]:
    world = WithDisk(tmp_path / "cache")
    yield world
    world.reader.close()


def test_chunks_evicted_from_memory_are_read_from_the_disk_cache(world: WithDisk) -> None:
    assert world.read_all() == world.archive.log
    before = world.downloads()
    log = len(world.archive.log)
    assert log <= before <= 1.05 * log, "the log once, and each segment's footer"
    for _ in range(2):
        assert world.read_all() == world.archive.log
    assert world.downloads() == before
    assert world.reader.stats().downloads.disk_hits > 0


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
def test_damaged_cached_chunks_are_downloaded_again(harm: Any, world: WithDisk) -> None:
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
def test_a_failing_disk_turns_off_the_cache_and_fails_no_read(
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


class Small(FaultDisk):
    """A file system of `total` bytes, of which `others` are somebody else's."""

    def __init__(self, folder: Path, total: int) -> None:
        super().__init__()
        self.folder = folder
        self.total = total
        self.others = 0

    def space(self, path: Path) -> Space:
        super().space(path)
        ours = sum(one.stat().st_size for one in self.folder.glob("*.chunk*"))
        return Space(self.total, max(self.total - self.others - ours, 0))


def test_a_cache_beside_logs_leaves_them_what_their_file_system_is_to_keep_free(world: WithDisk) -> None:
    world.reader.close()
    world.disk = disk = Small(world.folder, total=20 * CHUNK)
    logs, apart = world.folder.parent, world.folder.parent / "not there"
    cache = DiskCache(
        make_world(disk=disk), world.folder, 1 << 30, beside=(logs,), keeps_free=lambda total: total // 2
    )
    world.reader = world.new_reader(cache_bytes=4 * CHUNK, disk_cache=cache)
    assert world.read_all() == world.archive.log
    assert 6 * CHUNK <= cache.size <= 10 * CHUNK, "its budget is far more"
    assert cache.shares(logs)
    assert not cache.shares(apart)
    disk.others = 6 * CHUNK  # records come
    freed = cache.trim()
    assert freed >= 2 * CHUNK - CHUNK // 2
    assert cache.size <= 4 * CHUNK
    assert sum(path.stat().st_size for path in world.chunks()) == cache.size
    assert cache.trim() == 0
    disk.others = 19 * CHUNK
    cache.trim()
    assert not world.chunks(), "all that it has goes before a record is refused"
    assert world.read_all() == world.archive.log
    assert not world.chunks()
    disk.others = 0
    assert world.read_all() == world.archive.log
    assert world.chunks(), "it goes on when there is room"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_costs_part_of_the_cache_and_the_cache_goes_on_smaller(
    code: int, world: WithDisk, caplog: pytest.LogCaptureFixture
) -> None:
    world.reader.close()
    clock = ManualClock(0)
    cache = DiskCache(make_world(clock, disk=world.disk), world.folder, 1 << 20)
    world.reader = world.new_reader(cache_bytes=4 * CHUNK, disk_cache=cache)
    world.read_all()
    before = cache.size
    assert before
    for path in world.chunks()[-2:]:
        path.unlink()  # so that something has to be written
    world.disk.fail("pwrite", code, path=str(world.folder))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert world.read_all() == world.archive.log
    assert 0 < cache.size <= before // 2
    assert sum(path.stat().st_size for path in world.chunks()) == cache.size
    assert not list(world.folder.glob("*.tmp"))
    assert "adds nothing for" in caplog.text
    assert "is off" not in caplog.text
    world.disk.heal()
    clock.advance(10_000)
    assert world.read_all() == world.archive.log
    assert cache.size > before // 2


def test_a_disk_that_fails_otherwise_is_rid_of_what_the_cache_had(world: WithDisk) -> None:
    world.read_all()
    world.chunks()[-1].unlink()
    world.disk.fail("rename", errno.EIO, path=str(world.folder))
    for _ in range(3):
        assert world.read_all() == world.archive.log
    assert not list(world.folder.glob("*.chunk*"))


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


def test_cached_chunks_are_served_while_the_store_is_away(world: WithDisk) -> None:
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
        def save(self, chunk: CacheableChunk, data: Buffer) -> None:
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
    assert world.reader.stats().downloads.busy_threads == 0


def test_dropped_chunks_are_deleted_and_others_stay(world: WithDisk) -> None:
    world.read_all()
    first = world.archive.manifest.entries[0].key
    before, size = len(world.chunks()), world.caches[-1].size
    dropped = world.caches[-1].drop(lambda block: isinstance(block, tuple) and block[0] == first)
    assert dropped > 0
    assert len(world.chunks()) == before - dropped
    assert world.caches[-1].size == sum(path.stat().st_size for path in world.chunks()) < size
    assert not world.caches[-1].has((first, 0))
    assert world.read_all() == world.archive.log


def test_a_drop_deletes_what_an_earlier_process_has_left(world: WithDisk) -> None:
    """An erasure may be over before this process reads from the bucket at all."""
    world.read_all()
    left = world.chunks()
    assert left
    world.caches[-1].close()
    world.restart()
    assert world.chunks() == left, "nothing is touched before the first use"
    world.caches[-1].drop(lambda block: False)
    assert world.chunks() == []
    assert world.read_all() == world.archive.log
    assert world.chunks()
