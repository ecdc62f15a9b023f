"""Ordinary Kafka clients: each can produce a list of records and read a range of a partition back, in order.

A `Row` is what a client sees of a record; `digest` folds rows into a checksum of all fields and their order.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka import admin as confluent_admin

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EPOCH_MS = 1_700_000_000_000


class Row(NamedTuple):
    """A record as its producer means it. `timestamp` in ms."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def make_rows(count: int, partitions: int, value_bytes: int = 1000, seed: int = 1) -> list[Row]:
    """Rows over all partitions. Half of a value is random, so that no codec makes it vanish."""
    source = random.Random(seed)
    rows = []
    for number in range(count):
        half = source.randbytes(value_bytes // 2)
        value: bytes | None = half + b"%0*d" % (value_bytes - len(half), number)
        key: bytes | None = b"key-%d" % (number % 997)
        if number % 101 == 7:
            value = None
        if number % 103 == 9:
            key = None
        headers = (("n", b"%d" % number), ("empty", b"")) if number % 10 == 0 else ()
        rows.append(Row(number % partitions, EPOCH_MS + number, key, value, headers))
    return rows


class Digest:
    """A running checksum over rows of one partition, in order."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, row: Row) -> None:
        self.count += 1
        self._hash.update(struct.pack(">q", row.timestamp))
        for part in (
            row.key,
            row.value,
            *(item for header in row.headers for item in (header[0].encode(), header[1])),
        ):
            self._hash.update(b"\xff" if part is None else struct.pack(">I", len(part)) + part)

    def __str__(self) -> str:
        return f"{self.count}:{self._hash.hexdigest()}"


def digest(rows: Iterable[Row]) -> str:
    found = Digest()
    for row in rows:
        found.add(row)
    return str(found)


def by_partition(rows: Iterable[Row]) -> dict[int, list[Row]]:
    sorted_rows: dict[int, list[Row]] = {}
    for row in rows:
        sorted_rows.setdefault(row.partition, []).append(row)
    return sorted_rows


class Client(Protocol):
    """Interface of every client here."""

    name: str

    def produce(
        self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none", **options: Any
    ) -> None:
        """Produces all rows, acknowledged, in order per partition."""

    def read(
        self, bootstrap: str, topic: str, partition: int, start: int, end: int, **options: Any
    ) -> list[Row]:
        """Offsets [start, end); fails when they do not come within a minute."""


def _check_offsets(name: str, found: list[tuple[int, Row]], start: int, end: int) -> list[Row]:
    offsets = [offset for offset, _ in found]
    assert offsets == list(range(start, end)), (
        f"{name} read {len(offsets)} records, {offsets[:3]}…{offsets[-3:]}, not all from {start} to {end}"
    )
    return [row for _, row in found]


class Confluent:
    """confluent-kafka (librdkafka)."""

    name = "confluent-kafka"

    def produce(
        self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none", **options: Any
    ) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "linger.ms": 20,
                "batch.size": 200_000,
                "message.timeout.ms": 60_000,
                "topic.metadata.propagation.max.ms": 60_000,
                **options,
            }
        )
        # Records produced before librdkafka knows the topic's partitions can be overtaken by those after.
        producer.list_topics(topic, timeout=30)
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        for row in rows:
            while True:
                try:
                    producer.produce(
                        topic,
                        row.value,
                        row.key,
                        row.partition,
                        on_delivery=delivered,
                        timestamp=row.timestamp,
                        headers=list(row.headers) or None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(60) == 0, "not everything was acknowledged within a minute"
        assert not failed, failed[:3]

    def read(
        self, bootstrap: str, topic: str, partition: int, start: int, end: int, **options: Any
    ) -> list[Row]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                **options,
            }
        )
        found: list[tuple[int, Row]] = []
        deadline = time.monotonic() + 60
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
            while len(found) < end - start and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.2):
                    assert message.error() is None, message.error()
                    if message.offset() < end:
                        found.append((message.offset(), _confluent_row(message)))
        finally:
            consumer.close()
        return _check_offsets(self.name, found, start, end)


def _confluent_row(message: Any) -> Row:
    headers = tuple((key, value) for key, value in message.headers() or ())
    return Row(message.partition(), message.timestamp()[1], message.key(), message.value(), headers)


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def produce(
        self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none", **options: Any
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            batch_size=200_000,
            **options,
        )
        try:
            futures = [
                producer.send(topic, row.value, row.key, list(row.headers), row.partition, row.timestamp)
                for row in rows
            ]
            producer.flush(60)
            for future in futures:
                future.get(60)
        finally:
            producer.close(10)

    def read(
        self, bootstrap: str, topic: str, partition: int, start: int, end: int, **options: Any
    ) -> list[Row]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            **options,
        )
        where = kafka.TopicPartition(topic, partition)
        found: list[tuple[int, Row]] = []
        deadline = time.monotonic() + 60
        try:
            consumer.assign([where])
            consumer.seek(where, start)
            while len(found) < end - start and time.monotonic() < deadline:
                for message in consumer.poll(200).get(where, ()):
                    if message.offset < end:
                        headers = tuple(message.headers)
                        row = Row(partition, message.timestamp, message.key, message.value, headers)
                        found.append((message.offset, row))
        finally:
            consumer.close()
        return _check_offsets(self.name, found, start, end)


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def produce(
        self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none", **options: Any
    ) -> None:
        asyncio.run(self._produce(bootstrap, topic, rows, codec, options))

    async def _produce(
        self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str, options: Any
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_batch_size=200_000,
            **options,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic, row.value, row.key, row.partition, row.timestamp, list(row.headers)
                )
                for row in rows
            ]
            await asyncio.wait_for(asyncio.gather(*futures), 60)
        finally:
            await producer.stop()

    def read(
        self, bootstrap: str, topic: str, partition: int, start: int, end: int, **options: Any
    ) -> list[Row]:
        return asyncio.run(self._read(bootstrap, topic, partition, start, end, options))

    async def _read(
        self, bootstrap: str, topic: str, partition: int, start: int, end: int, options: dict[str, Any]
    ) -> list[Row]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            **options,
        )
        where = aiokafka.TopicPartition(topic, partition)
        found: list[tuple[int, Row]] = []
        deadline = time.monotonic() + 60
        await consumer.start()
        try:
            consumer.assign([where])
            consumer.seek(where, start)
            while len(found) < end - start and time.monotonic() < deadline:
                for message in (await consumer.getmany(where, timeout_ms=200)).get(where, ()):
                    if message.offset < end:
                        row = Row(
                            partition, message.timestamp, message.key, message.value, tuple(message.headers)
                        )
                        found.append((message.offset, row))
        finally:
            await consumer.stop()
        return _check_offsets(self.name, found, start, end)


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())


class Admin:
    """Topics and configs through confluent-kafka's admin client."""

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        """`replicas`: of topics where nothing else is said."""
        self.bootstrap, self.replicas = bootstrap, replicas
        self.client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Creates a topic; `segment_bytes="1048576"` stands for `segment.bytes=1048576`.

        The rows of tests are years old, so nothing is deleted by age unless asked.
        """
        self.replicate(topic, partitions, self.replicas, **config)

    def replicate(self, topic: str, partitions: int, replicas: int, **config: str) -> None:
        """Create a topic with several replicas."""
        self._create(confluent_admin.NewTopic(topic, partitions, replicas, config=_settings(config)))

    def place(self, topic: str, placed: Sequence[Sequence[int]], **config: str) -> None:
        """Create a topic with each partition's replicas by broker, the preferred leader first."""
        replicas = [list(one) for one in placed]
        self._create(
            confluent_admin.NewTopic(
                topic, len(replicas), replica_assignment=replicas, config=_settings(config)
            )
        )

    def _create(self, new: confluent_admin.NewTopic) -> None:
        self.client.create_topics([new], operation_timeout=20)[new.topic].result(30)

    def delete(self, topic: str) -> None:
        self.client.delete_topics([topic], operation_timeout=20)[topic].result(30)

    def configs(self, topic: str) -> dict[str, str]:
        resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, topic)
        entries = self.client.describe_configs([resource])[resource].result(30)
        return {name: entry.value for name, entry in entries.items()}

    def alter(self, topic: str, **config: str) -> None:
        entries = [
            confluent_admin.ConfigEntry(
                key.replace("_", "."), value, incremental_operation=confluent_admin.AlterConfigOpType.SET
            )
            for key, value in config.items()
        ]
        resource = confluent_admin.ConfigResource(
            confluent_admin.ResourceType.TOPIC, topic, incremental_configs=entries
        )
        self.client.incremental_alter_configs([resource])[resource].result(30)

    def topics(self) -> dict[str, int]:
        """Name -> number of partitions."""
        return {
            name: len(topic.partitions) for name, topic in self.client.list_topics(timeout=20).topics.items()
        }


def _settings(config: Mapping[str, str]) -> dict[str, str]:
    return {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in config.items()}
