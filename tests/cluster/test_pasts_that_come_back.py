"""Disks that come back from backups, new disks, cloned disks, against real nodes: the archive outlives all
of them,
and what it holds is taken over when, and only when, an operator says so."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin, Confluent, digest, make_rows
from tests.support.fsck import fsck
from tests.support.processes import Node, wait_until
from tests.support.stores import Store
from tests.support.tiers import LATEST, offset, settle
from tests.support.wire import RawConnection, init_producer_id, leader_epoch, produce

TIERED: dict[str, Any] = {
    "remote_storage_enable": "true",
    "segment_bytes": "1048576",
    "local_retention_bytes": "1",
}
GRACE_MS = 1_000
SETTINGS = {
    "firn.remote.object.grace.ms": str(GRACE_MS),
    "firn.cut.interval.ms": "-1",  # a cut that is kept for longer than the grace lacks what has gone
}
KAFKA_STORAGE_ERROR = 56


def segments(store: Store) -> set[str]:
    return {key for key in store.objects() if key.endswith(".seg")}


def says(node: Node, words: str) -> bool:
    return words in node.stderr_path.read_text(errors="replace")


def fill(node: Node, topic: str, count: int) -> None:
    Confluent().produce(node.bootstrap, topic, make_rows(count, 1))
    settle(node.bootstrap, topic, 0)


def let_sweeps_pass() -> None:
    """Long enough that whatever would be deleted is: the node sweeps every ten seconds, a grace of one
    apart.
    """
    time.sleep(22)


def refuses_records(node: Node, topic: str) -> bool:
    with RawConnection(node.bootstrap) as connection:
        return int(produce(connection, topic, 0, batch([b"x"])).error_code) == KAFKA_STORAGE_ERROR


@pytest.fixture
def archived(start_node: NodeFactory, disk_store: Store, tmp_path: Path) -> Node:
    """A node with an archive, a backup of its disk from half-way, and stopped."""
    node = start_node(disk_store, **SETTINGS)
    Admin(node.bootstrap).create("events", 1, **TIERED)
    fill(node, "events", 40_000)
    node.stop()
    shutil.copytree(node.data, tmp_path / "backup")
    node.start()
    fill(node, "events", 40_000)
    Admin(node.bootstrap).create("later", 1, **TIERED)
    fill(node, "later", 20_000)
    return node


@pytest.mark.thorough
def test_a_disk_from_a_backup_deletes_nothing_and_takes_over_what_it_is_told_to(
    archived: Node, disk_store: Store, tmp_path: Path
) -> None:
    node = archived
    end = offset(node.bootstrap, "events", 0, LATEST)
    node.stop()
    before = segments(disk_store)
    ended = fsck(disk_store)["partitions"]
    shutil.rmtree(node.data)
    shutil.copytree(tmp_path / "backup", node.data)
    node.start()
    wait_until("the node to say so", lambda: says(node, "the bucket is ahead of this node's metadata"))
    assert refuses_records(node, "events"), "archived offsets must not be handed out again"
    let_sweeps_pass()
    assert segments(disk_store) == before
    node.stop()
    assert segments(disk_store) == before
    node.settings["firn.remote.recover"] = "true"
    node.start()
    del node.settings["firn.remote.recover"]
    archived_end = max(one["end_offset"] for one in ended if one["topic"] == "events")
    wait_until("records to be taken", lambda: not refuses_records(node, "events"))
    assert archived_end < offset(node.bootstrap, "events", 0, LATEST) <= end + 1
    assert Admin(node.bootstrap).topics().keys() >= {"events", "later"}
    rows = Confluent().read(node.bootstrap, "events", 0, 0, archived_end)
    assert len(rows) == archived_end
    fill(node, "events", 20_000)
    let_sweeps_pass()
    node.restart()
    assert before <= segments(disk_store)
    fsck(disk_store)


@pytest.mark.thorough
def test_a_new_disk_under_the_old_cluster_id_deletes_nothing_and_takes_over_what_it_is_told_to(
    archived: Node, disk_store: Store
) -> None:
    node = archived
    expected = digest(Confluent().read(node.bootstrap, "later", 0, 0, settle(node.bootstrap, "later", 0)))
    node.stop()
    before = segments(disk_store)
    archived_end = {one["topic"]: one["end_offset"] for one in fsck(disk_store)["partitions"]}
    shutil.rmtree(node.data)
    node.settings["firn.cluster.id"] = fsck(disk_store)["cluster_id"]
    node.start()
    wait_until("the node to say so", lambda: says(node, "topics.json is not overwritten"))
    let_sweeps_pass()
    assert segments(disk_store) == before
    assert "later" in disk_store.read("topics.json").decode()
    node.stop()
    node.settings["firn.remote.recover"] = "true"
    node.start()
    del node.settings["firn.remote.recover"]
    assert Admin(node.bootstrap).topics().keys() >= {"events", "later"}
    assert Admin(node.bootstrap).configs("later")["local.retention.bytes"] == "1"
    wait_until("records to be taken", lambda: not refuses_records(node, "events"))
    assert offset(node.bootstrap, "events", 0, LATEST) == archived_end["events"] + 1
    found = Confluent().read(node.bootstrap, "later", 0, 0, archived_end["later"])
    assert digest(found) == expected
    fill(node, "events", 20_000)
    node.restart()
    let_sweeps_pass()
    assert before <= segments(disk_store)
    fsck(disk_store)


@pytest.mark.thorough
def test_one_of_two_nodes_from_a_disk_copy_continues(
    archived: Node, disk_store: Store, start_node: NodeFactory, tmp_path: Path
) -> None:
    node = archived
    node.stop()
    shutil.copytree(node.data, tmp_path / "node-1" / "data")
    before = segments(disk_store)
    node.start()
    clone = start_node(disk_store, **SETTINGS)
    wait_until("one to say that it stops", lambda: says(node, "two nodes on one prefix"), 60)
    Confluent().produce(node.bootstrap, "events", make_rows(40_000, 1))
    fill(clone, "events", 40_000)
    let_sweeps_pass()
    assert before < segments(disk_store), "the one that goes on has archived more, nothing is gone"
    assert not says(clone, "two nodes on one prefix")
    fsck(disk_store)
    archived_end = max(
        one["end_offset"] for one in fsck(disk_store)["partitions"] if one["topic"] == "events"
    )
    assert len(Confluent().read(clone.bootstrap, "events", 0, 0, archived_end)) == archived_end


def test_takeovers_hand_out_no_producer_id_and_no_epoch_twice(
    start_node: NodeFactory, disk_store: Store
) -> None:
    """What was given out since the last segment is in no segment: the metadata and a margin tell."""
    started_ms = 1000 * time.time()
    node = start_node(disk_store, **SETTINGS)
    Admin(node.bootstrap).create("events", 1, **TIERED)
    fill(node, "events", 40_000)
    ids, epochs = [init_producer_id(node.bootstrap)], [leader_epoch(node.bootstrap, "events", 0)]
    for _ in range(2):
        has_metadata = partial(has_metadata_of, disk_store, started_ms)
        wait_until("the metadata to be in the bucket", has_metadata, 60)
        node.kill()
        shutil.rmtree(node.data)
        node.settings["firn.cluster.id"] = fsck(disk_store)["cluster_id"]
        node.settings["firn.remote.recover"] = "true"
        started_ms = 1000 * time.time()
        node.start()
        wait_until("records to be taken", lambda: not refuses_records(node, "events"))
        ids.append(init_producer_id(node.bootstrap))
        epochs.append(leader_epoch(node.bootstrap, "events", 0))
    assert ids[0] + 1_000 < ids[1]
    assert ids[1] + 1_000 < ids[2]
    assert epochs[0] < epochs[1] < epochs[2]


def has_metadata_of(store: Store, started_ms: float) -> bool:
    """Whether `cluster.json` names a writer that started then, and a snapshot of its metadata."""
    cluster = json.loads(store.read("cluster.json"))
    return "metadata" in cluster and cluster["written_ms"] >= started_ms
