"""Partitions of several replicas on real nodes: committed records survive the death of any node."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, states, wait_in_sync

PARTITIONS = 3
GO_AWAY = (KafkaError.KAFKA_STORAGE_ERROR, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._TIMED_OUT)
"""what a leader that is to be replaced answers, and one that is new"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", settings=BRISK) as made:
        yield made.start()


class Numbers:
    """Writes numbered records with acks=all, and knows which were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._next = 0
        self.acked: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.refused: list[object] = []
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 1})

    def write(self, count: int) -> None:
        """Returns once all are acknowledged, or given up."""
        for _ in range(count):
            number, self._next = self._next, self._next + 1

            def told(error: object, message: object, number: int = number) -> None:
                if error is not None:
                    self.refused.append(error)
                else:
                    self.acked[number % PARTITIONS].add(number)

            self._producer.produce(
                self._topic, b"%08d" % number, partition=number % PARTITIONS, on_delivery=told
            )
            self._producer.poll(0)
        assert self._producer.flush(120) == 0


def read_all(cluster: Cluster, topic: str) -> list[list[int]]:
    """Everything up to the high watermarks, by partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30)[1]
            for one in range(PARTITIONS)
        ]
        consumer.assign([TopicPartition(topic, one, 0) for one in range(PARTITIONS)])

        def all_read() -> bool:
            for one in consumer.consume(1000, 0.5):
                assert one.error() is None, one.error()
                found[one.partition()].append(int(one.value()))
            return [len(one) for one in found] >= ends

        wait_until(f"{ends} to be read", all_read, 120)
    finally:
        consumer.close()
    return found


def create(cluster: Cluster, topic: str, **config: str) -> None:
    admin = Admin(cluster.bootstrap)
    admin.replicate(topic, PARTITIONS, 3, min_insync_replicas="2", **config)
    wait_in_sync(cluster, topic)


def test_committed_records_survive_the_death_of_leaders(cluster: Cluster) -> None:
    create(cluster, "events")
    numbers = Numbers(cluster, "events")
    numbers.write(300)
    for how in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        alive = next(one for one in cluster.members.values() if one.is_running)
        victim = cluster.members[states(alive, "events")[0].leader]
        if how is signal.SIGKILL:
            victim.kill()
        else:
            victim.leave()
        numbers.write(300)
        victim.start()
        wait_in_sync(cluster, "events")
        numbers.write(300)
    assert numbers.refused == []
    found = read_all(cluster, "events")
    assert [set(one) for one in found] == numbers.acked
    cluster.stop()
    assert min(check_equal(cluster, "events", range(PARTITIONS)).values()) > 0


def test_a_damaged_leader_is_replaced_and_rebuilt_from_followers(
    cluster: Cluster,
) -> None:
    create(cluster, "events")
    numbers = Numbers(cluster, "events")
    numbers.write(300)
    first = cluster.members[1]
    victim = cluster.members[states(first, "events")[0].leader]
    other = next(one for one in cluster.members.values() if one is not victim)
    directory = victim.replica("events", 0)
    assert directory is not None
    with (directory / f"{0:020}.log").open("r+b") as file:
        file.seek(16)
        file.write(b"\x09")  # the magic of its first batch

    def is_replaced() -> bool:
        state = states(other, "events")[0]
        return state.leader not in (victim.node_id, -1) and victim.node_id not in state.isr

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})

    def is_found() -> bool:
        """Records by time are looked for in what is damaged, and then at another leader."""
        try:
            (found,) = consumer.offsets_for_times([TopicPartition("events", 0, 1)], timeout=10)
        except KafkaException as e:
            if e.args[0].code() not in GO_AWAY:
                raise
            return False
        return found.error is None and found.offset == 0

    wait_until("the first record by time", is_found, 60)
    consumer.close()
    wait_until("another one leads", is_replaced, 30)
    assert victim.is_running
    numbers.write(300)
    assert numbers.refused == []
    assert [set(one) for one in read_all(cluster, "events")] == numbers.acked
    victim.leave()
    shutil.move(directory, victim.folder / "damaged")
    victim.start()
    wait_in_sync(cluster, "events")
    cluster.stop()
    assert min(check_equal(cluster, "events", range(PARTITIONS)).values()) > 0
