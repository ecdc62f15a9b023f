"""kill -9 right behind the answer of an admin request: the answer holds after the start, reused names too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.conftest import NodeFactory
from tests.support.processes import Node, wait_until

TOPIC = "orders"
GROUPS = [f"group-{n}" for n in range(8)]
ROUNDS = 2


def admin(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap})


def ask(node: Node, call: Callable[[AdminClient], dict[Any, Any]]) -> None:
    """Have an admin client do `call`, and wait for the answers."""
    client = admin(node)  # has to live until the answers are there
    for future in call(client).values():
        future.result(timeout=20)


def write(node: Node, values: range) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in values:
        producer.produce(TOPIC, b"%d" % value, partition=0)
    assert not producer.flush(20)


def commit(node: Node, offset: int) -> None:
    for group in GROUPS:
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        consumer.close()


def committed(node: Node) -> list[int]:
    """Each group's offset; -1001 where it has none."""
    found = []
    for group in GROUPS:
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
        found.append(consumer.committed([TopicPartition(TOPIC, 0)], timeout=20)[0].offset)
        consumer.close()
    return found


def retention_ms(node: Node) -> str:
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    client = admin(node)
    [described] = client.describe_configs([resource]).values()
    return str(described.result(timeout=20)["retention.ms"].value)


def watermarks(node: Node) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "nobody"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)
        return low, high
    finally:
        consumer.close()


def partitions(node: Node) -> int:
    return len(admin(node).list_topics(TOPIC, timeout=20).topics[TOPIC].partitions)


def make(node: Node, config: dict[str, str] | None = None) -> None:
    ask(node, lambda one: one.create_topics([NewTopic(TOPIC, 1, 1, config=config or {})]))
    wait_until("the topic has a leader", lambda: watermarks(node) == (0, 0))


def delete_topic(node: Node) -> None:
    ask(node, lambda one: one.delete_topics([TOPIC]))


def is_as_new(node: Node) -> None:
    make(node)
    write(node, range(7))
    assert committed(node) == [-1001] * len(GROUPS)
    assert retention_ms(node) == "604800000"
    assert watermarks(node) == (0, 7)


def delete_groups(node: Node) -> None:
    ask(node, lambda one: one.delete_consumer_groups(GROUPS))


def has_no_offsets(node: Node) -> None:
    assert committed(node) == [-1001] * len(GROUPS)
    client = admin(node)
    assert not client.list_consumer_groups().result(timeout=20).valid


def alter_config(node: Node) -> None:
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    ask(node, lambda one: one.incremental_alter_configs([resource]))


def has_new_config(node: Node) -> None:
    assert retention_ms(node) == "86400000"


def grow(node: Node) -> None:
    ask(node, lambda one: one.create_partitions([NewPartitions(TOPIC, 3)]))


def has_grown(node: Node) -> None:
    assert partitions(node) == 3


def delete_records(node: Node) -> None:
    ask(node, lambda one: one.delete_records([TopicPartition(TOPIC, 0, 6)]))


def starts_later(node: Node) -> None:
    assert watermarks(node) == (6, 10)


@pytest.mark.parametrize(
    ("act", "holds"),
    [
        (delete_topic, is_as_new),
        (delete_groups, has_no_offsets),
        (alter_config, has_new_config),
        (grow, has_grown),
        (delete_records, starts_later),
    ],
    ids=lambda one: one.__name__,
)
def test_acknowledged_admin_changes_survive_a_kill(
    start_node: NodeFactory, act: Callable[[Node], None], holds: Callable[[Node], None]
) -> None:
    node = start_node()
    for _ in range(ROUNDS):
        make(node, {"retention.ms": "3600000"})
        write(node, range(10))
        commit(node, 5)
        act(node)
        node.kill()
        node.start()
        holds(node)
        ask(node, lambda one: one.delete_topics([TOPIC]))
    node.stop()
