"""A bucket that was rolled back or emptied."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import ManifestKey, manifest_key
from service.remote.format.manifest import Manifest
from service.remote.format.manifest_codec import decode_head, encode_head
from service.remote.stores.errors import OF_THE_STORE
from service.tiering.chain import ChainStore
from tests.property.tiering.failing import rounds
from tests.unit.tiering.world import GRACE_MS, World


def roll_back(world: World, old: dict[str, bytes]) -> None:
    """The bucket of the partition's data has what it had, and nothing since."""
    world.bucket.delete([key for key in world.stored_keys() if key.startswith("data/") and key not in old])
    for key, data in old.items():
        world.bucket.put(key, data)


def data_of(world: World) -> dict[str, bytes]:
    keys = [key for key in world.stored_keys() if key.startswith("data/")]
    return {key: world.bucket.get(key, max_size=1 << 20) for key in keys}


@pytest.mark.parametrize("segments_before", [0, 1, 3], ids="{} segments are left".format)
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "restarted"])
@pytest.mark.parametrize("gives_up", [True, False], ids=["tiering off and on", "DeleteRecords"])
def test_a_partition_whose_committed_manifest_is_gone_tiers_again_once_its_archive_is_given_up(
    tmp_path: Path, segments_before: int, is_running: bool, gives_up: bool
) -> None:
    world = World(tmp_path)
    [replica] = world.replicas
    world.fill(segments_before)
    world.run()
    old = data_of(world)
    world.fill(3)
    world.run()
    world.clock.advance(GRACE_MS)
    rounds(world, 1)
    roll_back(world, old)
    lost = world.entry(replica)
    if not is_running:
        world.reboot()
    rounds(world, 3)
    assert "the committed manifest is gone" in (world.manager.metrics.why(replica.tip) or "")
    if gives_up:
        world.switch(on=False)
        rounds(world, 3)
        assert world.entry(replica).is_given_up
        world.switch(on=True)
    else:
        replica.log.deletion.advance_log_start(lost.end_offset)
    world.fill(2)
    rounds(world, 3)
    assert world.lag(replica) == 0
    assert world.manager.metrics.why(replica.tip) is None
    assert world.entry(replica).version > lost.version
    assert world.head(replica).version == world.entry(replica).version
    world.clock.advance(GRACE_MS)
    rounds(world, 2)
    world.sweep()
    assert not set(old) - {f"data/{replica.tip.topic_id}/0/HEAD"} & world.stored_keys()
    world.check_at_rest()


def test_a_partition_goes_on_once_the_objects_that_were_gone_are_put_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    [replica] = world.replicas
    world.fill(1)
    world.run()
    old = data_of(world)
    world.fill(3)
    world.run()
    whole, lost = data_of(world), world.entry(replica)
    roll_back(world, old)
    world.reboot()
    world.fill(1)
    rounds(world, 3)
    assert world.entry(replica) == lost
    for key in whole.keys() - old.keys():
        world.bucket.put(key, whole[key])
    rounds(world, 1)
    assert world.lag(replica) == 0
    assert world.manager.metrics.why(replica.tip) is None
    assert world.head(replica).version == world.entry(replica).version > lost.version
    world.sweep()
    world.check_at_rest()


def test_brokers_go_on_once_the_head_that_a_repair_has_published_is_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    [replica] = world.replicas
    world.fill(1)
    world.run()
    old = data_of(world)
    world.fill(3)
    world.run()
    roll_back(world, old)
    key, version = f"data/{replica.tip.topic_id}/0/HEAD", world.entry(replica).version + 1
    published = manifest_key(ManifestKey(replica.tip.topic_id, 0, version, 0, uuid4()))
    head = decode_head(world.bucket.get(key, max_size=1 << 16))
    world.bucket.put(key, encode_head(head._replace(version=version, manifest_key=published)))
    world.reboot()
    rounds(world, 2)
    assert "the bucket is ahead" in (replica.problem or "")
    replica.log.deletion.advance_log_start(world.entry(replica).end_offset)
    rounds(world, 2)
    assert world.entry(replica).segments, "nothing is given up while HEAD says that somebody is ahead"
    world.bucket.delete([key])
    world.fill(2)
    rounds(world, 4)
    assert world.lag(replica) == 0
    assert world.manager.metrics.why(replica.tip) is None


def test_a_manifest_without_segments_that_is_gone_holds_up_no_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    [replica] = world.replicas
    world.fill(2)
    world.run()
    replica.log.deletion.advance_log_start(world.entry(replica).end_offset)
    rounds(world, 2)
    assert world.entry(replica).segments == 0
    roll_back(world, {})
    world.reboot()
    world.fill(2)
    rounds(world, 3)
    assert world.lag(replica) == 0
    assert world.manager.metrics.why(replica.tip) is None
    assert world.entry(replica).segments == 2


@pytest.mark.parametrize("error", OF_THE_STORE, ids=lambda one: one.__name__)
def test_a_manifest_is_not_given_up_where_the_store_answered_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StorageError]
) -> None:
    """Nothing is kept of it, but it can be read once the store serves us again."""
    world = World(tmp_path)
    [replica] = world.replicas
    world.fill(3)
    world.run()
    world.reboot()
    rounds(world, 1)
    before = world.entry(replica)
    given_up: list[str] = []
    read, stand_in = world.store.get, ChainStore.stand_in

    def get(key: str, *, max_size: int) -> bytes:
        if key == before.manifest_key:
            raise error("not now")
        return read(key, max_size=max_size)

    def give_up(chains: ChainStore, tip: TopicIdPartition, entry: CatalogEntry) -> Manifest:
        given_up.append(entry.manifest_key)
        return stand_in(chains, tip, entry)

    monkeypatch.setattr(ChainStore, "stand_in", give_up)
    world.reboot()
    replica = world.replicas[0]
    replica.log.deletion.advance_log_start(before.end_offset)
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "get", get)
        rounds(world, 2)
    assert world.entry(replica) == before
    rounds(world, 4)
    assert world.entry(replica).segments == 0
    assert not given_up
