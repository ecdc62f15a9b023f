"""All nodes are killed at once and one stays away: the others have everything, and serve it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, states, wait_in_sync

PARTITIONS = 4
TOPICS = {"one": "1", "two": "2"}
"""by how many have to be in sync"""
AWAY = 3
LOSS = "It registers as after a loss of power"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", settings=BRISK) as made:
        yield made.start()


def write(cluster: Cluster, topic: str, first: int, count: int = 400) -> None:
    """Numbers from `first` on, all acknowledged by all that are in sync."""
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 1, "enable.idempotence": True}
    )
    for number in range(first, first + count):
        producer.produce(
            topic, b"%08d" % number, partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )  # fmt: skip
    assert producer.flush(90) == 0
    assert not failed, failed[:3]


def read(cluster: Cluster, topic: str, end: int) -> None:
    """Numbers up to `end` are there, each once and in order."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        consumer.assign([TopicPartition(topic, one, 0) for one in range(PARTITIONS)])

        def all_read() -> bool:
            for one in consumer.consume(1000, 0.5):
                assert one.error() is None, one.error()
                found[one.partition()].append(int(one.value()))
            return sum(map(len, found)) >= end

        wait_until(f"{end} records of {topic}", all_read, 60)
    finally:
        consumer.close()
    assert found == [list(range(one, end, PARTITIONS)) for one in range(PARTITIONS)]


def test_nodes_that_return_after_a_total_kill_serve_all_records(cluster: Cluster) -> None:
    for topic, least in TOPICS.items():
        Admin(cluster.bootstrap).replicate(topic, PARTITIONS, 3, min_insync_replicas=least)
        wait_in_sync(cluster, topic)
        write(cluster, topic, 0)
    for member in cluster.members.values():
        assert member.process is not None
        member.process.kill()
    for member in cluster.members.values():
        member.kill()
    here = [one for one in cluster.members if one != AWAY]
    cluster.start(here)
    for topic in TOPICS:
        for node_id in here:

            def all_led(topic: str = topic, node_id: int = node_id) -> bool:
                found = states(cluster.members[node_id], topic).values()
                return len(found) == PARTITIONS and all(one.leader in here for one in found)

            wait_until(f"leaders of {topic}, as {node_id} knows them", all_led, 40)
        read(cluster, topic, 400)
        write(cluster, topic, 400)
    for node_id in here:
        assert LOSS not in cluster.members[node_id].said()
    cluster.start([AWAY])
    for topic in TOPICS:
        wait_in_sync(cluster, topic)
        read(cluster, topic, 800)
        check_equal(cluster, topic, range(PARTITIONS))


def test_a_backup_that_is_restored_without_a_reboot_is_no_clean_start(cluster: Cluster) -> None:
    """Taken while the node ran: it bears the same epoch, and lacks what was acknowledged since."""
    Admin(cluster.bootstrap).replicate("one", PARTITIONS, 3, min_insync_replicas="1")
    wait_in_sync(cluster, "one")
    write(cluster, "one", 0)
    victim = cluster.members[2]
    (data,) = victim.directories
    backup = data.with_name("backup")
    shutil.copytree(data, backup)
    write(cluster, "one", 400)
    victim.kill()
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    victim.start()
    assert LOSS in victim.said()
    wait_in_sync(cluster, "one")
    read(cluster, "one", 800)
    victim.kill()
    victim.start()
    assert LOSS not in victim.said(), "what it fetched since is there"
    wait_in_sync(cluster, "one")
    check_equal(cluster, "one", range(PARTITIONS))
