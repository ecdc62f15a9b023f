"""A compacted topic, as clients see it: of each key the last record, and none without a key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import admin as confluent_admin

from tests.clients.conftest import Broker, NewTopic
from tests.support.clients import Admin
from tests.support.kafka_tools import tool
from tests.support.processes import wait_until

COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_bytes": str(1 << 20),
    "segment_ms": "500",
}
KEYS = 300


@pytest.fixture
def eager(broker: Broker) -> Iterator[None]:
    """The broker looks for something to compact all the time."""
    alter_broker(broker.admin, ("log.cleaner.backoff.ms", "100"))
    yield
    alter_broker(broker.admin, ("log.cleaner.backoff.ms", None))


def alter_broker(admin: Admin, change: tuple[str, str | None]) -> None:
    """Set a key of each broker, or take it back."""
    kinds = confluent_admin.AlterConfigOpType
    entry = confluent_admin.ConfigEntry(
        change[0], change[1], incremental_operation=kinds.DELETE if change[1] is None else kinds.SET
    )
    for broker in admin.client.list_topics(timeout=20).brokers:
        resource = confluent_admin.ConfigResource(
            confluent_admin.ResourceType.BROKER, str(broker), incremental_configs=[entry]
        )
        admin.client.incremental_alter_configs([resource])[resource].result(30)


def update(
    bootstrap: str, topic: str, rounds: range, **options: Any
) -> dict[bytes, tuple[int, bytes | None]]:
    """Each key once in every round, every seventh deleted in the last; offset and value of the last ones."""
    last: dict[bytes, tuple[int, bytes | None]] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        last[message.key()] = message.offset(), message.value()

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **options}
    )
    for number in rounds:
        for key in range(KEYS):
            gone = number == rounds[-1] and key % 7 == 0
            value = None if gone else b"%d of %d " % (key, number) + b"x" * 600
            producer.produce(topic, value, b"key %d" % key, on_delivery=delivered)
        producer.flush(30)
    return last


def read(bootstrap: str, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) of all records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    partition = confluent_kafka.TopicPartition(topic, 0, 0)
    found: list[tuple[int, bytes, bytes | None]] = []
    try:
        consumer.assign([partition])
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end of the partition does not come"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def from_librdkafka(bootstrap: str, topic: str, start: int, count: int) -> list[int]:
    """The first `count` offsets that a consumer gets who begins at `start`; so for the others."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        return [message.offset() for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def from_kafka_python(bootstrap: str, topic: str, start: int, count: int) -> list[int]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek(kafka.TopicPartition(topic, 0), start)
        return [next(consumer).offset for _ in range(count)]
    finally:
        consumer.close()


def from_aiokafka(bootstrap: str, topic: str, start: int, count: int) -> list[int]:
    async def main() -> list[int]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            consumer.seek(aiokafka.TopicPartition(topic, 0), start)
            return [(await asyncio.wait_for(consumer.getone(), 30)).offset for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(main())


def from_java(bootstrap: str, topic: str, start: int, count: int) -> list[int]:
    said = tool(
        "console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0",
        "--offset", str(start), "--max-messages", str(count), "--timeout-ms", "30000",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    )  # fmt: skip
    return [int(line.removeprefix("Offset:")) for line in said.splitlines()]


@pytest.mark.java
@pytest.mark.usefixtures("eager")
def test_every_client_gets_over_gaps(broker: Broker, new_topic: NewTopic) -> None:
    """Wherever it begins: within one, too, or where only empty batches are left."""
    topic = new_topic(1, **COMPACTED)
    options = {"batch.num.messages": 7}
    update(broker.bootstrap, topic, range(12), **options)

    def is_compacted() -> bool:
        update(broker.bootstrap, topic, range(1), **options)
        return len(read(broker.bootstrap, topic)) < 5 * KEYS

    wait_until("the topic to be compacted", is_compacted, 60, 0.3)
    broker.admin.alter(topic, cleanup_policy="delete")  # so that it stays as it is
    offsets = [offset for offset, _, _ in read(broker.bootstrap, topic)]
    assert offsets[0] > KEYS, "what was first is gone"
    at = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    assert tool("get-offsets", *at, "--time", "-2").strip() == f"{topic}:0:0"
    assert tool("get-offsets", *at, "--time", "1").strip() == f"{topic}:0:{offsets[0]}"
    for start in (0, offsets[0] - 1, offsets[0] // 2, KEYS + 3):
        want = [offset for offset in offsets if offset >= start][:20]
        for take in (from_librdkafka, from_kafka_python, from_aiokafka, from_java):
            assert take(broker.bootstrap, topic, start, 20) == want, (take.__name__, start)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_compaction_keeps_the_last_record_of_each_key(
    broker: Broker, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic(1, **COMPACTED)
    options = {"compression.type": codec}
    last = update(broker.bootstrap, topic, range(20), **options)
    records = 20 * KEYS

    def is_compacted() -> bool:
        nonlocal last, records
        # What rolls a segment is a record.
        last |= update(broker.bootstrap, topic, range(1), **options)
        records += KEYS
        found = read(broker.bootstrap, topic)
        assert {key: (offset, value) for offset, key, value in found} == last
        assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)
        return len(found) < 5 * KEYS < records

    wait_until("the topic to be compacted", is_compacted, 60, 0.3)


@pytest.mark.usefixtures("eager")
def test_a_topic_can_be_compacted_later_and_not_any_more(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1, segment_bytes=str(1 << 20), segment_ms="500")
    last = update(broker.bootstrap, topic, range(10))
    assert len(read(broker.bootstrap, topic)) == 10 * KEYS
    broker.admin.alter(topic, cleanup_policy="compact,delete", min_cleanable_dirty_ratio="0.01")

    def is_compacted() -> bool:
        nonlocal last
        last |= update(broker.bootstrap, topic, range(1))
        return len(read(broker.bootstrap, topic)) < 5 * KEYS

    wait_until("the topic to be compacted", is_compacted, 60, 0.3)
    broker.admin.alter(topic, cleanup_policy="delete")
    last |= update(broker.bootstrap, topic, range(3))
    found = read(broker.bootstrap, topic)
    assert {key: (offset, value) for offset, key, value in found} == last


def test_a_record_without_a_key_is_refused(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1, cleanup_policy="compact")
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 100})
    for key in (b"a", None, b"b"):
        producer.produce(topic, b"value", key, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert len(errors) == 3
    assert confluent_kafka.KafkaError.INVALID_RECORD in {error.code() for error in errors if error}
    broker.admin.alter(topic, cleanup_policy="delete")

    def is_taken() -> bool:
        """Apache Kafka's controller answers before its broker has heard of the change."""
        errors.clear()
        producer.produce(topic, b"value", None, on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
        return len(errors) == 1 and errors[0] is None

    wait_until("a record without a key to be taken", is_taken)


def test_a_tiered_topic_is_not_compacted(broker: Broker, new_topic: NewTopic) -> None:
    broker.need_tiers()
    refusal = r"only supports topics with cleanup\.policy=delete"
    with pytest.raises(confluent_kafka.KafkaException, match=refusal):
        new_topic(1, cleanup_policy="compact", remote_storage_enable="true")
    topic = new_topic(1, cleanup_policy="compact")
    with pytest.raises(confluent_kafka.KafkaException, match=refusal):
        broker.admin.alter(topic, remote_storage_enable="true")


def test_settings_that_contradict_each_other_are_refused(broker: Broker, new_topic: NewTopic) -> None:
    with pytest.raises(confluent_kafka.KafkaException, match=r"min\.compaction\.lag\.ms"):
        new_topic(1, min_compaction_lag_ms="11", max_compaction_lag_ms="10")
    for given, means in (("", ""), ("compact,compact", "compact")):
        assert broker.admin.configs(new_topic(1, cleanup_policy=given))["cleanup.policy"] == means
    described = broker.admin.configs(new_topic(1, cleanup_policy="compact,delete"))
    assert described["cleanup.policy"] == "compact,delete"
    assert described["min.cleanable.dirty.ratio"] == "0.5"
    assert described["delete.retention.ms"] == "86400000"
    assert described["max.compaction.lag.ms"] == str(2**63 - 1)
