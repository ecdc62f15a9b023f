"""`replication-offset-checkpoint`: high watermarks from one start to the next."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from tests.support.fault_disk import FaultDisk
from tests.support.waiting import until
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, checkpointed

A = TopicIdPartition(UUID(int=1), "a", 0)
B = TopicIdPartition(UUID(int=2), "b", 3)
NEW_A = A._replace(topic_id=UUID(int=9))
FILE = "replication-offset-checkpoint"


def at_once(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Node:
    """Logs of a node, and their high watermarks."""

    def __init__(self, *directories: Path, disk: FaultDisk | None = None) -> None:
        self.clock = ManualClock(START_MS)
        self.logs = LogManager(directories, make_world(self.clock, disk), high_watermark_interval_ms=5_000)
        self.marks: dict[TopicIdPartition, int] = {}
        self.logs.checkpoint_high_watermarks(lambda: self.marks.items())

    async def open(self, *tips: TopicIdPartition) -> Node:
        await self.logs.open_all(lambda _: LogConfig())
        await self.make(*tips)
        return self

    async def make(self, *tips: TopicIdPartition) -> None:
        for made in await self.logs.create([(tip, LogConfig()) for tip in tips]):
            assert isinstance(made, LocalLog)
            if not made.log_end_offset:
                made.append(batch(10), 0, START_MS)


async def later(node: Node, directory: Path, expected: dict[tuple[str, int], int], ms: int = 5_000) -> None:
    """The file says so once that time is over."""
    running = asyncio.create_task(node.logs.run())
    await asyncio.sleep(0.02)
    node.clock.advance(ms)
    await until(lambda: checkpointed(directory / FILE) == expected)
    running.cancel()
    await asyncio.wait({running})


@at_once
async def test_marks_are_known_at_the_next_start_after_any_stop(tmp_path: Path) -> None:
    node = await Node(tmp_path).open(A, B)
    assert node.logs.high_watermark(A) is None
    node.marks = {A: 7, B: 3}
    await later(node, tmp_path, {("a", 0): 7, ("b", 3): 3})
    node.marks = {A: 9}
    await node.logs.close(clean=False)
    again = await Node(tmp_path).open()
    assert (again.logs.high_watermark(A), again.logs.high_watermark(B)) == (7, 3)
    again.marks = {A: 10}
    await again.logs.close()
    assert checkpointed(tmp_path / FILE) == {("a", 0): 10, ("b", 3): 3}
    assert (tmp_path / FILE).read_text().splitlines()[:4] == ["0", "3", "a 0 10", "b 3 3"]
    last = await Node(tmp_path).open()
    assert last.logs.high_watermark(A) == 10
    await last.logs.close()


@at_once
async def test_each_directory_tells_of_its_own(tmp_path: Path) -> None:
    paths = tmp_path / "one", tmp_path / "two"
    node = await Node(*paths).open(A, B)
    node.marks = {A: 7, B: 3}
    await node.logs.close()
    told = [checkpointed(path / FILE) for path in paths]
    assert sorted(told, key=str) == [{("a", 0): 7}, {("b", 3): 3}]


@at_once
async def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    disk = FaultDisk()
    node = await Node(tmp_path, disk=disk).open(A, B)
    await later(node, tmp_path, {})
    assert not (tmp_path / FILE).exists()
    node.marks = {A: 7}
    await later(node, tmp_path, {("a", 0): 7})
    disk.log.clear()
    await later(node, tmp_path, {("a", 0): 7}, 60_000)
    assert [call for call in disk.log if FILE in call[1].name] == []
    await node.logs.close()


@pytest.mark.parametrize("stops", [False, True])
def test_a_topic_never_begins_with_the_mark_of_its_predecessor(tmp_path: Path, stops: bool) -> None:
    async def scenario() -> None:
        node = await Node(tmp_path).open(A, B)
        node.marks = {A: 7, B: 3}
        await later(node, tmp_path, {("a", 0): 7, ("b", 3): 3})
        node.marks = {}
        if stops:  # its files are lost
            await node.logs.close()
            (tmp_path / "a-0").rename(tmp_path.with_name("gone"))
            node = await Node(tmp_path).open()
        else:
            await node.logs.delete([A])
        assert node.logs.high_watermark(A) is None
        await node.make(NEW_A)
        assert node.logs.high_watermark(NEW_A) is None
        assert checkpointed(tmp_path / FILE) == {("b", 3): 3}
        await node.logs.close(clean=False)
        again = await Node(tmp_path).open()
        assert again.logs.high_watermark(NEW_A) is None
        assert again.logs.get(NEW_A.topic_id, 0) is not None
        await again.logs.close()

    asyncio.run(scenario())


@at_once
async def test_a_disk_that_refuses_is_asked_again(tmp_path: Path) -> None:
    disk = FaultDisk()
    node = await Node(tmp_path, disk=disk).open(A)
    node.marks = {A: 7}
    fault = disk.fail("rename", errno.ENOSPC, path=FILE)
    running = asyncio.create_task(node.logs.run())
    await asyncio.sleep(0.02)
    node.clock.advance(5_000)
    await until(lambda: fault.hits > 0)
    assert node.logs.is_online(tmp_path)
    running.cancel()
    await asyncio.wait({running})
    disk.heal()
    await later(node, tmp_path, {("a", 0): 7})
    await node.logs.close()


@at_once
async def test_a_failed_fsync_takes_the_directory_offline(tmp_path: Path) -> None:
    disk = FaultDisk()
    node = await Node(tmp_path, disk=disk).open(A)
    node.marks = {A: 7}
    disk.fail("fsync", errno.EIO, path=FILE)
    running = asyncio.create_task(node.logs.run())
    await asyncio.sleep(0.02)
    node.clock.advance(5_000)
    await until(lambda: not node.logs.is_online(tmp_path))
    running.cancel()
    await asyncio.wait({running})
    disk.heal()
    await node.logs.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


@at_once
async def test_a_file_that_is_damaged_says_nothing(tmp_path: Path) -> None:
    node = await Node(tmp_path).open(A)
    node.marks = {A: 7}
    await node.logs.close()
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace("a 0 7", "a 0 9"))
    again = await Node(tmp_path).open()
    assert again.logs.high_watermark(A) is None
    await again.logs.close()
