"""Recovery of the metadata after a restart, a crash or damage; snapshots and their retention."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.disk import SystemDisk
from service.base.errors import CorruptionError
from service.base.world import system_world
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.batches import encode_batch
from service.metadata.controller.requests import AlterConfig, AlterResource, CreateTopic, DeleteTopic
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log_check import Durable, LogEnd, check_log
from service.metadata.raft.snapshots import list_snapshots
from service.metadata.raft.state import QuorumState
from service.metadata.raft.state_file import read_state
from service.metadata.records import TopicRecord
from service.metadata.snapshot_codec import last_contained_ms
from service.metadata.snapshotter import StoredSnapshot, expendable
from tests.unit.metadata.controllers import AnyConfig, LoneController, catalog_commit, create, join, running

LOG = "00000000000000000000.log"


def content(image: MetadataImage) -> tuple[object, ...]:
    """Return the content of an image, without its position and registrations."""
    topics = {
        name: (topic.id, tuple(p.replicas for p in topic.partitions.values()))
        for name, topic in image.topics_by_name.items()
    }
    configs = {resource: dict(values) for resource, values in image.configs.items()}
    return topics, configs, dict(image.features), image.next_producer_id, dict(image.remote)


async def fill(controller: LoneController, count: int = 10) -> int:
    """Some of everything; returns the broker's epoch."""
    epoch = await join(controller)
    for i in range(count):
        await create(controller, f"topic.{i}", 3)
    change = AlterResource(2, "topic.1", (AlterConfig("retention.ms", 0, "1234"),))
    await controller.incremental_alter_configs([change])
    topic_id = controller.image.topics_by_name["topic.2"].id
    await controller.catalog.commit([catalog_commit(topic_id, 1, 1, 0)])
    await controller.allocate_producer_ids(1, epoch)
    return epoch


async def image_of(directory: Path, **options: Any) -> MetadataImage:
    async with running(directory, **options) as controller:
        return controller.image


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epoch = await fill(controller)
            await controller.brokers.fence(1, epoch)
            before, controller_epoch = controller.image, controller.epoch
        async with running(tmp_path) as controller:
            assert content(controller.image) == content(before)
            assert controller.image.brokers == before.brokers
            assert controller.epoch == controller_epoch + 1
            epoch = await join(controller)
            assert controller.image.topics_by_name["topic.0"].partitions[0].leader_epoch == 2
        state = read_state(SystemDisk(), tmp_path / CLUSTER_METADATA_DIR)
        assert state == QuorumState(controller.epoch, leader_id=1, voters=(1,))

    asyncio.run(scenario())


@pytest.mark.parametrize("torn", [1, 7, 60, 100])
def test_a_batch_that_a_crash_tore_is_cut_off_and_the_rest_is_there(tmp_path: Path, torn: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await fill(controller, 4)
            before = controller.image
        records = [newest(TopicRecord(name=f"t{i}", topic_id=UUID(int=i + 1))) for i in range(5)]
        batch = encode_batch(records, base_offset=before.offset + 1, epoch=1, timestamp_ms=0)
        with open(tmp_path / CLUSTER_METADATA_DIR / LOG, "ab") as log:
            log.write(batch[:-torn])
        assert content(await image_of(tmp_path)) == content(before)

    asyncio.run(scenario())


def test_a_hole_before_committed_records_is_corruption(tmp_path: Path) -> None:
    batches = [
        encode_batch(
            [newest(TopicRecord(name=f"t{n}", topic_id=UUID(int=n + 1)))],
            base_offset=n,
            epoch=1,
            timestamp_ms=0,
        )
        for n in range(3)
    ]
    hole = bytes(len(batches[1]))
    (tmp_path / LOG).write_bytes(bytes(batches[0]) + hole + bytes(batches[2]))
    durable = Durable(0, 0, is_exact=False, epoch=None)
    with pytest.raises(CorruptionError, match="the metadata log is damaged at offset 1"):
        check_log(SystemDisk(), tmp_path, durable)
    assert check_log(SystemDisk(), tmp_path, durable._replace(is_acknowledged=False)) == LogEnd(1, 1)
    assert (tmp_path / LOG).read_bytes() == batches[0]


def _batches(*counts: int) -> list[bytes]:
    """Batches of so many records each, one behind the other."""
    made, offset = list[bytes](), 0
    for count in counts:
        records = [newest(TopicRecord(name=f"t{n}", topic_id=UUID(int=n + 1))) for n in range(count)]
        made.append(bytes(encode_batch(records, base_offset=offset, epoch=1, timestamp_ms=0)))
        offset += count
    return made


def test_a_page_that_a_loss_of_power_kept_from_the_disk_is_no_damage(tmp_path: Path) -> None:
    """Several batches are written while one fsync goes on: any of their pages may be missing."""
    first, second, third = _batches(1, 200, 1)
    assert len(first) < 4096 < len(second)
    whole = first + second + third
    (tmp_path / LOG).write_bytes(whole[: len(first)] + bytes(4096 - len(first)) + whole[4096:])
    durable = Durable(0, 1, is_exact=True, epoch=None)
    with pytest.raises(CorruptionError, match="the metadata log is damaged at offset 1"):
        check_log(SystemDisk(), tmp_path, durable._replace(offset=2))
    with pytest.raises(CorruptionError, match="the metadata log is damaged at offset 1"):
        check_log(SystemDisk(), tmp_path, durable._replace(is_exact=False))
    assert check_log(SystemDisk(), tmp_path, durable) == LogEnd(1, 1)
    assert (tmp_path / LOG).read_bytes() == first


def test_other_bytes_in_front_of_a_valid_batch_are_damage(tmp_path: Path) -> None:
    first, second, third = _batches(1, 200, 1)
    damaged = bytearray(second)
    damaged[300] ^= 1
    (tmp_path / LOG).write_bytes(first + bytes(damaged) + third)
    with pytest.raises(CorruptionError, match="the metadata log is damaged at offset 1"):
        check_log(SystemDisk(), tmp_path, Durable(0, 1, is_exact=True, epoch=None))


def test_garbage_after_the_end_is_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await fill(controller, 3)
            before = controller.image
        with open(tmp_path / CLUSTER_METADATA_DIR / LOG, "ab") as log:
            log.write(bytes(range(256)))
        assert content(await image_of(tmp_path)) == content(before)

    asyncio.run(scenario())


async def written_snapshots(controller: LoneController, directory: Path, count: int) -> None:
    """Create topics until so many snapshots were written in all."""
    seen: set[object] = set()
    number = len(controller.image.topics_by_name)
    while len(seen) < count:
        await create(controller, f"more-{number}", 5)
        number += 1
        await asyncio.sleep(0.001)
        seen.update(list_snapshots(SystemDisk(), directory))


def test_snapshots_let_the_old_log_go_and_start_from_the_newest(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def scenario() -> None:
        async with running(tmp_path, snapshot_max_bytes=3000) as controller:
            await fill(controller)
            await written_snapshots(controller, directory, 4)
            before = controller.image
        assert len(list_snapshots(SystemDisk(), directory)) == 2
        assert not (directory / LOG).exists()
        assert content(await image_of(tmp_path)) == content(before)

    asyncio.run(scenario())


def test_a_damaged_snapshot_is_set_aside_for_the_one_before_it(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def scenario() -> None:
        async with running(tmp_path, snapshot_max_bytes=3000) as controller:
            await fill(controller)
            await written_snapshots(controller, directory, 3)
            before = controller.image
        older, newest = list_snapshots(SystemDisk(), directory)
        path = directory / newest.file_name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert content(await image_of(tmp_path)) == content(before)
        assert list_snapshots(SystemDisk(), directory) == [older]
        assert path.with_name(path.name + ".damaged").exists()

    asyncio.run(scenario())


def test_a_log_that_does_not_reach_back_to_its_snapshot_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def scenario() -> None:
        async with running(tmp_path, snapshot_max_bytes=3000) as controller:
            await fill(controller)
            await written_snapshots(controller, directory, 3)
        for snapshot in list_snapshots(SystemDisk(), directory):
            (directory / snapshot.file_name).unlink()
        with pytest.raises(CorruptionError, match=r"log begins at offset .* ends at 0"):
            await image_of(tmp_path)

    asyncio.run(scenario())


@pytest.mark.parametrize("parted", [False, True], ids=["short", "parted"])
def test_a_log_that_a_fetched_snapshot_was_to_take_the_place_of_does_so_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, parted: bool
) -> None:
    """The process ended between the two. Its log ends before the snapshot, or went on in an epoch of which
    nothing was committed."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    directory = ours / CLUSTER_METADATA_DIR

    async def scenario() -> None:
        async with running(ours, world=system_world()) as controller:
            await fill(controller)
        shutil.copytree(ours, theirs)
        async with running(theirs, world=system_world(), snapshot_max_bytes=1000) as controller:
            await written_snapshots(controller, theirs / CLUSTER_METADATA_DIR, 2)
        for number in range(2 * parted):
            async with running(ours, world=system_world()) as controller:
                for other in range(30 * number):
                    await create(controller, f"lost.{other}")
        fetched = list_snapshots(SystemDisk(), theirs / CLUSTER_METADATA_DIR)[-1]
        shutil.copy(theirs / CLUSTER_METADATA_DIR / fetched.file_name, directory)
        expected = (await image_of(theirs)).topics_by_name.keys()
        caplog.clear()
        for _ in range(2):
            async with running(ours, world=system_world()) as controller:
                topics = {name for name in controller.image.topics_by_name if not name.startswith("new.")}
                assert not any(name.startswith("lost") for name in topics)
                assert topics <= expected
                assert {f"topic.{number}" for number in range(10)} <= topics
                assert controller.publisher.next_offset > fetched.end_offset
                await create(controller, f"new.{len(controller.image.topics_by_name)}")
        assert sum("restarts at the snapshot" in one for one in caplog.messages) == 1
        assert len({name for name in (await image_of(ours)).topics_by_name if name.startswith("new.")}) == 2

    asyncio.run(scenario())


def test_half_a_snapshot_left_by_a_crash_is_swept_away(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR
    directory.mkdir()
    part = directory / "00000000000000000010-0000000001.checkpoint.part"
    part.write_bytes(b"half")
    asyncio.run(image_of(tmp_path))
    assert not part.exists()


def test_time_alone_brings_a_snapshot(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def scenario() -> None:
        async with running(tmp_path, snapshot_interval_ms=20) as controller:
            await join(controller)
            while not list_snapshots(SystemDisk(), directory):
                await asyncio.sleep(0.01)
            before = controller.image
        assert content(await image_of(tmp_path)) == content(before)

    asyncio.run(scenario())


def test_a_tombstone_survives_restarts_and_snapshots_until_it_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, rules=AnyConfig()) as controller:
            await join(controller)
            tiered = CreateTopic("tiered", 3, configs=(("remote.storage.enable", "true"),))
            plain, offloaded = await create(controller, "plain"), await create(controller, "offloaded", 2)
            (created,) = await controller.create_topics([tiered])
            await controller.catalog.commit([catalog_commit(offloaded, 1, 1, 0)])
            names = ("tiered", "plain", "offloaded")
            await controller.delete_topics([DeleteTopic(name) for name in names])
            assert {t[:3] for t in controller.catalog.tombstones().values()} == {
                (created.topic_id, "tiered", 3),
                (offloaded, "offloaded", 2),
            }
            assert plain not in controller.catalog.tombstones()
            assert await create(controller, "tiered") not in controller.catalog.tombstones()
        for snapshot_max_bytes in (1 << 20, 1, 1 << 20):
            async with running(
                tmp_path, rules=AnyConfig(), snapshot_max_bytes=snapshot_max_bytes
            ) as controller:
                assert set(controller.catalog.tombstones()) == {created.topic_id, offloaded}
        assert list_snapshots(SystemDisk(), tmp_path / CLUSTER_METADATA_DIR)
        async with running(tmp_path, rules=AnyConfig()) as controller:
            await controller.catalog.forget_topics([offloaded, plain])
            await controller.catalog.forget_topics([offloaded])
        async with running(tmp_path, rules=AnyConfig()) as controller:
            assert set(controller.catalog.tombstones()) == {created.topic_id}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sizes", "log_bytes", "limits", "gone"),
    [
        ([10, 10], 1000, (0, 0), 0),
        ([10, 10, 10], 1000, (0, -1), 1),
        ([10, 10, 10, 10], 60, (-1, -1), 0),
        ([10, 10, 10, 10], 60, (100, -1), 0),
        ([10, 10, 10, 10], 60, (99, -1), 1),
        ([10, 10, 10, 10], 60, (89, -1), 2),
        ([10, 10, 10, 10], 60, (-1, 70), 0),
        ([10, 10, 10, 10], 60, (-1, 69), 1),
        ([10, 10, 10, 10], 60, (-1, 0), 2),
    ],
)
def test_metadata_retention_never_deletes_the_only_copy(
    sizes: list[int], log_bytes: int, limits: tuple[int, int], gone: int
) -> None:
    """Snapshots of times 30, 40, 50, 60; it is 100."""
    held = [StoredSnapshot(SnapshotId(i + 1, 1), size, 30 + 10 * i) for i, size in enumerate(sizes)]
    assert expendable(held, log_bytes, *limits, now_ms=100) == gone


@pytest.mark.parametrize(("retention_bytes", "kept"), [(0, 2), (1 << 30, 4)])
def test_snapshots_stay_as_long_as_the_retention_says(
    tmp_path: Path, retention_bytes: int, kept: int
) -> None:
    async def scenario() -> None:
        directory = tmp_path / CLUSTER_METADATA_DIR
        async with running(tmp_path, snapshot_max_bytes=3000, retention_bytes=retention_bytes) as controller:
            await fill(controller)
            await written_snapshots(controller, directory, 4)
        held = list_snapshots(SystemDisk(), directory)
        assert len(held) == 2 if kept == 2 else len(held) >= 4
        for one in held:
            head = (directory / one.file_name).read_bytes()[:4096]
            assert last_contained_ms(head) > 0
        async with running(tmp_path) as controller:
            assert controller.image.topics_by_name

    asyncio.run(scenario())
