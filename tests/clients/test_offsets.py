"""Offsets by time and by name, over one log that lies in two tiers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.support.clients import CLIENTS, EPOCH_MS, Row, make_rows
from tests.support.kafka_tools import tool

ROWS = 4000
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -2,
    -1,
    -3,
    -4,
    -5,
    -6,
)


@dataclass(frozen=True)
class Settled:
    topic: str
    rows: list[Row]
    border: int


@pytest.fixture(scope="module")
def settled(broker: Broker) -> Settled:
    """One partition; the timestamp of offset n is EPOCH_MS + n."""
    broker.need_tiers()
    topic = f"offsets-{os.getpid()}"
    broker.admin.create(topic, 1, remote_storage_enable="true", segment_bytes="1048576")
    rows = make_rows(ROWS, 1)
    CLIENTS[0].produce(broker.bootstrap, topic, rows)
    return Settled(topic, rows, broker.settle(topic, 0))


def _moments(settled: Settled) -> dict[int, int | None]:
    """Timestamp -> the offset of the first record not before it."""
    border = settled.border
    offsets = (0, 1, border // 2, border - 1, border, border + 1, ROWS - 1)
    return {EPOCH_MS - 5: 0, EPOCH_MS + ROWS: None} | {EPOCH_MS + offset: offset for offset in offsets}


def test_confluent_finds_offsets_by_time_in_both_tiers(broker: Broker, settled: Settled) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    try:
        for timestamp, offset in _moments(settled).items():
            asked = confluent_kafka.TopicPartition(settled.topic, 0, timestamp)
            (found,) = consumer.offsets_for_times([asked], timeout=20)
            assert found.offset == (confluent_kafka.OFFSET_END if offset is None else offset)
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(settled.topic, 0), 20) == (
            0,
            ROWS,
        )
    finally:
        consumer.close()


def test_kafka_python_finds_offsets_by_time_in_both_tiers(broker: Broker, settled: Settled) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    where = kafka.TopicPartition(settled.topic, 0)
    try:
        for timestamp, offset in _moments(settled).items():
            found = consumer.offsets_for_times({where: timestamp})[where]
            assert (found.offset if found is not None else None) == offset
            if found is not None and offset is not None:
                assert found.timestamp == settled.rows[offset].timestamp
        assert consumer.beginning_offsets([where])[where] == 0
        assert consumer.end_offsets([where])[where] == ROWS
    finally:
        consumer.close()


def test_aiokafka_finds_offsets_by_time_in_both_tiers(broker: Broker, settled: Settled) -> None:
    async def ask() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
        await consumer.start()
        where = aiokafka.TopicPartition(settled.topic, 0)
        try:
            for timestamp, offset in _moments(settled).items():
                found = (await consumer.offsets_for_times({where: timestamp}))[where]
                assert (found.offset if found is not None else None) == offset
            assert (await consumer.end_offsets([where]))[where] == ROWS
        finally:
            await consumer.stop()

    asyncio.run(ask())


def test_reading_before_the_start_and_after_the_end_is_out_of_range(broker: Broker, settled: Settled) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(settled.topic, 0, ROWS + 1)])
        message = next(found for _ in range(100) for found in consumer.consume(1, 0.2))
        assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    finally:
        consumer.close()


@pytest.mark.java
@pytest.mark.parametrize(
    ("time", "first", "second"),
    [("-1", 3, 0), ("-2", 0, 0), ("-3", 2, None), ("-4", 0, 0), ("-5", None, None), ("-6", None, None)],
)
def test_get_offsets_of_a_topic_in_one_tier(
    time: str, first: int | None, second: int | None, bootstrap: str, new_topic: NewTopic
) -> None:
    """Three records and none: what there is no offset of is left out."""
    topic = new_topic(2)
    CLIENTS[0].produce(bootstrap, topic, [row._replace(partition=0) for row in make_rows(3, 1)])
    found = tool("get-offsets", "--bootstrap-server", bootstrap, "--topic", topic, "--time", time)
    expected = [f"{topic}:{n}:{at}" for n, at in enumerate((first, second)) if at is not None]
    assert found.split() == expected


@pytest.mark.java
@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("earliest", lambda settled: 0),
        ("latest", lambda settled: ROWS),
        ("max-timestamp", lambda settled: ROWS - 1),
        ("earliest-local", lambda settled: settled.border),
        ("latest-tiered", lambda settled: settled.border - 1),
        (str(LATEST), lambda settled: ROWS),
        (str(EARLIEST), lambda settled: 0),
        (str(MAX_TIMESTAMP), lambda settled: ROWS - 1),
        (str(EARLIEST_LOCAL), lambda settled: settled.border),
        (str(LATEST_TIERED), lambda settled: settled.border - 1),
        (str(EARLIEST_PENDING_UPLOAD), lambda settled: settled.border),
        (str(EPOCH_MS + 17), lambda settled: 17),
        (str(EPOCH_MS + ROWS - 2), lambda settled: ROWS - 2),
    ],
)
def test_get_offsets_names_every_border(
    time: str, expected: object, broker: Broker, settled: Settled
) -> None:
    assert callable(expected)
    found = tool(
        "get-offsets", "--bootstrap-server", broker.bootstrap, "--topic", settled.topic, "--time", time
    )
    assert found.strip() == f"{settled.topic}:0:{expected(settled)}"
