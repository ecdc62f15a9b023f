"""A lost disk and the bucket alone, against real nodes: what the cluster kept it keeps after a recovery."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NodeFactory
from tests.support.clients import Admin, Confluent, make_rows
from tests.support.fsck import fsck
from tests.support.processes import Node, wait_until
from tests.support.stores import Store
from tests.support.tiers import EARLIEST, LATEST_TIERED, offset, settle
from tests.support.wire import RawConnection, schema

TIERED = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}
DAY_MS = 86_400_000
SETTINGS = {
    "firn.remote.object.grace.ms": "1000",
    "firn.cut.interval.ms": "-1",  # a cut that is kept for longer than the grace lacks what has gone
}


def old_rows(count: int) -> list[Any]:
    before_ms = int(time.time() * 1000) - 400 * DAY_MS
    return [row._replace(timestamp=before_ms + at) for at, row in enumerate(make_rows(count, 1))]


def keep_for_ever_by_default(bootstrap: str) -> None:
    module = schema(44, 1)
    config = module.AlterableConfig(name="log.retention.ms", config_operation=0, value="-1")
    resource = module.AlterConfigsResource(resource_type=4, resource_name="", configs=(config,))
    request = module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    with RawConnection(bootstrap) as connection:
        [answer] = connection.call(request).responses
    assert answer.error_code == 0, answer


def metadata_offset(store: Store) -> int:
    named = json.loads(store.read("cluster.json")).get("metadata")
    return -1 if named is None else int(named["end_offset"])


def archived(node: Node, store: Store) -> dict[str, int]:
    """Two topics with records of 400 days ago, kept by a setting of their own and by the cluster's default;
    how much of each is in the bucket once its metadata is there, too."""
    keep_for_ever_by_default(node.bootstrap)
    Admin(node.bootstrap).create("own", 1, **TIERED, retention_ms="-1")
    Admin(node.bootstrap).create("by-default", 1, **TIERED)
    for topic in ("own", "by-default"):
        Confluent().produce(node.bootstrap, topic, old_rows(20_000))
        settle(node.bootstrap, topic, 0)
    # The copy of the metadata is written at once after a start.
    before = metadata_offset(store)
    node.restart()
    wait_until("the metadata to be copied", lambda: metadata_offset(store) > before, 30)
    ends = {topic: offset(node.bootstrap, topic, 0, LATEST_TIERED) + 1 for topic in ("own", "by-default")}
    node.stop()
    return ends


def lose_the_disk(node: Node, store: Store) -> None:
    shutil.rmtree(node.data)
    node.settings["firn.cluster.id"] = fsck(store)["cluster_id"]


def retention_has_run(node: Node) -> None:
    """A topic beside the others whose records go by retention alone shows that it was really looked at."""
    Admin(node.bootstrap).create("goes", 1, **{**TIERED, "retention_ms": "1000"})
    Confluent().produce(node.bootstrap, "goes", old_rows(4_000))
    wait_until("retention to have run", lambda: offset(node.bootstrap, "goes", 0, EARLIEST) > 0, 60)


def reads_all_back(node: Node, ends: dict[str, int]) -> None:
    for topic, end in ends.items():
        assert offset(node.bootstrap, topic, 0, EARLIEST) == 0
        rows = Confluent().read(node.bootstrap, topic, 0, 0, end)
        assert [(row.key, row.value) for row in rows] == [
            (row.key, row.value) for row in make_rows(20_000, 1)[:end]
        ]


@pytest.mark.thorough
def test_a_recovery_keeps_retention_settings(start_node: NodeFactory, disk_store: Store) -> None:
    node = start_node(disk_store, **SETTINGS)
    ends = archived(node, disk_store)
    lose_the_disk(node, disk_store)
    listed = Path(disk_store.url.removeprefix("file://")) / "topics.json"
    data = bytearray(listed.read_bytes())
    data[len(data) // 2] ^= 1
    listed.write_bytes(data)
    node.settings["firn.remote.recover"] = "true"
    node.start()
    del node.settings["firn.remote.recover"]
    retention_has_run(node)
    reads_all_back(node, ends)
    node.restart()

    reads_all_back(node, ends)
    fsck(disk_store)
    configs = Admin(node.bootstrap).configs("own")
    assert configs["retention.ms"] == "-1"
    assert configs["remote.storage.enable"] == "true"
