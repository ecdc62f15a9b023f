"""Records deleted on demand and topics that grow, through the clients' own interfaces and Kafka's tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import pytest
from confluent_kafka import admin as confluent_admin

from tests.clients.conftest import Broker, NewTopic
from tests.support.clients import CLIENTS, digest, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until

ROWS = 300
EARLIEST, LATEST = -2, -1


@pytest.fixture
def filled(broker: Broker, new_topic: NewTopic) -> str:
    """A topic of two partitions with `ROWS` records in each."""
    topic = new_topic(2)
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(2 * ROWS, 2))
    return topic


def bounds(broker: Broker, topic: str, partition: int = 0) -> tuple[int, int]:
    return broker.offset(topic, partition, EARLIEST), broker.offset(topic, partition, LATEST)


def test_confluent_deletes_records(broker: Broker, filled: str) -> None:
    asked = [
        confluent_kafka.TopicPartition(filled, 0, 40),
        confluent_kafka.TopicPartition(filled, 1, confluent_kafka.OFFSET_END),
    ]
    done = broker.admin.client.delete_records(asked)
    assert {one.partition: future.result(20).low_watermark for one, future in done.items()} == {
        0: 40,
        1: ROWS,
    }
    assert bounds(broker, filled, 0) == (40, ROWS)
    assert bounds(broker, filled, 1) == (ROWS, ROWS)
    rows = [row for row in make_rows(2 * ROWS, 2) if row.partition == 0]
    for client in CLIENTS:
        assert digest(client.read(broker.bootstrap, filled, 0, 40, ROWS)) == digest(rows[40:])


def test_kafka_python_deletes_records(broker: Broker, filled: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.delete_records({kafka.TopicPartition(filled, 0): 17})
        assert bounds(broker, filled) == (17, ROWS)
    finally:
        admin.close()


def test_aiokafka_deletes_records(broker: Broker, filled: str) -> None:
    async def delete() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            where = aiokafka.TopicPartition(filled, 0)
            await admin.delete_records({where: aiokafka.admin.RecordsToDelete(before_offset=23)})
        finally:
            await admin.close()

    asyncio.run(delete())
    assert bounds(broker, filled) == (23, ROWS)


def test_deleting_records_beyond_the_end_is_refused(broker: Broker, filled: str) -> None:
    for offset in (ROWS + 1, 1 << 40):
        where = confluent_kafka.TopicPartition(filled, 0, offset)
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            broker.admin.client.delete_records([where])[where].result(20)
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE
    assert bounds(broker, filled) == (0, ROWS)


def test_records_of_both_tiers_are_deleted(broker: Broker, new_topic: NewTopic) -> None:
    broker.need_tiers()
    topic = new_topic(1, remote_storage_enable="true", segment_bytes="1048576")
    rows = make_rows(4000, 1)
    CLIENTS[0].produce(broker.bootstrap, topic, rows)
    border = broker.settle(topic, 0)
    for offset in (border // 2, border + 10):
        where = confluent_kafka.TopicPartition(topic, 0, offset)
        deleted = broker.admin.client.delete_records([where])[where].result(20)
        assert deleted.low_watermark == offset
        assert bounds(broker, topic) == (offset, 4000)
        for client in CLIENTS:
            found = client.read(broker.bootstrap, topic, 0, offset, 4000)
            assert digest(found) == digest(rows[offset:])


@pytest.mark.java
def test_kafka_delete_records(broker: Broker, filled: str, tmp_path: Path) -> None:
    asked = tmp_path / "offsets.json"

    def ask(*offsets: int) -> str:
        listed = [{"topic": filled, "partition": n, "offset": offset} for n, offset in enumerate(offsets)]
        asked.write_text(json.dumps({"version": 1, "partitions": listed}))
        done = run_tool("delete-records", "--bootstrap-server", broker.bootstrap, "--offset-json-file", asked)
        return (done.stdout + done.stderr).decode()

    assert f"partition: {filled}-0\tlow_watermark: 100" in ask(100, -1)
    assert (bounds(broker, filled, 0), bounds(broker, filled, 1)) == ((100, ROWS), (ROWS, ROWS))
    assert "OffsetOutOfRangeException" in ask(ROWS + 1)


def test_confluent_has_a_topic_grow(broker: Broker, filled: str) -> None:
    new = confluent_admin.NewPartitions(filled, 5)
    broker.admin.client.create_partitions([new], validate_only=True)[filled].result(20)
    assert broker.admin.topics()[filled] == 2
    broker.admin.client.create_partitions([new])[filled].result(20)
    wait_until("the topic to have grown", lambda: broker.admin.topics()[filled] == 5)
    rows = [row._replace(partition=4) for row in make_rows(20, 1)]
    for number, client in enumerate(CLIENTS):
        client.produce(broker.bootstrap, filled, rows)
        assert digest(client.read(broker.bootstrap, filled, 4, 20 * number, 20 * number + 20)) == digest(rows)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        broker.admin.client.create_partitions([confluent_admin.NewPartitions(filled, 3)])[filled].result(20)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS


def test_kafka_python_and_aiokafka_have_a_topic_grow(broker: Broker, filled: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_partitions({filled: kafka.admin.NewPartitions(3)})
    finally:
        admin.close()
    wait_until("the topic to have grown", lambda: broker.admin.topics()[filled] == 3)

    async def grow() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_partitions({filled: aiokafka.admin.NewPartitions(total_count=4)})
        finally:
            await admin.close()

    asyncio.run(grow())
    wait_until("the topic to have grown", lambda: broker.admin.topics()[filled] == 4)


def test_a_consumer_finds_partitions_that_come_while_it_runs(broker: Broker, filled: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    try:
        assert len(consumer.list_topics(filled, 20).topics[filled].partitions) == 2
        new = confluent_admin.NewPartitions(filled, 3)
        broker.admin.client.create_partitions([new])[filled].result(20)
        wait_until(
            "the consumer to see it",
            lambda: len(consumer.list_topics(filled, 20).topics[filled].partitions) == 3,
        )
    finally:
        consumer.close()


@pytest.mark.java
def test_kafka_topics_has_a_topic_grow(broker: Broker, filled: str) -> None:
    at = ("--bootstrap-server", broker.bootstrap, "--topic", filled)
    tool("topics", *at, "--alter", "--partitions", "6")
    assert "PartitionCount: 6" in tool("topics", *at, "--describe")
    for arguments, words in (
        (("--partitions", "6"), b"Topic already has 6 partition(s)."),
        (("--partitions", "2"), b"would not be an increase"),
        (("--partitions", "7", "--replica-assignment", "1,1,1,1,1,1,77"), b"broker 77"),
    ):
        refused = run_tool("topics", *at, "--alter", *arguments)
        assert refused.returncode != 0
        assert words in refused.stdout + refused.stderr
