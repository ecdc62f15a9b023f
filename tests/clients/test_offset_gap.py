"""Consumers pass over the offsets that a restored cluster gives up: one empty batch of a million."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from service.records.compaction import filling_batch
from tests.conftest import NodeFactory
from tests.support.clients import Admin
from tests.support.processes import Node

GAP = 1_000_000
BEHIND = 3 + GAP
"""offset of the first record behind it"""


@pytest.fixture
def node(start_node: NodeFactory) -> Node:
    """A node whose topic has three records, the gap, and a record behind it."""
    node = start_node()
    Admin(node.bootstrap).create("t")
    produce(node, b"0", b"1", b"2")
    node.kill()
    (log,) = (node.data / "t-0").glob("*.log")
    with log.open("ab") as file:
        file.write(filling_batch(3, BEHIND - 1, 0))
    node.start()
    produce(node, b"behind")
    return node


def produce(node: Node, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(20) == 0


def librdkafka(bootstrap: str, start: int, count: int) -> list[tuple[int, bytes]]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "error"}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition("t", 0, start)])
        found = consumer.consume(count, 20)
        assert [one.error() for one in found] == [None] * count
        return [(one.offset(), one.value()) for one in found]


def kafka_python(bootstrap: str, start: int, count: int) -> list[tuple[int, bytes]]:
    place = PythonPartition("t", 0)
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")) as consumer:
        consumer.assign([place])
        consumer.seek(place, start)
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            polled = consumer.poll(20_000)
            assert polled, f"only {found}"
            found += [(one.offset, one.value) for one in polled[place]]
        return found


def aiokafka(bootstrap: str, start: int, count: int) -> list[tuple[int, bytes]]:
    async def read() -> list[tuple[int, bytes]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")
        await consumer.start()
        try:
            place = AioPartition("t", 0)
            consumer.assign([place])
            consumer.seek(place, start)
            async with asyncio.timeout(20):
                return [(one.offset, one.value) for one in [await consumer.getone() for _ in range(count)]]
        finally:
            await consumer.stop()

    return asyncio.run(read())


def test_consumers_pass_over_given_up_offsets(node: Node) -> None:
    """Without a reset policy: from before the gap, and from within it, as who kept an offset elsewhere."""
    readers: tuple[Callable[[str, int, int], list[tuple[int, bytes]]], ...] = (
        librdkafka,
        kafka_python,
        aiokafka,
    )
    for read in readers:
        before = [(0, b"0"), (1, b"1"), (2, b"2"), (BEHIND, b"behind")]
        assert read(node.bootstrap, 0, 4) == before, read.__name__
        for within in (3, 4, BEHIND - 1):
            assert read(node.bootstrap, within, 1) == [(BEHIND, b"behind")], read.__name__
