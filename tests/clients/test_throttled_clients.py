"""Real clients under quotas: they wait as they are told, lose nothing, and get their rate.

A rate is measured over `FIRN_TEST_QUOTA_SECONDS`, 66 by default: by Kafka's average, a client that sends all
it may does so in bursts, one each time that all eleven windows have passed. So the measurement is six of
these turns; one that ends right after a burst, such as 60 seconds, has 1.1 of the limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import confluent_kafka
import kafka
import pytest
from confluent_kafka import admin as confluent_admin

from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.clients.conftest import Broker, NewTopic
from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.wire import end_offset

SECONDS = float(os.environ.get("FIRN_TEST_QUOTA_SECONDS", "66"))
RATE = 500_000
RECORD = os.urandom(10_000)
MOST_UNANSWERED = 200


@contextmanager
def quota(broker: Broker, client_id: str, **values: float) -> Iterator[None]:
    """Quotas of a client id; gone at the end."""
    module = request_module(ApiKey.ALTER_CLIENT_QUOTAS)
    entity = (module.EntityData(entity_type="client-id", entity_name=client_id),)
    host, _, port = broker.bootstrap.partition(",")[0].rpartition(":")

    def alter(remove: bool) -> None:
        ops = tuple(module.OpData(key=key, value=value, remove=remove) for key, value in values.items())
        message = module.AlterClientQuotasRequest(
            entries=(module.EntryData(entity=entity, ops=ops),), validate_only=False
        )
        with BlockingClient(host, int(port), "quota-setter", timeout_s=20) as client:
            assert client.request(ApiKey.ALTER_CLIENT_QUOTAS, message).entries[0].error_code == 0

    alter(remove=False)
    try:
        yield
    finally:
        alter(remove=True)


def _confluent_producer(
    broker: Broker, topic: str, client_id: str, seconds: float, batch_records: int = 10
) -> int:
    acknowledged = 0

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += time.monotonic() < until

    settings = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": client_id,
        "batch.size": 200_000,
        "batch.num.messages": batch_records,
        "queue.buffering.max.kbytes": 2_000,
        "message.timeout.ms": 120_000,
    }
    producer = confluent_kafka.Producer(settings)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            producer.produce(topic, RECORD, partition=0, on_delivery=delivered)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(60) == 0
    return acknowledged * len(RECORD)


def _python_producer(broker: Broker, topic: str, client_id: str, seconds: float) -> int:
    sent = answered = acknowledged = 0

    def delivered(_: object) -> None:
        nonlocal acknowledged, answered
        answered += 1
        acknowledged += time.monotonic() < until

    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        client_id=client_id,
        batch_size=100_000,
        max_block_ms=120_000,
        delivery_timeout_ms=180_000,
    )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if sent - answered < MOST_UNANSWERED:
            producer.send(topic, RECORD, partition=0).add_callback(delivered)
            sent += 1
        else:
            time.sleep(0.005)
    producer.flush(60)
    producer.close()
    assert answered == sent
    return acknowledged * len(RECORD)


def _java_producer(broker: Broker, topic: str, client_id: str, seconds: float) -> int:
    count = int(RATE * (seconds + 20) / len(RECORD))
    settings = (f"client.id={client_id}", "buffer.memory=2000000", "batch.size=100000", "max.block.ms=60000")
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(
            run_tool, "producer-perf", "--bootstrap-server", broker.bootstrap, "--topic", topic,
            "--num-records", str(count), "--record-size", str(len(RECORD)), "--throughput", "-1",
            "--command-property", *settings, seconds=seconds + 120,
        )  # fmt: skip
        wait_until("its first record", lambda: end_offset(broker.bootstrap, topic, 0) > 0, 60)
        time.sleep(seconds)
        size = end_offset(broker.bootstrap, topic, 0) * len(RECORD)
        result = done.result()
    out = result.stdout.decode() + result.stderr.decode()
    assert result.returncode == 0, out
    assert f"{count} records sent" in out
    return size


def _confluent_consumer(broker: Broker, topic: str, client_id: str, seconds: float) -> int:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": client_id,
        "group.id": client_id,
        "fetch.message.max.bytes": 200_000,
        "queued.max.messages.kbytes": 1_000,
    }
    consumer, size = confluent_kafka.Consumer(settings), 0
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for message in consumer.consume(100, 0.1):
            assert message.error() is None
            size += len(message.value())
    consumer.close()
    return size


def _python_consumer(broker: Broker, topic: str, client_id: str, seconds: float) -> int:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        client_id=client_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=200_000,
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    until, size = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for records in consumer.poll(100).values():
            size += sum(len(one.value) for one in records)
    consumer.close()
    return size


PRODUCERS = {"confluent": _confluent_producer, "kafka-python": _python_producer, "Java": _java_producer}
CONSUMERS = {"confluent": _confluent_consumer, "kafka-python": _python_consumer}
Client = Callable[[Broker, str, str, float], int]


@pytest.mark.thorough
@pytest.mark.parametrize("client", [*list(PRODUCERS)[:2], pytest.param("Java", marks=pytest.mark.java)])
def test_a_producer_gets_its_rate(broker: Broker, new_topic: NewTopic, client: str) -> None:
    topic = new_topic()
    with quota(broker, f"producer-{client}", producer_byte_rate=RATE):
        size = PRODUCERS[client](broker, topic, f"producer-{client}", SECONDS)
    print(f"{client}: {size / SECONDS / RATE:.3f} of the rate over {SECONDS:.0f} s")
    assert size / SECONDS == pytest.approx(RATE, rel=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("client", CONSUMERS)
def test_a_consumer_gets_its_rate(broker: Broker, new_topic: NewTopic, client: str) -> None:
    topic = new_topic()
    filled = 0
    while filled < RATE * (SECONDS + 20):
        # What is fetched of a batch that is cut at the end counts, and is of no use to the client.
        filled += _confluent_producer(broker, topic, "fills", 0.5, batch_records=1)
    with quota(broker, f"consumer-{client}", consumer_byte_rate=RATE):
        size = CONSUMERS[client](broker, topic, f"consumer-{client}", SECONDS)
    print(f"{client}: {size / SECONDS / RATE:.3f} of the rate over {SECONDS:.0f} s")
    assert size / SECONDS == pytest.approx(RATE, rel=0.1)


@pytest.mark.thorough
def test_an_admin_gets_its_rate_of_mutations(broker: Broker, new_topic: NewTopic) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "mutates"})
    prefix, created = new_topic(), 0
    with quota(broker, "mutates", controller_mutation_rate=1.0):
        # The first seconds use up what the bucket holds at the begin.
        for seconds in (12.0, SECONDS):
            until, created = time.monotonic() + seconds, 0
            while time.monotonic() < until:
                name = f"{prefix}-{time.monotonic_ns()}"
                try:
                    admin.create_topics([confluent_admin.NewTopic(name, 2, 1)])[name].result(30)
                    created += 2
                except confluent_kafka.KafkaException as e:
                    if e.args[0].code() != confluent_kafka.KafkaError.THROTTLING_QUOTA_EXCEEDED:
                        raise
                    time.sleep(0.05)
    print(f"mutations: {created / SECONDS:.3f} of the rate over {SECONDS:.0f} s")
    assert created / SECONDS == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("client", ["confluent", pytest.param("kafka-python", marks=pytest.mark.thorough)])
def test_a_throttled_producer_loses_nothing(broker: Broker, new_topic: NewTopic, client: str) -> None:
    topic = new_topic()
    with quota(broker, f"waits-{client}", producer_byte_rate=100_000.0):
        began = time.monotonic()
        produced = PRODUCERS[client](broker, topic, f"waits-{client}", 2.0)
        took_s = time.monotonic() - began
    assert produced > 0
    assert took_s > 2
    consumed = CONSUMERS["confluent"](broker, topic, "reads all", 3.0)
    assert consumed >= produced
