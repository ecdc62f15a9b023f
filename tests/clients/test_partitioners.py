"""Every client sends a key to the same partition, by Java's murmur2."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from service.spark.write.options import producer_settings
from tests.clients.conftest import NewTopic
from tests.support.clients import Confluent
from tests.support.java_clients import JavaClients
from tests.support.tiers import LATEST, offset

PARTITIONS = 7
# Hashes that Apache Kafka's UtilsTest states for its murmur2; the partition is what is left without the sign.
HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
STATED = {key: (value & 0x7FFFFFFF) % PARTITIONS for key, value in HASHES.items()}


def all_keys(seed: int = 1) -> list[bytes]:
    """Of every length up to 40, of text beyond ASCII, of bytes that are none; and the empty one."""
    source = random.Random(seed)
    print(f"seed {seed}")
    lengths = [length for length in range(1, 41) for _ in range(5)]
    return [*dict.fromkeys((b"", *HASHES, "Grüße, 東京".encode(), *map(source.randbytes, lengths)))]


def librdkafka(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    write({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}, topic, keys)


def spark_sink(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    """With the producer that the sink makes on an executor; tests/spark/test_sink.py writes through Spark."""
    write(producer_settings(bootstrap, {}), topic, keys)


def write(settings: Mapping[str, str], topic: str, keys: Sequence[bytes]) -> None:
    producer = confluent_kafka.Producer(dict(settings))
    for key in keys:
        producer.produce(topic, b"", key)
    assert not producer.flush(30)


def kafka_python(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    for future in [producer.send(topic, b"", key) for key in keys]:
        future.get(30)
    producer.close()


def with_aiokafka(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            await asyncio.gather(*[await producer.send(topic, b"", key) for key in keys])

    asyncio.run(send())


def placed(bootstrap: str, topic: str) -> dict[bytes, int]:
    """Key -> the partition that it lies on, read from the log."""
    found: dict[bytes, int] = {}
    for partition in range(PARTITIONS):
        end = offset(bootstrap, topic, partition, LATEST)
        for row in Confluent().read(bootstrap, topic, partition, 0, end):
            assert row.key is not None
            assert row.key not in found, f"{row.key!r} was written twice"
            found[row.key] = partition
    return found


WRITERS: Mapping[str, Callable[[str, str, Sequence[bytes]], None]] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": with_aiokafka,
    "the Spark sink": spark_sink,
}


def test_each_client_places_keys_as_java_does(bootstrap: str, new_topic: NewTopic) -> None:
    keys = all_keys()
    by_writer: dict[str, dict[bytes, int]] = {}
    for name, writes in WRITERS.items():
        topic = new_topic(PARTITIONS)
        writes(bootstrap, topic, keys)
        by_writer[name] = placed(bootstrap, topic)
        assert set(by_writer[name]) == set(keys), name
        stated = {key: by_writer[name][key] for key in STATED}
        assert stated == STATED, name
    assert set(by_writer["librdkafka"].values()) == set(range(PARTITIONS))
    for name, found in by_writer.items():
        other = {key: (at, by_writer["librdkafka"][key]) for key, at in found.items()}
        assert not [key for key, (one, two) in other.items() if one != two], f"{name} beside librdkafka"


@pytest.mark.java
def test_java_places_keys_as_the_others_do(bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> None:
    keys = all_keys()
    topic, other = new_topic(PARTITIONS), new_topic(PARTITIONS)
    with JavaClients(tmp_path, bootstrap) as java:
        told = dict(zip(keys, java.send(topic, keys), strict=True))
    librdkafka(bootstrap, other, keys)
    assert told == placed(bootstrap, topic) == placed(bootstrap, other)
    assert {key: told[key] for key in STATED} == STATED
