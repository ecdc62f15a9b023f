"""Ordinary Kafka clients: one that writes, two that read, and a checksum that tells if they saw the same."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from demo.flights import Flight

Progress = Callable[[int], None]
_HEAD = struct.Struct(">qii")


class Checksums:
    """Count and checksum of each partition's records, in order: timestamp, key and value of every one."""

    def __init__(self, partitions: int) -> None:
        self.counts = [0] * partitions
        self.bytes = 0
        self._hashes = [hashlib.blake2b(digest_size=8) for _ in range(partitions)]

    def add(self, partition: int, timestamp_ms: int, key: bytes | None, value: bytes) -> None:
        self.counts[partition] += 1
        self.bytes += len(value) + (len(key) if key else 0)
        key_size = -1 if key is None else len(key)
        self._hashes[partition].update(_HEAD.pack(timestamp_ms, key_size, len(value)) + (key or b"") + value)

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def digests(self) -> list[str]:
        return [one.hexdigest() for one in self._hashes]


def _add(checksums: Checksums, message: Message) -> None:
    partition, value = message.partition(), message.value()
    assert partition is not None
    assert value is not None
    checksums.add(partition, message.timestamp()[1], message.key(), value)


def create_topic(bootstrap: str, topic: str, partitions: int, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(timeout=20)


def alter_topic(bootstrap: str, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)


def produce(
    bootstrap: str, topic: str, partitions: int, flights: Sequence[Flight], progress: Progress
) -> Checksums:
    """Send every flight, idempotently; what the broker acknowledged goes into the checksums, in its order."""
    acknowledged = Checksums(partitions)
    failures: list[str] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failures.append(str(error))
            return
        _add(acknowledged, message)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for number, flight in enumerate(flights):
        while True:
            try:
                producer.produce(
                    topic,
                    flight.value,
                    flight.tail_number,
                    timestamp=flight.timestamp_ms,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
            progress(acknowledged.total)
    while producer.flush(0.2):
        progress(acknowledged.total)
    if failures:
        raise SystemExit(f"{len(failures)} records were not accepted: {failures[0]}")
    return acknowledged


def read_with_confluent(bootstrap: str, topic: str, ends: Sequence[int], progress: Progress) -> Checksums:
    """Read every partition from offset 0 to its end with confluent-kafka (librdkafka)."""
    found = Checksums(len(ends))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",  # the client wants a name; no group is joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(len(ends))])
        while found.counts != list(ends):
            for message in consumer.consume(10_000, timeout=0.5):
                if message.error():
                    raise KafkaException(message.error())
                _add(found, message)
            progress(found.total)
    finally:
        consumer.close()
    return found


def read_with_aiokafka(bootstrap: str, topic: str, ends: Sequence[int], progress: Progress) -> Checksums:
    """The same with aiokafka (Python)."""
    return asyncio.run(_read_with_aiokafka(bootstrap, topic, ends, progress))


async def _read_with_aiokafka(
    bootstrap: str, topic: str, ends: Sequence[int], progress: Progress
) -> Checksums:
    found = Checksums(len(ends))
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none"
    )
    await consumer.start()
    try:
        partitions = [AioTopicPartition(topic, partition) for partition in range(len(ends))]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while found.counts != list(ends):
            for partition, messages in (await consumer.getmany(timeout_ms=500)).items():
                for message in messages:
                    found.add(partition.partition, message.timestamp, message.key, message.value)
            progress(found.total)
    finally:
        await consumer.stop()
    return found
