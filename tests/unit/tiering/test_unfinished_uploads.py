"""Unfinished multipart uploads: the sweeper aborts dead ones only."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.base.errors import StorageError
from service.remote.catalog import Tombstone
from service.remote.format.keys import ManifestKey, SegmentKey, manifest_key, segment_key
from service.tiering.ports import ChooseUploads
from service.tiering.tasks import Task
from tests.unit.tiering.world import GRACE_MS, Fault, World


class Bucket:
    """The unfinished uploads of a bucket: key -> age."""

    def __init__(self) -> None:
        self.ages_ms: dict[str, int] = {}
        self.fails = False
        self.asked = 0

    async def __call__(self, older_than_ms: int, choose: ChooseUploads) -> int:
        self.asked += 1
        if self.fails:
            raise StorageError("not allowed to list uploads")
        dead = await choose([key for key, age_ms in self.ages_ms.items() if age_ms >= older_than_ms])
        for key in dead:
            del self.ages_ms[key]
        return len(dead)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def world(tmp_path: Path, bucket: Bucket) -> World:
    world = World(tmp_path)
    world.abandoned_uploads = bucket
    world.reboot()
    return world


def key_of(topic: UUID, partition: int, epoch: int) -> str:
    return segment_key(SegmentKey(topic, partition, 0, 9, epoch, uuid4()))


def test_uploads_are_judged_as_orphans_are_and_go_when_they_are_old(world: World, bucket: Bucket) -> None:
    world.fill(1)
    world.run()
    events = world.topic_ids["events"]
    deleted = uuid4()
    world.catalog.buried[deleted] = Tombstone(deleted, "gone", 1, world.clock.now_ms())
    dead = {key_of(events, 0, 0), key_of(deleted, 0, 7)}
    left = {
        key_of(uuid4(), 0, 7),  # of a topic that nobody knows
        key_of(events, 0, 7),  # of a later leader
        key_of(events, 5, 0),  # of a partition that another node leads
        manifest_key(ManifestKey(events, 0, 3, 0, uuid4())),  # never uploaded in parts: not ours
    }
    bucket.ages_ms = dict.fromkeys(dead | left, GRACE_MS - 1)
    world.do(world.manager.sweep())
    assert bucket.ages_ms.keys() == dead | left
    bucket.ages_ms = dict.fromkeys(dead | left, GRACE_MS)
    world.do(world.manager.sweep())
    assert bucket.ages_ms.keys() == left
    assert world.manager.metrics.uploads_aborted == 2


def test_an_upload_that_runs_is_left_alone_however_old_it_is(world: World, bucket: Bucket) -> None:
    uploading, go_on = threading.Event(), threading.Event()

    def decide(operation: str, key: str) -> Fault:
        if operation == "put_stream":
            bucket.ages_ms[key] = 100 * GRACE_MS
            uploading.set()
            go_on.wait(20)
        return Fault.PASS

    async def scenario() -> int:
        work = asyncio.create_task(world.manager.run_once())
        await asyncio.to_thread(uploading.wait, 20)
        await world.manager.sweep()
        left = len(bucket.ages_ms)
        go_on.set()
        await work
        return left

    world.store.decide = decide
    world.fill(1)
    assert world.do(scenario()) == 1
    # Once the upload has ended, however it did, the store may say what it will: the object is whole.
    world.do(world.manager.sweep())
    assert bucket.ages_ms == {}
    world.check_at_rest()


def test_a_sweep_goes_on_if_the_store_refuses_to_list_uploads(world: World, bucket: Bucket) -> None:
    world.run()
    orphan = key_of(world.topic_ids["events"], 0, 0)
    world.bucket.put(orphan, b"?")
    bucket.fails = True
    world.sweep()
    assert orphan not in world.stored_keys()
    metrics = world.manager.metrics
    assert metrics.task_errors == {Task.ABORT_UPLOADS: 2}
    assert metrics.uploads_aborted == 0
    bucket.fails = False
    bucket.ages_ms = {orphan: GRACE_MS}
    world.sweep()
    assert metrics.task_errors == {Task.ABORT_UPLOADS: 2}
    assert (metrics.uploads_aborted, bucket.asked) == (1, 4)
