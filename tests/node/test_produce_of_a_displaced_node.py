"""A node whose cluster was restored elsewhere, into a cluster that has its bucket now."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.remote.format.ancestors import Ancestor
from service.remote.format.manifest_codec import encode_cluster
from service.remote.stores.obstore_store import StoreOptions, open_store
from service.remote.stores.store import ObjectStore
from service.tiering.prefix_fence import read_cluster
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until


def take_over(store: ObjectStore, heir: str) -> None:
    cluster = read_cluster(store)
    ancestors = (Ancestor(cluster.cluster_id, 1, 5),)
    store.put("cluster.json", encode_cluster(cluster._replace(cluster_id=heir, ancestors=ancestors)))


@pytest.mark.parametrize("is_refused", [True, False])
def test_producers_of_a_source_are_refused_once_it_finds_its_heir(tmp_path: Path, is_refused: bool) -> None:
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path}/bucket"
    store = open_store(url, world=system_world(), options=StoreOptions())
    node = NodeThread(
        tmp_path / "data",
        firn_remote_url=url,
        firn_cut_interval_ms="1000",
        firn_displaced_produce="refuse" if is_refused else "allow",
    ).start()
    try:
        with node.client() as client:
            talk = Talk(client)
            talk.create("t")
            topic_id = talk.topic_id("t")
            assert talk.produce(topic_id, [b"one"], 1).error_code == ErrorCode.none
            wait_until("a cut", lambda: any(True for _ in store.list("cut")))
            take_over(store, "the-heir")
            broker = node.node.parts.broker
            assert broker is not None

            def is_found() -> bool:
                answer = talk.produce(topic_id, [b"more"], 1)
                return broker.heir == "the-heir" and (answer.error_code != ErrorCode.none) is is_refused

            wait_until("it finds its heir", is_found)
            if is_refused:
                answer = talk.produce(topic_id, [b"more"], 1)
                assert answer.error_code == ErrorCode.kafka_storage_error
                assert "the-heir" in answer.error_message
    finally:
        node.stop()
