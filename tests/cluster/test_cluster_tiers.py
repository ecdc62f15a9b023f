"""Several brokers on one bucket: each copies what it leads, one keeps house, any archive is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.fsck import fsck
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.stores import Store, moto_server, new_bucket
from tests.support.tiers import EARLIEST_LOCAL, offset

PARTITIONS = 6
TIERED = {
    "remote_storage_enable": "true",
    "internal_segment_bytes": "65536",
    "local_retention_bytes": "1",
    "retention_ms": "-1",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with moto_server(tmp_path) as endpoint:
        yield new_bucket(endpoint, "several")


@pytest.fixture
def cluster(tmp_path: Path, store: Store) -> Iterator[Cluster]:
    settings = {**BRISK, **store.node_settings}
    with Cluster(tmp_path / "nodes", settings=settings, environ=store.env) as made:
        yield made.start()


def write(cluster: Cluster, first: int, count: int) -> None:
    """Records `first` and so on, one after the other over all partitions; returns once all are taken."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 20_000})
    for number in range(first, first + count):
        producer.produce(
            "events",
            f"{number:08}".encode() * 100,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: refused.append(error) if error is not None else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert refused == []


def read(cluster: Cluster, count: int) -> set[int]:
    """So many records from the start of all partitions, whoever leads them and wherever they are."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition("events", one, 0) for one in range(PARTITIONS)])
    found: list[int] = []

    def all_read() -> bool:
        messages = consumer.consume(1000, 0.5)
        found.extend(int(one.value()[:8]) for one in messages if one.error() is None)
        return len(found) >= count

    try:
        wait_until(f"{count} records to be read", all_read, 120)
    finally:
        consumer.close()
    assert len(found) == len(set(found)) == count
    return set(found)


def local_start(cluster: Cluster, admin: Admin, partition: int) -> int:
    leader = admin.client.list_topics("events", timeout=20).topics["events"].partitions[partition].leader
    return offset(cluster.members[leader].bootstrap, "events", partition, EARLIEST_LOCAL)


def settled(cluster: Cluster, admin: Admin) -> None:
    """Once each partition has let go of what is in the bucket."""

    def is_settled() -> bool:
        return all(local_start(cluster, admin, one) > 0 for one in range(PARTITIONS))

    wait_until("every partition to settle", is_settled, 120)


def test_brokers_share_a_bucket_and_survive_the_keepers_death(cluster: Cluster, store: Store) -> None:
    admin = Admin(cluster.bootstrap)
    admin.create("events", PARTITIONS, **TIERED)
    write(cluster, 0, 3000)
    settled(cluster, admin)
    assert read(cluster, 3000) == set(range(3000))
    cluster.members[1].kill()  # the lowest id, which keeps house
    Admin(cluster.members[2].bootstrap).create("later", PARTITIONS, **TIERED)
    topics = store.read("topics.json")
    wait_until("another one to write topics.json", lambda: store.read("topics.json") != topics, 60)
    cluster.members[1].start()
    write(cluster, 3000, 3000)
    assert read(cluster, 6000) == set(range(6000))
    cluster.stop()
    report = fsck(store)
    assert len(report["partitions"]) >= PARTITIONS
