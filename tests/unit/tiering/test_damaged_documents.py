"""`cluster.json` and `topics.json` change under a running node: its own are restored, others' are left."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.remote.format.keys import MetadataKey, head_key, metadata_key
from service.remote.format.manifest_codec import ClusterFile, TopicsFileRow, encode_cluster, encode_topics
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import open_cluster_file, open_topics
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.proven_uploads import ProvenUploads
from service.remote.stores.store import Tagged
from service.tiering.prefix_fence import OwnWrites, claim_prefix, read_cluster, take_over, update_cluster
from tests.unit.tiering.test_damaged_uploads import FlippingOnce
from tests.unit.tiering.world import CLUSTER, World

ONE, OTHER = Writer(1, UUID(int=1 << 100)), Writer(1, UUID(int=(1 << 128) - 1))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "disk", MemoryStore(SystemThreads()))
    world.fill(1)
    world.settle()
    return world


def flip(world: World, key: str, at: int) -> bytes:
    data = bytearray(world.bucket.get(key, max_size=1 << 20))
    data[at % len(data)] ^= 1
    world.bucket.put(key, bytes(data))
    return bytes(data)


@pytest.mark.parametrize("at", [0, 20, 100, -1])
def test_a_cluster_json_damaged_at_rest_is_written_again_by_the_process_that_wrote_it(
    world: World, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_cluster_file(world.bucket)
    flip(world, "cluster.json", at)
    world.fill(2)
    world.clock.advance(world.settings.fence_age_ms)
    world.settle()
    assert open_cluster_file(world.bucket) == before
    assert "this process wrote it, and a few bytes have changed since" in caplog.text
    assert world.lag(world.replicas[0]) == 0


def test_a_damaged_cluster_json_of_another_process_is_named_and_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    take_over(world.bucket, CLUSTER, Stamp(1, OTHER), OwnWrites())
    damaged = flip(world, "cluster.json", 100)
    before = world.stored_keys()
    world.fill(2)
    world.clock.advance(world.settings.fence_age_ms)
    world.run()
    assert world.bucket.get("cluster.json", max_size=1 << 20) == damaged
    assert "it does not say whose prefix this is and who writes (firn repair)" in caplog.text
    assert world.stored_keys() == before, "whoever wrote it may be the writer by now"


def test_a_start_with_a_damaged_cluster_json_says_what_to_do(world: World) -> None:
    damaged = flip(world, "cluster.json", 30)
    with pytest.raises(CorruptionError, match=r"cluster\.json: .*\(firn repair\)"):
        claim_prefix(world.bucket, CLUSTER)
    assert world.bucket.get("cluster.json", max_size=1 << 20) == damaged


def test_damage_by_another_writer_is_not_repaired_as_our_own() -> None:
    store = MemoryStore(SystemThreads())
    own = OwnWrites()
    for at in range(6):
        take_over(store, CLUSTER, Stamp(at, ONE), own)
    others = encode_cluster(ClusterFile(CLUSTER, Stamp(5, OTHER)))
    damaged = others.replace(b"firn-cluster", b"firm-cluster")
    store.put("cluster.json", damaged)
    with pytest.raises(CorruptionError):
        update_cluster(store, CLUSTER, lambda old: old, own)
    assert store.get("cluster.json", max_size=1000) == damaged
    store.put("cluster.json", encode_cluster(ClusterFile(CLUSTER, Stamp(5, ONE))).replace(b"5,", b"4,"))
    update_cluster(store, CLUSTER, lambda old: old, own)
    assert read_cluster(store).stamp == Stamp(5, ONE)


def test_a_cluster_json_damaged_on_its_way_is_sent_again(tmp_path: Path) -> None:
    store = FlippingOnce("-")
    world = World(tmp_path, ProvenUploads(store, lambda: False))
    store.ending = "cluster.json"
    world.fill(2)
    world.settle()
    assert store.damaged == ["cluster.json"]
    assert open_cluster_file(store).stamp is not None
    assert world.lag(world.replicas[0]) == 0


def test_a_topics_json_that_this_process_wrote_is_written_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    flip(world, "topics.json", 60)
    world.metadata_offset += 1
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    assert open_topics(world.bucket).metadata_offset == world.metadata_offset
    assert "topics.json is damaged" in caplog.text


def test_topics_that_changed_while_cluster_json_was_damaged_are_written_once_it_is_repaired(
    world: World,
) -> None:
    sound = world.bucket.get("cluster.json", max_size=1 << 20)
    world.bucket.put("cluster.json", sound[: len(sound) // 2])
    world.metadata_offset += 1
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.fence_age_ms)
    world.run()
    assert open_topics(world.bucket).metadata_offset < world.metadata_offset
    world.bucket.put("cluster.json", sound)
    world.clock.advance(world.settings.backoff_max_ms)
    world.run()
    assert open_topics(world.bucket).metadata_offset == world.metadata_offset


def test_one_that_was_damaged_before_the_start_is_written_again(world: World) -> None:
    flip(world, "topics.json", 60)
    world.reboot()
    world.fill(1)
    world.settle()
    assert [row.name for row in open_topics(world.bucket).topics] == ["events"]


def test_a_damaged_one_is_left_by_a_node_whose_metadata_is_older_than_the_bucket_s(world: World) -> None:
    end = world.metadata_offset + 100
    later = MetadataRef(metadata_key(MetadataKey(end, 9, UUID(int=9))), end, 9, 1, 0)
    update_cluster(world.bucket, CLUSTER, lambda one: one._replace(metadata=later), OwnWrites())
    damaged = flip(world, "topics.json", 60)
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    assert world.bucket.get("topics.json", max_size=1 << 20) == damaged, "it may list topics that we lack"
    told = world.manager.metrics.topics_file
    assert told is not None
    assert "cluster.json names metadata up to offset" in told


class FlippedOnItsWay(MemoryStore):
    """The next readings of one object come with a bit changed, each time another one."""

    def __init__(self) -> None:
        super().__init__(SystemThreads())
        self.flips = 0

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        found = super().get_tagged(key, max_size=max_size)
        if key != "topics.json" or not self.flips:
            return found
        self.flips -= 1
        data = bytearray(found.data)
        data[60 + self.flips] ^= 1
        return found._replace(data=bytes(data))


@pytest.mark.parametrize("flips", [1, 2, 3])
def test_one_that_changes_on_its_way_loses_nothing_that_it_alone_lists(tmp_path: Path, flips: int) -> None:
    bucket = FlippedOnItsWay()
    world = World(tmp_path / "disk", bucket)
    world.fill(1)
    world.settle()
    stranger = TopicsFileRow("orders", UUID(int=77), 2, {"retention.ms": "-1"})
    bucket.put("topics.json", encode_topics(CLUSTER, 1, [*open_topics(bucket).topics, stranger]))
    bucket.put(head_key(stranger.topic_id, 0), b"of somebody")
    world.metadata_offset += 1
    world.manager.maintenance.topics_changed()
    bucket.flips = flips
    for _ in range(4):
        world.clock.advance(10 * world.settings.topics_debounce_ms)
        world.run()
    assert bucket.flips == 0
    assert open_topics(bucket).metadata_offset == world.metadata_offset
    assert open_topics(bucket).foreign == (stranger,)


def test_a_first_claim_that_is_damaged_on_its_way_is_made_again_by_its_cluster_alone() -> None:
    store = FlippingOnce("cluster.json")
    proven = ProvenUploads(store, lambda: False)
    with pytest.raises(StoreUnavailable, match="other bytes than those sent"):
        claim_prefix(proven, CLUSTER)
    with pytest.raises(CorruptionError, match="firn repair"):
        claim_prefix(proven, CLUSTER[:-6] + "others")
    claim_prefix(proven, CLUSTER)
    assert read_cluster(store) == ClusterFile(CLUSTER)


def test_topics_json_is_written_even_if_topics_change_all_the_time(world: World) -> None:
    """Each change puts the writing off by a second, and all of them together by ten at the most."""
    before = open_topics(world.bucket).metadata_offset
    for _ in range(24):
        world.metadata_offset += 1
        world.manager.maintenance.topics_changed()
        world.clock.advance(500)
        world.run()
    assert open_topics(world.bucket).metadata_offset > before + 15
