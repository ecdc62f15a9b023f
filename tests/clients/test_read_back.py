"""Records are read back as produced, by checksum per partition, from either tier and by each client."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.support.clients import CLIENTS, CODECS, Client, Row, by_partition, digest, make_rows

PARTITIONS = 2
ROWS = 9000


@dataclass(frozen=True)
class Written:
    """A topic and, per partition, what lies in it."""

    topic: str
    rows: dict[int, list[Row]]


@pytest.fixture(scope="module", params=CODECS)
def written(request: pytest.FixtureRequest, broker: Broker) -> Written:
    """A tiered topic of a few segments, all of them still on the broker; each client has written a third."""
    broker.need_tiers()
    codec = request.param
    topic = f"read-back-{codec}-{os.getpid()}"
    broker.admin.create(
        topic,
        PARTITIONS,
        remote_storage_enable="true",
        segment_bytes="1048576",
        local_retention_bytes="-1",
        local_retention_ms="-1",
    )
    rows = make_rows(ROWS, PARTITIONS, seed=CODECS.index(codec))
    third = ROWS // len(CLIENTS)
    for number, client in enumerate(CLIENTS):
        client.produce(broker.bootstrap, topic, rows[number * third : (number + 1) * third], codec)
    return Written(topic, by_partition(rows))


@pytest.fixture(scope="module")
def borders(broker: Broker, written: Written) -> dict[int, int]:
    """The same topic after its local copies went: partition -> first local offset."""
    return {partition: broker.settle(written.topic, partition) for partition in range(PARTITIONS)}


def _agree(client: Client, broker: Broker, written: Written, partition: int, start: int, end: int) -> None:
    found = client.read(broker.bootstrap, written.topic, partition, start, end)
    assert digest(found) == digest(written.rows[partition][start:end])


# Order matters below: the module's topic is read hot before `borders` lets its local copies go.
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_hot_range_is_read_as_it_was_produced(client: Client, broker: Broker, written: Written) -> None:
    for partition, rows in written.rows.items():
        _agree(client, broker, written, partition, 0, len(rows))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_range_across_the_border_is_read_as_it_was_produced(
    client: Client, broker: Broker, written: Written, borders: dict[int, int]
) -> None:
    for partition, rows in written.rows.items():
        _agree(client, broker, written, partition, 0, len(rows))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_cold_range_from_within_a_batch_is_read_as_it_was_produced(
    client: Client, broker: Broker, written: Written, borders: dict[int, int]
) -> None:
    for partition, border in borders.items():
        _agree(client, broker, written, partition, border // 3 + 1, border)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_records_left_on_the_broker_are_read_as_produced(
    client: Client, broker: Broker, written: Written, borders: dict[int, int]
) -> None:
    for partition, border in borders.items():
        _agree(client, broker, written, partition, border, len(written.rows[partition]))


def test_all_of_it_is_still_there_after_a_restart(
    broker: Broker, written: Written, borders: dict[int, int]
) -> None:
    broker.need_restart()()
    for partition, rows in written.rows.items():
        _agree(CLIENTS[0], broker, written, partition, 0, len(rows))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_reads_what_every_codec_wrote_in_an_ordinary_topic(
    client: Client, codec: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    rows = make_rows(600, 3)
    client.produce(bootstrap, topic, rows, codec)
    for partition, expected in by_partition(rows).items():
        for reader in CLIENTS:
            assert digest(reader.read(bootstrap, topic, partition, 0, len(expected))) == digest(expected)


def test_one_consumer_reads_many_partitions_of_many_topics(bootstrap: str, new_topic: NewTopic) -> None:
    import confluent_kafka

    topics = [new_topic(count) for count in (150, 40, 7, 1)]
    expected: dict[tuple[str, int], list[Row]] = {}
    for topic, count in zip(topics, (150, 40, 7, 1), strict=True):
        rows = make_rows(count * 20, count, value_bytes=100)
        CLIENTS[0].produce(bootstrap, topic, rows, "lz4")
        expected |= {(topic, partition): found for partition, found in by_partition(rows).items()}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    found: dict[tuple[str, int], list[bytes | None]] = {where: [] for where in expected}
    left = sum(map(len, expected.values()))
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for topic, partition in expected]
        )
        for _ in range(600):
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                found[message.topic(), message.partition()].append(message.value())
                left -= 1
            if left <= 0:
                break
    finally:
        consumer.close()
    assert found == {where: [row.value for row in rows] for where, rows in expected.items()}
