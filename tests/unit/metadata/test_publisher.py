"""The publisher publishes committed batches in their order, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from errno import EIO, ENOSPC
from pathlib import Path
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.disk import DiskError, SystemDisk
from service.base.errors import InvariantError, StorageError
from service.base.types import Buffer
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.batches import encode_batch
from service.metadata.controller.requests import CreateTopic
from service.metadata.delta import MetadataDelta
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.publication import Publication
from service.metadata.publisher import MetadataOptions, Publisher
from service.metadata.raft.durable_offset import read_durable_offset
from service.metadata.raft.log import MetadataLog
from service.metadata.records import TopicRecord
from tests.support.world import make_world
from tests.unit.metadata.controllers import PoolOf, create, join, make_controller, refuse_failure, running
from tests.unit.metadata.test_controller import HeldExecutor


def open_log(directory: Path) -> MetadataLog:
    return MetadataLog.open(
        directory, make_world(), segment_bytes=1 << 20, snapshots=(), snapshot=None, state=None
    )


def topic_batch(log: MetadataLog, names: Sequence[str]) -> bytearray:
    records = [TopicRecord(name=name, topic_id=UUID(bytes=name.rjust(16).encode())) for name in names]
    return encode_batch(map(newest, records), base_offset=log.end_offset, epoch=1, timestamp_ms=0)


def not_broken(error: BaseException) -> None:
    raise AssertionError from error


def test_an_uncommitted_tail_that_is_truncated_was_never_published(tmp_path: Path) -> None:
    published: list[str] = []

    def listener(before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        published.extend(sorted(set(image.topics_by_name) - set(before.topics_by_name)))

    async def scenario() -> None:
        log = open_log(tmp_path)
        publication = Publication(
            log,
            MetadataImage(),
            [listener],
            on_published=lambda _: None,
            on_broken=not_broken,
            on_bug=refuse_failure,
        )
        for names in (["a"], ["b"], ["never"], ["nor this"]):
            log.append(topic_batch(log, names))
        log.flush(log.end_offset)
        publication.commit(2)
        await publication.reached(1)
        assert published == ["a", "b"], "what lies beyond the high watermark is not committed"
        with pytest.raises(InvariantError):
            publication.truncated(1)
        publication.truncated(2)
        log.truncate_to(2)
        log.append(topic_batch(log, ["c", "d"]))
        publication.commit(4)
        await publication.reached(3)
        await publication.stop()
        log.close()

    asyncio.run(scenario())
    assert published == ["a", "b", "c", "d"]
    assert read_durable_offset(SystemDisk(), tmp_path) == 4


def test_a_proposal_that_was_truncated_is_not_published_when_its_offset_is_committed(tmp_path: Path) -> None:
    async def scenario() -> MetadataImage:
        log = open_log(tmp_path)
        publication = Publication(
            log, MetadataImage(), [], on_published=lambda _: None, on_broken=not_broken, on_bug=refuse_failure
        )
        record = TopicRecord(name="never", topic_id=UUID(int=5))
        delta = MetadataDelta(publication.image).replay_all([record])
        publication.proposed(0, delta.build(0, 1, 0), delta, 100)
        log.append(topic_batch(log, ["never"]))
        publication.truncated(0)
        log.truncate_to(0)
        log.append(topic_batch(log, ["instead"]))
        publication.commit(1)
        await publication.reached(0)
        log.close()
        return publication.image

    assert list(asyncio.run(scenario()).topics_by_name) == ["instead"]


def test_records_after_the_snapshot_wait_for_the_high_watermark_at_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            await create(controller, "in-the-log")
        executor = HeldExecutor()
        executor.held = []
        world = replace(make_world(ManualClock()), threads=PoolOf(executor))
        publisher = Publisher(MetadataOptions(1, tmp_path), world, on_fatal=refuse_failure)
        starting = asyncio.create_task(publisher.start())
        while not executor.held:
            await asyncio.sleep(0.001)
        assert publisher.image == MetadataImage(), "there is no snapshot, and nothing is committed yet"
        executor.release()
        await starting
        assert "in-the-log" in publisher.image.topics_by_name
        await publisher.stop()

    asyncio.run(scenario())


def test_a_long_log_is_replayed_in_slices(tmp_path: Path) -> None:
    turns: list[int] = []

    async def scenario() -> None:
        log = open_log(tmp_path)
        for i in range(60):
            log.append(topic_batch(log, [f"{i}-{j}" for j in range(100)]))
        publication = Publication(
            log, MetadataImage(), [], on_published=lambda _: None, on_broken=not_broken, on_bug=refuse_failure
        )
        publication.commit(log.end_offset)
        while len(publication.image.topics_by_name) < 6000:
            turns.append(publication.image.offset)
            await asyncio.sleep(0)
        await publication.stop()
        log.close()

    asyncio.run(scenario())
    assert len(set(turns)) >= 4


def test_a_listener_that_fails_is_a_bug_of_its_own_and_not_of_the_log(tmp_path: Path) -> None:
    fatal: list[str] = []

    def broken(before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        controller = make_controller(tmp_path, on_fatal=lambda what, e: fatal.append(what))
        await controller.start()
        await join(controller)
        controller.publisher.subscribe(broken)
        await create(controller, "t")
        await controller.close()

    asyncio.run(scenario())
    assert fatal == ["a change of the metadata"]


class FailingDisk(SystemDisk):
    """The disk of this machine, until `errno` is set for `call` on a metadata log's ``.log``."""

    def __init__(self) -> None:
        super().__init__()
        self.call = ""
        self.errno = 0

    def _maybe(self, call: str, fd: int) -> None:
        path = self._paths.get(fd)
        if call == self.call and path is not None and path.suffix == ".log":
            raise DiskError(call, path, self.errno)

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        self._maybe("pwrite", fd)
        super().pwrite(fd, data, position)

    def fsync(self, fd: int) -> None:
        self._maybe("fsync", fd)
        super().fsync(fd)

    fdatasync = fsync


@pytest.mark.parametrize(("call", "errno"), [("pwrite", ENOSPC), ("pwrite", EIO), ("fsync", EIO)])
def test_a_failed_metadata_log_stops_the_node_without_a_clean_shutdown(
    tmp_path: Path, call: str, errno: int
) -> None:
    async def scenario() -> None:
        disk, fatal = FailingDisk(), list[str]()
        world = make_world(ManualClock(), disk)
        controller = make_controller(tmp_path, world=world, on_fatal=lambda what, e: fatal.append(what))
        await controller.start()
        await join(controller)
        acknowledged = controller.image.offset + 1
        disk.call, disk.errno = call, errno
        with pytest.raises(StorageError):
            await controller.create_topics([CreateTopic("lost")])
        assert fatal == ["metadata log"]
        with pytest.raises(StorageError, match="the metadata log failed"):
            await controller.create_topics([CreateTopic("late")])
        await controller.close()
        assert read_durable_offset(SystemDisk(), tmp_path / CLUSTER_METADATA_DIR) == acknowledged
        async with running(tmp_path) as again:
            assert again.image.offset >= acknowledged

    asyncio.run(scenario())


class ForgetfulDisk(SystemDisk):
    """A disk under a page cache that gives pages up for clean when writing them out failed, as Linux does.

    What was on the device is known apart from what is read: `lose_power` leaves that alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self._dirty: dict[Path, list[tuple[int, bytes]]] = {}
        self._device: dict[Path, bytearray] = {}

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        super().pwrite(fd, data, position)
        self._dirty.setdefault(self._paths[fd], []).append((position, bytes(data)))

    def fsync(self, fd: int) -> None:
        path = self._paths[fd]
        written = self._dirty.pop(path, [])
        if self.fails and path.suffix == ".log":
            raise DiskError("flushing", path, EIO)
        device = self._device.setdefault(path, bytearray())
        for position, data in written:
            device.extend(bytes(max(position + len(data) - len(device), 0)))
            device[position : position + len(data)] = data

    fdatasync = fsync

    def lose_power(self) -> None:
        for path, device in self._device.items():
            if path.suffix == ".log":
                path.write_bytes(device)


def test_records_lost_by_a_failed_fsync_are_rewritten_before_use(
    tmp_path: Path,
) -> None:
    disk = ForgetfulDisk()
    world = make_world(ManualClock(), disk)

    async def fail() -> None:
        controller = make_controller(tmp_path, world=world, on_fatal=lambda what, error: None)
        await controller.start()
        await join(controller)
        disk.fails = True
        with pytest.raises(StorageError):
            await create(controller, "undecided")
        await controller.close()
        disk.fails = False

    async def go_on() -> None:
        async with running(tmp_path, world=world) as controller:
            await join(controller)
            await create(controller, "acknowledged")
            disk.lose_power()

    asyncio.run(fail())
    asyncio.run(go_on())

    async def look() -> MetadataImage:
        async with running(tmp_path) as controller:
            return controller.image

    assert "acknowledged" in asyncio.run(look()).topics_by_name
