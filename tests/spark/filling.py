"""Fills a bucket through a real node and remembers what a consumer read from it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients import Admin
from tests.support.processes import Node
from tests.support.stores import Store
from tests.support.tiers import settle

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
START_MS = 1_700_000_000_000
SEGMENT_MS = 300_000
ROWS_PER_CODEC = 1800
BRISK = {
    "firn.merge.enable": "false",  # tests write old records, and look at the objects that they make
    "log.retention.check.interval.ms": "100",
    "remote.log.manager.task.interval.ms": "100",
    "message.max.bytes": str(16 << 20),
}
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "segment.ms": str(SEGMENT_MS),
}


class Row(NamedTuple):
    """One record as a Kafka consumer sees it."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | None


@dataclass
class Filled:
    """What lies in `store`: the rows of each topic up to the border of its cold part."""

    store: Store
    rows: dict[str, list[Row]] = field(default_factory=dict)
    borders: dict[str, dict[int, int]] = field(default_factory=dict)


def fill(folder: Path, store: Store) -> Filled:
    """Topics `mixed` (three partitions, every codec, every kind of key, value and header), `huge` (records of
    up to 10 MB) and `stamped` (times set by the broker).
    """
    node = Node(folder, {**BRISK, **store.node_settings}, store.env).start()
    filled = Filled(store)
    try:
        admin = Admin(node.bootstrap)
        admin.create("mixed", PARTITIONS, **TIERED)
        admin.create(
            "stamped", 1, **TIERED | {"message.timestamp.type": "LogAppendTime", "segment.bytes": "1048576"}
        )
        admin.create(
            "huge", 1, **TIERED | {"segment.bytes": str(16 << 20), "max.message.bytes": str(16 << 20)}
        )
        admin.create("plain", 5)  # is never in the bucket
        rng = random.Random(7)
        for number, codec in enumerate(CODECS):
            produce_mixed(node.bootstrap, codec, number * ROWS_PER_CODEC, rng)
        _produce_plain(node.bootstrap, "stamped", [b"%d" % i * 300 for i in range(4000)])
        sizes = [10_000_000, 10, 6_000_000, 10_000_000, 0, 10_000_000, 3_000_000, 9_000_000]
        _produce_plain(node.bootstrap, "huge", [rng.randbytes(size) for size in sizes])
        for topic, partitions in (("mixed", PARTITIONS), ("stamped", 1), ("huge", 1)):
            borders = {p: settle(node.bootstrap, topic, p) for p in range(partitions)}
            filled.borders[topic] = borders
            filled.rows[topic] = consume(node.bootstrap, topic, borders)
    finally:
        node.close()
    return filled


def produce_mixed(bootstrap: str, codec: str, first: int, rng: random.Random) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5})
    for i in range(first, first + ROWS_PER_CODEC):
        key = rng.choice([None, b"", b"k%d" % (i % 7), rng.randbytes(20)])
        value = rng.choice([None, b"", b"v" * 150, rng.randbytes(150)])
        headers = rng.choice([None, [("a", b"1")], [("a", None), ("a", b""), ("\u00fc", rng.randbytes(9))]])
        producer.produce(
            "mixed", value, key, partition=i % PARTITIONS, timestamp=START_MS + 1000 * i, headers=headers
        )
        if i % 100 == 0:
            producer.flush()
    assert producer.flush(30) == 0


def _produce_plain(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 16 << 20, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
        if len(value) > 1000:
            producer.flush()
    assert producer.flush(60) == 0


def consume(bootstrap: str, topic: str, ends: dict[int, int]) -> list[Row]:
    """Everything of a topic up to these offsets, in the order of partitions and offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 16 << 20,
        }
    )
    rows: list[Row] = []
    try:
        for partition, end in ends.items():
            consumer.assign([TopicPartition(topic, partition, 0)])
            at = 0
            while at < end:
                for message in consumer.consume(1000, 0.5):
                    assert message.error() is None, message.error()
                    at = message.offset() + 1
                    if message.offset() < end:
                        rows.append(row_of(message))
    finally:
        consumer.close()
    return rows


def row_of(message: object) -> Row:
    kind, timestamp = message.timestamp()  # type: ignore[attr-defined]
    headers = message.headers()  # type: ignore[attr-defined]
    return Row(
        message.key(),  # type: ignore[attr-defined]
        message.value(),  # type: ignore[attr-defined]
        message.topic(),  # type: ignore[attr-defined]
        message.partition(),  # type: ignore[attr-defined]
        message.offset(),  # type: ignore[attr-defined]
        timestamp,
        kind - 1,
        tuple(headers) if headers else None,
    )
