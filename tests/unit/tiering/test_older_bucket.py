"""A node continues a bucket of format version 1."""

from __future__ import annotations

from pathlib import Path

from service.inspect.fsck import fsck
from service.remote.format.manifest import ManifestLimits
from service.remote.format.manifest_codec import ClusterFile, decode_cluster
from service.remote.reading.object_reader import open_chain
from service.remote.stores.memory_store import MemoryStore
from service.tiering.archive_attempt import catalog_entry
from tests.support.older_format import older_key, version_1
from tests.unit.tiering.world import CLUSTER, World


def downgraded(world: World) -> MemoryStore:
    """The bucket and the catalog of `world` become those of version 1."""
    store = world.bucket
    assert isinstance(store, MemoryStore)
    objects = {info.key: store.get(info.key, max_size=1 << 30) for info in store.list("")}
    store.delete(list(objects))
    for key, data in version_1(objects).items():
        store.put(key, data)
    for partition, entry in world.catalog.entries.items():
        world.catalog.entries[partition] = catalog_entry(open_chain(store, older_key(entry.manifest_key)))
    return store


def test_a_chain_of_version_1_goes_on_in_version_2_and_loses_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, limits=ManifestLimits(entries=2, page_refs=2))
    world.fill(5)
    world.settle()
    store = downgraded(world)
    assert fsck(store).errors == []
    assert decode_cluster(store.get("cluster.json", max_size=1000)) == ClusterFile(CLUSTER)
    before = world.live_keys()
    world.reboot()
    world.fill(3)
    world.settle()
    world.check()
    report = fsck(store)
    assert (report.errors, report.segments) == ([], 8)
    manifest = world.manifest(world.replicas[0])
    assert manifest is not None
    assert manifest.stamp is not None
    pages = {key.rpartition(".")[2] for key in world.live_keys() if "/page/" in key}
    assert pages == {"gz", "zst"}, "pages of version 1 are named as they are"
    assert {key for key in before if key.endswith(".seg")} <= world.live_keys()
    cluster = decode_cluster(store.get("cluster.json", max_size=1000))
    assert cluster.stamp is not None, "taken over"


def test_objects_that_format_version_1_replaced_are_swept(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(3)
    world.settle()
    store = downgraded(world)
    world.reboot()
    world.fill(2)
    world.settle()
    world.sweep()
    assert not [info.key for info in store.list("") if info.key.endswith(".json.zst")]
    assert fsck(store).errors == []
