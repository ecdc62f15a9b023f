"""`kafka-reassign-partitions --throttle`: a move keeps to its rate, and the throttle goes when it is done."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Producer
from confluent_kafka import admin as confluent_admin

from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.kafka_tools import tool
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, states, wait_in_sync

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPIC = "moving"
SIZE = 24_000_000
RATE = 3_000_000
SLOW = 20_000
"""So slow that it would not be done within this test."""
ANSWERS = 2 << 20
"""What two fetchers get at a time: an answer comes whole."""
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", settings=BRISK) as made:
        yield made.start()


def fill(cluster: Cluster, placed: Sequence[Sequence[int]]) -> None:
    Admin(cluster.bootstrap).place(TOPIC, placed)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    value = os.urandom(10_000)
    for number in range(SIZE // len(value)):
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % len(placed))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    wait_in_sync(cluster, TOPIC)


def plan(path: Path, placed: Sequence[Sequence[int]]) -> Path:
    partitions = [
        {"topic": TOPIC, "partition": n, "replicas": list(replicas)} for n, replicas in enumerate(placed)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


def reassign(cluster: Cluster, what: Path, *how: str) -> str:
    at = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", what)
    return tool(REASSIGN, *at, *how, seconds=120)


def wait_moved(cluster: Cluster, placed: Sequence[Sequence[int]], seconds: float) -> None:
    member = cluster.members[1]

    def are_there() -> bool:
        found = states(member, TOPIC)
        return all(
            set(found[n].replicas) == set(found[n].isr) == set(replicas) for n, replicas in enumerate(placed)
        )

    wait_until(f"{TOPIC} to be on {placed}", are_there, seconds)


def throttles(cluster: Cluster) -> tuple[dict[str, str], dict[int, Mapping[str, str]]]:
    """Of the topic, and of each broker."""
    admin = Admin(cluster.bootstrap)
    of_topic = {key: value for key, value in admin.configs(TOPIC).items() if key in LISTS and value}
    of_brokers: dict[int, Mapping[str, str]] = {}
    for broker in cluster.members:
        resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.BROKER, str(broker))
        entries = admin.client.describe_configs([resource])[resource].result(30)
        of_brokers[broker] = {key: entries[key].value for key in RATES if key in entries}
    return of_topic, of_brokers


class Watch:
    """When a broker's replicas of the topic began to grow, at the earliest, and had it all, at the latest."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self._folder = Path(cluster.members[broker].settings["log.dirs"])
        self._over = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self.begun = self.ended = 0.0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02) and not self.ended:
            now, size = time.monotonic(), 0
            for path in self._folder.glob(f"{TOPIC}-[0-9]/*.log"):
                size += path.stat().st_size
            if not size:
                self.begun = now
            elif size >= SIZE:
                self.ended = time.monotonic()


@pytest.mark.thorough
def test_a_move_keeps_to_its_rate_and_its_throttle_goes_when_it_is_done(
    cluster: Cluster, tmp_path: Path
) -> None:
    before, after = ((1, 2), (2, 1)), ((1, 3), (2, 3))
    fill(cluster, before)
    there, back = plan(tmp_path / "there.json", after), plan(tmp_path / "back.json", before)

    with Watch(cluster, 3) as watch:
        said = reassign(cluster, there, "--execute", "--throttle", str(RATE))
        assert f"The inter-broker throttle limit was set to {RATE} B/s" in said
        of_topic, of_brokers = throttles(cluster)
        assert {key: set(value.split(",")) for key, value in of_topic.items()} == {
            LISTS[0]: {"0:1", "0:2", "1:1", "1:2"},
            LISTS[1]: {"0:3", "1:3"},
        }
        assert of_brokers == {broker: dict.fromkeys(RATES, str(RATE)) for broker in cluster.members}
        wait_moved(cluster, after, 120)
        wait_until("the last bytes to be seen", lambda: watch.ended > 0, 10)
    took_s, least_s = watch.ended - watch.begun, (SIZE - ANSWERS) / RATE - 1
    print(f"{SIZE} bytes at {RATE} B/s took {took_s:.2f} s, and no less than {least_s:.2f} s")
    assert took_s >= least_s, "the first window's worth and the last answers come at once, no more"
    assert f"Clearing topic-level throttles on topic {TOPIC}" in reassign(cluster, there, "--verify")
    assert throttles(cluster) == ({}, {broker: {} for broker in cluster.members})

    reassign(cluster, back, "--execute", "--throttle", str(SLOW))
    assert "is still in progress" in reassign(cluster, back, "--verify")
    of_topic, of_brokers = throttles(cluster)
    assert set(of_topic) == set(LISTS)
    assert set(of_brokers[2].values()) == {str(SLOW)}, "it stays until the move is done"
    reassign(cluster, back, "--execute", "--additional", "--throttle", str(100 * RATE))
    wait_moved(cluster, before, 120)
    reassign(cluster, back, "--verify")
    assert throttles(cluster) == ({}, {broker: {} for broker in cluster.members})
    cluster.stop()
    assert min(check_equal(cluster, TOPIC, range(len(before))).values()) > 0
