"""An older state of one side returns: an older image, a new disk, a clone, an older bucket."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from uuid import UUID

import pytest

from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import (
    HeadKey,
    MetadataKey,
    SegmentKey,
    head_key,
    metadata_key,
    segment_key,
)
from service.remote.format.manifest_codec import TopicsFileRow, decode_topics, encode_cluster, encode_topics
from service.remote.format.metadata_ref import MetadataRef
from service.remote.reading.object_reader import open_cluster, open_cluster_file, open_head, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.tiering.head_check import HeadVerdict, check_damaged_head, check_head
from service.tiering.metrics import TieringMetrics
from service.tiering.offload_pool import OffloadPool, Stalled
from service.tiering.recovery import read_archive
from service.tiering.store_clock import MAX_SKEW_MS
from service.tiering.tasks import Task
from tests.unit.tiering.world import CLUSTER, GRACE_MS, MemoryCatalog, World

MANY_SWEEPS = 4


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "disk", MemoryStore(SystemThreads()))


def archive(world: World) -> set[str]:
    """Everything that a deletion could take."""
    return {key for key in world.stored_keys() if key.startswith("data/")}


def be_swept(world: World) -> None:
    for _ in range(MANY_SWEEPS):
        world.run()
        world.sweep()
        world.clock.advance(world.settings.sweep_interval_ms)
    world.run()


def restored(world: World, catalog: MemoryCatalog, metadata_offset: int) -> None:
    """The node starts again with the metadata of before."""
    world.catalog.entries = dict(catalog.entries)
    world.metadata_offset = metadata_offset
    world.reboot()


def copy_of(world: World) -> MemoryCatalog:
    catalog = MemoryCatalog()
    catalog.entries = dict(world.catalog.entries)
    catalog.leader_epochs = dict(world.catalog.leader_epochs)
    return catalog


@pytest.mark.parametrize("segments_before", [0, 3])
def test_a_node_with_an_older_image_deletes_nothing_and_says_so(
    world: World, segments_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    [replica] = world.replicas
    world.fill(segments_before)
    world.run()
    backup = copy_of(world)
    world.metadata_offset = 9
    world.fill(4)
    world.run()
    world.run()
    before = archive(world)
    assert len(before) >= segments_before + 4
    restored(world, backup, 1)
    be_swept(world)
    assert archive(world) == before
    assert replica.problem is not None
    assert replica.tip in world.manager.metrics.stopped
    words = "ahead of this node's metadata" if segments_before else "metadata does not know"
    assert words in caplog.text


def test_a_lagging_image_stops_a_partition_until_it_has_caught_up(world: World) -> None:
    [replica] = world.replicas
    world.fill(2)
    world.run()
    world.view.stale = dict(world.catalog.entries)
    lagging = world.view.stale
    world.view.stale = {}
    world.fill(2)
    world.run()
    before = archive(world)
    world.view.stale = lagging
    world.reboot()
    be_swept(world)
    assert archive(world) >= before
    assert world.manager.metrics.stopped
    world.view.stale = {}
    world.fill(1)
    world.settle()
    assert not world.manager.metrics.stopped
    assert replica.problem is None
    world.sweep()
    world.check_at_rest()


def test_a_new_disk_under_the_same_cluster_id_deletes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.metadata_offset = 40
    world.fill(6)
    world.run()
    world.run()
    before, topics = archive(world), world.bucket.get("topics.json", max_size=1 << 20)
    world.catalog.entries.clear()
    world.catalog.leader_epochs.clear()
    world.topic_ids = {}
    world.replicas = []
    world.metadata_offset = 3
    world.reboot()
    be_swept(world)
    world.manager.maintenance.topics_changed()
    be_swept(world)
    assert archive(world) == before
    assert world.bucket.get("topics.json", max_size=1 << 20) == topics
    assert "topics.json is not overwritten" in caplog.text


def test_unknown_topics_are_reported_and_stay_in_topics_json(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(2)
    world.run()
    world.run()
    before = archive(world)
    # Metadata that is later by its number, and has never heard of the topic.
    world.catalog.entries.clear()
    world.topic_ids, world.replicas = {}, []
    world.metadata_offset = 1_000
    world.reboot()
    be_swept(world)
    assert archive(world) == before
    assert b"events" in world.bucket.get("topics.json", max_size=1 << 20)
    assert world.manager.metrics.unknown_topics == 1
    assert "they are not touched" in caplog.text


def test_the_displaced_one_of_two_clones_stops_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = World(tmp_path / "first", MemoryStore(SystemThreads()))
    first.fill(3)
    first.run()
    clone = World(tmp_path / "clone", first.bucket, copy_of(first), seed=2)
    clone.fill(3)
    clone.run()  # has nothing to copy, and takes the prefix over
    clone.fill(2)
    clone.run()
    first.fill(4)
    first.clock.advance(first.settings.fence_age_ms)
    before = archive(clone)
    be_swept(first)
    assert first.manager.metrics.displaced is not None
    assert "two nodes on one prefix" in caplog.text
    assert archive(first) == before, "T15: a displaced process has deleted"
    be_swept(clone)
    assert clone.manager.metrics.displaced is None
    clone.check_at_rest()


def test_a_commit_that_raced_a_clone_s_stops_at_head(tmp_path: Path) -> None:
    """Both go on from one HEAD at the same moment: one of them writes it, the other finds that out."""
    first = World(tmp_path / "first", MemoryStore(SystemThreads()))
    first.fill(1)
    first.run()
    clone = World(tmp_path / "clone", first.bucket, copy_of(first), seed=2)
    clone.fill(2)
    commit = clone.view.commit

    async def late(commits):  # type: ignore[no-untyped-def]
        first.fill(1)
        await first.manager.scheduler._archivers[next(iter(first.manager.scheduler._archivers))].run_once()
        return await commit(commits)

    clone.view.commit = late  # type: ignore[method-assign]
    clone.run()
    head = open_head(first.bucket, HeadKey(first.replicas[0].tip.topic_id, 0))
    named = first.entry(first.replicas[0])
    assert named is not None
    assert (head.version, head.manifest_key) == (2, named.manifest_key)
    assert clone.replicas[0].problem is not None
    before = archive(first)
    be_swept(clone)
    assert before <= archive(first)
    first.check()


def test_a_head_that_was_rolled_back_is_written_again(world: World) -> None:
    [replica] = world.replicas
    key = head_key(replica.tip.topic_id, 0)
    world.fill(1)
    world.run()
    old = world.bucket.get(key, max_size=1 << 16)
    world.fill(2)
    world.run()
    world.bucket.put(key, old)
    world.clock.advance(GRACE_MS)
    world.run()
    world.run()
    assert world.head(replica).version == world.entry(replica).version
    world.sweep()
    world.check_at_rest()


def test_an_emptied_bucket_gets_no_head_of_what_is_gone_and_local_bytes_stay(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    [replica] = world.replicas
    world.fill(3)
    world.run()
    world.bucket.delete([key for key in world.stored_keys() if key.startswith("data/")])
    world.clock.advance(GRACE_MS)
    for _ in range(3):
        world.run()
        world.clock.advance(world.settings.backoff_max_ms)
    assert world.head(replica) is None
    assert replica.problem is not None
    assert "the committed manifest is gone" in caplog.text


def test_a_damaged_head_is_written_again_when_nothing_is_newer(world: World) -> None:
    [replica] = world.replicas
    world.fill(2)
    world.run()
    world.bucket.put(head_key(replica.tip.topic_id, 0), b'{"format": "firn-head"')
    world.clock.advance(GRACE_MS)
    world.run()
    world.run()
    world.sweep()
    world.check_at_rest()


def test_one_manifest_that_cannot_be_read_stops_the_sweep_of_its_partition_alone(tmp_path: Path) -> None:
    world = World(tmp_path, MemoryStore(SystemThreads()), partitions=3)
    world.fill(2)
    world.run()
    orphans = [
        segment_key(SegmentKey(one.tip.topic_id, one.tip.partition, 0, 9, 0, UUID(int=1)))
        for one in world.replicas
    ]
    for key in orphans:
        world.bucket.put(key, b"?")
    broken = world.entry(world.replicas[1])
    assert broken is not None
    world.bucket.put(broken.manifest_key, b"not a manifest")
    world.reboot()
    world.run()
    world.sweep()
    left = set(orphans) & world.stored_keys()
    assert left == {orphans[1]}
    assert world.manager.metrics.task_errors[Task.SWEEP] >= 1


def test_a_damaged_topics_json_is_written_again_and_holds_up_nothing(world: World) -> None:
    world.fill(1)
    world.run()
    world.run()
    world.bucket.put("topics.json", b"{")
    world.reboot()
    world.fill(2)
    be_swept(world)
    assert [row.name for row in open_topics(world.bucket).topics] == ["events"]
    assert world.lag(world.replicas[0]) == 0


def test_a_damaged_topics_json_is_left_by_one_whose_metadata_is_older(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(1)
    world.run()
    world.run()
    cluster = open_cluster_file(world.bucket)
    ref = MetadataRef(metadata_key(MetadataKey(40, 1, UUID(int=3))), 40, 1, 10, 7)
    world.bucket.put("cluster.json", encode_cluster(cluster._replace(metadata=ref)))
    world.bucket.put("topics.json", b"{")
    world.reboot()
    world.run()
    assert world.bucket.get("topics.json", max_size=10) == b"{"
    assert "cluster.json names metadata up to offset 40, this node's ends at 1" in caplog.text


def test_a_topic_that_the_metadata_lacks_stays_listed_and_freezes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(1)
    world.run()
    world.run()
    listed = open_topics(world.bucket)
    stranger = TopicsFileRow("orders", UUID(int=77), 2, {"retention.ms": "-1"})
    world.bucket.put("topics.json", encode_topics(CLUSTER, 1, [*listed.topics, stranger]))
    world.bucket.put(head_key(stranger.topic_id, 0), b"of somebody")
    world.reboot()
    world.run()
    tip = TopicIdPartition(UUID(int=8), "newest", 0)
    world.add(tip)
    world.metadata_offset += 1
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    listed = open_topics(world.bucket)
    assert [row.name for row in listed.topics] == ["events", "newest"]
    assert listed.foreign == (stranger,)
    assert "that this node's metadata lacks: orders" in caplog.text
    assert world.manager.metrics.topics_file is not None
    world.bucket.delete([head_key(stranger.topic_id, 0)])
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    assert open_topics(world.bucket).foreign == ()
    assert world.manager.metrics.topics_file is None


@pytest.mark.parametrize("how", ["damaged", "old", "gone"])
def test_a_topics_json_that_is_not_the_one_written_is_written_again_by_itself(world: World, how: str) -> None:
    world.fill(1)
    world.run()
    world.run()
    before = world.bucket.get("topics.json", max_size=1 << 20)
    if how == "gone":
        world.bucket.delete(["topics.json"])
    else:
        data = b"{" if how == "damaged" else encode_topics(CLUSTER, 0, [])
        world.bucket.put("topics.json", data)
    world.clock.advance(world.settings.heads_interval_ms)
    world.run()
    world.run()
    assert open_topics(world.bucket).topics == decode_topics(before).topics


@pytest.mark.parametrize("jump_ms", [10 * 365 * 86_400_000, -10 * 365 * 86_400_000])
def test_a_clock_that_jumps_lets_nothing_expire(tmp_path: Path, jump_ms: int) -> None:
    bucket = MemoryStore(SystemThreads())
    world = World(tmp_path, bucket, retention_ms=7 * 86_400_000)
    bucket._clock = _Beside(world)  # type: ignore[assignment]
    world.fill(3)
    world.run()
    before = len(world.live(world.replicas[0]))
    assert before == 3
    world.clock.advance(jump_ms)
    bucket._clock.jumped_ms = jump_ms
    for _ in range(3):
        world.clock.advance(world.settings.backoff_max_ms)
        world.run()
    assert len(world.live(world.replicas[0])) == before, "T14: a wrong clock let segments expire"
    if jump_ms > 0:
        assert world.manager.metrics.clock_skew_ms > MAX_SKEW_MS
    # The store agrees: time has really passed.
    bucket._clock.jumped_ms = 0
    world.clock.advance(120_000)
    world.run()
    assert len(world.live(world.replicas[0])) == (0 if jump_ms > 0 else before)


class _Beside:
    """The store's own clock: it does not jump when the node's does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jumped_ms = 0

    def now_ms(self) -> int:
        return self._world.clock.now_ms() - self.jumped_ms


def test_metadata_that_took_over_the_archive_goes_on_from_it(world: World) -> None:
    [replica] = world.replicas
    world.metadata_offset = 500
    world.fill(4)
    world.run()
    world.run()
    head = world.entry(replica)
    world.catalog.entries.clear()
    world.metadata_offset = 20
    world.reboot()
    be_swept(world)
    archived = read_archive(world.bucket, CLUSTER, {}, ()).partitions[replica.tip.topic_id, 0]
    assert archived.entry == head
    assert (archived.topic, archived.leader_epoch) == ("events", 0)
    world.catalog.entries[replica.tip.topic_id, 0] = archived.entry
    world.life = 1
    world.reboot()
    world.fill(2)
    world.settle()
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    listed = open_topics(world.bucket)
    assert (listed.life, listed.metadata_offset) == (1, 20)
    world.reboot()
    world.fill(1)
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_a_call_that_was_given_up_in_the_queue_is_never_made() -> None:
    done: list[str] = []

    async def scenario() -> None:
        pool = OffloadPool(SystemThreads(), 1, 50, TieringMetrics())
        go_on = threading.Event()
        hanging = [asyncio.create_task(pool.run(go_on.wait, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Stalled):
            await pool.run(done.append, "delete")
        go_on.set()
        await asyncio.wait(hanging)
        assert await pool.run(lambda: "later") == "later"
        await pool.close(1000)

    asyncio.run(scenario())
    assert not done


def test_only_metadata_that_is_not_behind_head_may_continue() -> None:
    ours = CatalogEntry(3, "m3", 0, 0, 9, 1, 10)
    assert check_damaged_head(ours, 3) is HeadVerdict.OURS_NEWER
    assert check_damaged_head(ours, 4) is HeadVerdict.UNREADABLE
    assert check_damaged_head(None, 0) is HeadVerdict.UNREADABLE
    assert check_head(ours, None) is HeadVerdict.OURS_NEWER


def test_the_prefix_names_its_writer_and_keeps_its_cluster(world: World) -> None:
    world.run()
    assert open_cluster(world.bucket) == "cluster-of-the-tests-1"
