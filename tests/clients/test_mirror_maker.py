"""MirrorMaker 2 to and from Apache Kafka: records, partitions, settings and positions are mirrored.

Both ways under the names that it gives by default, and one way by the file of docs/moving.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.conftest import Broker
from tests.clients.test_groups import committed
from tests.support.clients import Admin, Confluent, Row, by_partition, make_rows
from tests.support.connect import App, MirrorMaker
from tests.support.kafka_node import KafkaNode
from tests.support.processes import REPOSITORY, wait_until
from tests.support.requirements import need_kafka_apps
from tests.support.tiers import LATEST, offset

pytestmark = [pytest.mark.java, pytest.mark.thorough]
NAMES = f"mirrored-{os.getpid()}"
PARTITIONS = 3
ROWS = make_rows(600, PARTITIONS, 100)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaNode]:
    need_kafka_apps()
    node = KafkaNode(tmp_path / "kafka", {"group.initial.rebalance.delay.ms": "100"}, heap="512m")
    yield node
    node.stop()


def read(bootstrap: str, topic: str) -> dict[int, list[Row]]:
    """All that lies on each partition now."""
    found = {}
    for partition in range(PARTITIONS):
        end = offset(bootstrap, topic, partition, LATEST)
        found[partition] = Confluent().read(bootstrap, topic, partition, 0, end) if end > 0 else []
    return found


def commit(bootstrap: str, group: str, topic: str, positions: list[int]) -> None:
    """A position for each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, number, one) for number, one in enumerate(positions)]

    def is_done() -> bool:
        """Apache Kafka refuses while the coordinator's log is being made."""
        try:
            return bool(consumer.commit(offsets=places, asynchronous=False))
        except confluent_kafka.KafkaException as e:
            if e.args[0].name() not in ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"):
                raise
            return False

    wait_until("a position to be committed", is_done)
    consumer.close()


def test_topics_are_mirrored_both_ways(broker: Broker, kafka: KafkaNode, tmp_path: Path) -> None:
    clusters = {"a": broker.bootstrap, "b": kafka.bootstrap}
    for here, bootstrap in clusters.items():
        topic = f"{NAMES}-of-{here}"
        Admin(bootstrap).create(topic, PARTITIONS, max_message_bytes="765432", segment_ms="7200000")
        Confluent().produce(bootstrap, topic, ROWS[:300])
        commit(bootstrap, f"{NAMES}-group-of-{here}", topic, [100] * PARTITIONS)
    maker = MirrorMaker(
        clusters["a"], clusters["b"], f"{NAMES}-of-.", f"{NAMES}-group-of-.", tmp_path / "maker"
    )
    try:
        check_mirrored(maker, clusters, "a", "b")
        check_mirrored(maker, clusters, "b", "a")
    finally:
        maker.close()


def check_mirrored(maker: MirrorMaker, clusters: Mapping[str, str], here: str, there: str) -> None:
    """What one cluster has comes to the other, under the name of where it is from."""
    topic, group = f"{NAMES}-of-{here}", f"{NAMES}-group-of-{here}"
    mirror, admin = f"{here}.{topic}", Admin(clusters[there])

    def has(rows: list[Row]) -> bool:
        assert maker.is_running, maker.log()
        if admin.topics().get(mirror) != PARTITIONS:
            return False
        return read(clusters[there], mirror) == by_partition(rows)

    wait_until(f"{there} to have what {here} has", lambda: has(ROWS[:300]), 90, 0.5)
    Confluent().produce(clusters[here], topic, ROWS[300:])
    wait_until(f"{there} to have what is new", lambda: has(ROWS), 60, 0.5)
    wait_until("settings to be mirrored", lambda: admin.configs(mirror)["max.message.bytes"] == "765432")
    assert admin.configs(mirror)["segment.ms"] == "7200000"

    def positions() -> list[int]:
        return committed(clusters[there], group, mirror, PARTITIONS)

    wait_until("positions to be mirrored", lambda: min(positions()) > 0, 60, 0.5)
    assert max(positions()) <= 100, "a position is translated to one that is certainly not beyond it"


def settings_of_the_page(kafka: str, firn: str) -> dict[str, str]:
    """The properties of docs/moving.md, for clusters of one node and without long pauses."""
    page = (REPOSITORY / "docs" / "moving.md").read_text("utf-8")
    (block,) = (
        one for one in re.findall(r"```properties\n(.*?)```", page, re.DOTALL) if "clusters = " in one
    )
    lines = (line for line in block.splitlines() if line and not line.startswith("#"))
    settings = dict(line.split(" = ", 1) for line in lines)
    replicas = {key: "1" for key in settings if key.endswith("replication.factor")}
    return settings | replicas | {
        "kafka.bootstrap.servers": kafka,
        "firn.bootstrap.servers": firn,
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "sync.topic.configs.interval.seconds": "2",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "plugin.discovery": "service_load",
    }  # fmt: skip


def test_the_page_moves_a_topic_and_its_group(broker: Broker, kafka: KafkaNode, tmp_path: Path) -> None:
    """The topic is tiered in Firn from its first record on, and stays so when settings come along."""
    broker.need_tiers()
    source, target = Admin(kafka.bootstrap), broker.admin
    source.create("orders", PARTITIONS, max_message_bytes="765432")
    target.create("orders", PARTITIONS, remote_storage_enable="true", retention_ms="-1")
    Confluent().produce(kafka.bootstrap, "orders", ROWS)
    ends = [offset(kafka.bootstrap, "orders", number, LATEST) for number in range(PARTITIONS)]
    maker = App(
        "org.apache.kafka.connect.mirror.MirrorMaker",
        settings_of_the_page(kafka.bootstrap, broker.bootstrap),
        tmp_path / "maker",
    )
    try:
        wait_until(
            "all records to arrive",
            lambda: maker.is_running and read(broker.bootstrap, "orders") == by_partition(ROWS),
            90,
            0.5,
        )
        commit(kafka.bootstrap, "billing", "orders", ends)
        wait_until(
            "a group at the end to be at the end there",
            lambda: committed(broker.bootstrap, "billing", "orders", PARTITIONS) == ends,
            60,
            0.5,
        )
        wait_until(
            "settings to come along", lambda: target.configs("orders")["max.message.bytes"] == "765432"
        )
        told = target.configs("orders")
        assert (told["remote.storage.enable"], told["retention.ms"]) == ("true", "-1")
        own = {name for name in source.topics() if "mm2" in name or "heartbeats" in name}
        assert own <= {"mm2-offset-syncs.firn.internal"}, "nothing else is written to the source"
    finally:
        maker.close()
