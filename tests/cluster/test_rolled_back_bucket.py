"""The bucket of three nodes is put back to an older state: hot data is served, the log says what is gone, and
the partition tiers again once its archive is given up, on the nodes as they run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.conftest import BRISK
from tests.support.clients import Admin, Confluent
from tests.support.fsck import fsck
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store, folder_store
from tests.support.tiers import LATEST, LATEST_TIERED, offset, settle

TOPIC = "events"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return folder_store(tmp_path / "bucket")


@pytest.fixture
def cluster(tmp_path: Path, store: Store) -> Iterator[Cluster]:
    settings = {
        **BRISK,
        **store.node_settings,
        "firn.remote.object.grace.ms": "1000",
        "firn.cut.interval.ms": "-1",  # a cut that is kept for longer than the grace lacks what has gone
    }
    with Cluster(tmp_path / "nodes", settings=settings) as made:
        yield made.start()


def write(cluster: Cluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 20_000})
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%01000d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def read(cluster: Cluster, start: int, end: int) -> list[int]:
    rows = Confluent().read(cluster.bootstrap, TOPIC, 0, start, end)
    return [int(row.value or b"") for row in rows]


def delete_records(cluster: Cluster, border: int) -> None:
    admin = Admin(cluster.bootstrap)  # has to live until the answers are there
    for future in admin.client.delete_records([TopicPartition(TOPIC, 0, border)]).values():
        assert future.result(30).low_watermark == border


def switch_off_and_on(cluster: Cluster, border: int) -> None:
    admin = Admin(cluster.bootstrap)
    admin.alter(TOPIC, remote_log_delete_on_disable="true", remote_storage_enable="false")
    wait_until(
        "the archive to be given up",
        lambda: offset(cluster.bootstrap, TOPIC, 0, LATEST_TIERED) == -1 or border == 0,
    )
    admin.alter(TOPIC, remote_log_delete_on_disable="false", remote_storage_enable="true")


@pytest.mark.thorough
@pytest.mark.parametrize("give_up", [delete_records, switch_off_and_on], ids=lambda one: one.__name__)
def test_a_cluster_goes_on_without_the_archive_that_its_bucket_lost(
    cluster: Cluster, store: Store, tmp_path: Path, give_up: Callable[[Cluster, int], None]
) -> None:
    Admin(cluster.bootstrap).replicate(
        TOPIC, 1, 3, min_insync_replicas="2", remote_storage_enable="true",
        internal_segment_bytes="65536", local_retention_bytes="1",
    )  # fmt: skip
    wait_in_sync(cluster, TOPIC)
    write(cluster, 0, 500)
    settle(cluster.bootstrap, TOPIC, 0)
    bucket = Path(store.url.removeprefix("file://"))
    shutil.copytree(bucket, tmp_path / "old")
    write(cluster, 500, 500)
    border = settle(cluster.bootstrap, TOPIC, 0)
    cluster.stop()
    shutil.rmtree(bucket)
    shutil.copytree(tmp_path / "old", bucket)
    cluster.start()
    wait_in_sync(cluster, TOPIC)
    wait_until(
        "the log to say what is gone",
        lambda: any("the committed manifest is gone" in one.said() for one in cluster.members.values()),
        60,
    )
    write(cluster, 1000, 100)
    assert read(cluster, border, 1100) == list(range(border, 1100)), "what is hot is served"
    give_up(cluster, border)
    write(cluster, 1100, 500)
    wait_until(
        "what was hot to be archived",
        lambda: offset(cluster.bootstrap, TOPIC, 0, LATEST_TIERED) > 1100,
        60,
    )
    assert offset(cluster.bootstrap, TOPIC, 0, LATEST) == 1600
    assert read(cluster, border, 1600) == list(range(border, 1600))
    cluster.stop()
    (found,) = [one for one in fsck(store)["partitions"] if one["topic"] == TOPIC]
    assert found["start_offset"] == border
    assert found["end_offset"] > 1100
