"""A take-over over real stores: a HEAD of the lost cluster that arrives late finds another tag."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.inspect.restore_source import CutChoice
from service.inspect.take_over import TakeOverOrder, take_over
from service.remote.reading.object_reader import open_cluster_file
from service.remote.stores.errors import PreconditionFailed
from service.remote.stores.obstore_store import open_store
from service.remote.stores.store import ObjectStore
from tests.support.stores import ACCESS, SECRET, s3_client
from tests.support.world import WORLD, make_world
from tests.unit.inspect.cuts import TIERED, Cutting, internal_log
from tests.unit.tiering.world import World

STORES = ["folder", "moto", pytest.param("versitygw", marks=pytest.mark.versitygw)]
HEIR = "heir-of-the-tests-0001"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store((tmp_path / "bucket").as_uri(), world=WORLD)
    endpoint = request.getfixturevalue(f"{request.param}_contract_endpoint")
    name = f"firn-{uuid.uuid4()}"
    s3_client(endpoint).create_bucket(Bucket=name)
    return open_store(
        f"s3://{name}/lost",
        world=WORLD,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=ACCESS,
        secret_access_key=SECRET,
    )


def test_a_late_head_is_refused_after_a_take_over(store: ObjectStore, tmp_path: Path) -> None:
    world = World(tmp_path / "disk", store, partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(1)
    world.run()
    world.run()
    Cutting(world, internal=internal_log()).cut({one: one.log.log_end_offset for one in world.replicas})
    keys = [info.key for info in store.list("") if info.key.endswith(("/HEAD", "CUT", "cluster.json"))]
    before = {key: store.get_tagged(key, max_size=1 << 16) for key in keys}
    assert len(before) == 4
    order = TakeOverOrder(CutChoice(), HEIR, gap=5, quiet_ms=0)
    with ThreadPoolExecutor(4) as pool:
        take_over(store, order, make_world(world.clock), pool, lambda words: None, lambda *_: None)
    for key, seen in before.items():
        with pytest.raises(PreconditionFailed):
            store.put_if_match(key, seen.data, seen.tag)
    assert open_cluster_file(store).cluster_id == HEIR
