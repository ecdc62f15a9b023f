"""Ordinary clients log in at Firn and at Apache Kafka 4.3.1: the same words, the same exceptions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support.requirements import need_kafka_tools
from tests.support.secured_firn import SecuredFirn, secured_firn
from tests.support.secured_kafka import LOGINS, make_pem, secured_kafka

pytestmark = pytest.mark.java
TOPIC = "logins"


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredFirn]:
    with secured_firn(tmp_path_factory.mktemp("firn") / "node") as node:
        yield node


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Kafka's listener."""
    need_kafka_tools()
    pem = make_pem(tmp_path_factory.mktemp("pem"))
    with secured_kafka(tmp_path_factory.mktemp("kafka") / "kafka", pem, {}) as node:
        yield node.addresses["SASL_PLAINTEXT"]


def by_confluent(address: str, mechanism: str, user: str, password: str) -> str:
    """One record there and back; or librdkafka's own words of why not."""
    errors: list[str] = []

    def failed(error: confluent_kafka.KafkaError) -> None:
        errors.append(f"{error.name()}: {_plain(error.str())}")

    common = {
        "bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.username": user, "sasl.password": password, "error_cb": failed, "log_level": 0,
    }  # fmt: skip
    producer = confluent_kafka.Producer({**common, "message.timeout.ms": 4000})
    delivered: list[object] = []
    producer.produce(TOPIC, b"value", partition=0, on_delivery=lambda e, m: delivered.append(e or m))
    while not delivered and not any("AUTHENTICATION" in one for one in errors):
        producer.poll(0.1)
    if not delivered or isinstance(delivered[0], confluent_kafka.KafkaError):
        return next((one for one in errors if "AUTHENTICATION" in one), str(errors))
    consumer = confluent_kafka.Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    return "none" if message is None else str(message.value())


def by_aiokafka(address: str, mechanism: str, user: str, password: str) -> str:
    common = {
        "bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
        "sasl_plain_username": user, "sasl_plain_password": password,
    }  # fmt: skip

    async def there_and_back() -> str:
        producer = aiokafka.AIOKafkaProducer(**common)
        try:
            await producer.start()
            await producer.send_and_wait(TOPIC, b"value", partition=0)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(**common, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
            return str((await consumer.getone()).value)
        finally:
            await consumer.stop()

    try:
        return asyncio.run(asyncio.wait_for(there_and_back(), 20))
    except Exception as e:
        return f"{type(e).__name__}: {_plain(str(e))}"


def by_kafka_python(address: str, mechanism: str, user: str, password: str) -> str:
    common = {
        "bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
        "sasl_plain_username": user, "sasl_plain_password": password,
        "bootstrap_timeout_ms": 1500,
    }  # fmt: skip
    try:
        producer = kafka.KafkaProducer(**common, max_block_ms=4000)
        producer.send(TOPIC, b"value", partition=0).get(10)
        producer.close()
        consumer = kafka.KafkaConsumer(**common, auto_offset_reset="earliest", consumer_timeout_ms=10_000)
        consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        value = str(next(consumer).value)
        consumer.close()
        return value
    except Exception as e:
        return f"{type(e).__name__}: {_plain(str(e))}"


def _plain(text: str) -> str:
    """The text without ports, times and names of threads."""
    text = re.sub(r"127\.0\.0\.1:[0-9]+", "HOST", text)
    text = re.sub(r"\(after [0-9]+ms[^)]*\)", "(after)", text)
    return re.sub(r"0x[0-9a-f]+|node_id=\S+|[0-9]+\.[0-9]+|[0-9]{4,5}", "N", text)


CLIENTS = {"confluent-kafka": by_confluent, "aiokafka": by_aiokafka, "kafka-python": by_kafka_python}
Client = Callable[[str, str, str, str], str]


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(("mechanism", "user", "password"), LOGINS)
def test_a_record_goes_there_and_back(
    firn: SecuredFirn, name: str, mechanism: str, user: str, password: str
) -> None:
    assert CLIENTS[name](firn.addresses["SASL_PLAINTEXT"], mechanism, user, password) == "b'value'"


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("PLAIN", "alice", "wrong"),
        ("PLAIN", "nobody", "secret"),
        ("SCRAM-SHA-256", "bob", "wrong"),
        ("SCRAM-SHA-512", "bob", "wrong"),
        ("SCRAM-SHA-256", "nobody", "pencil"),
    ],
)
def test_a_refused_login_is_told_as_kafka_tells_it(
    firn: SecuredFirn, peer: str, name: str, mechanism: str, user: str, password: str
) -> None:
    found = CLIENTS[name](firn.addresses["SASL_PLAINTEXT"], mechanism, user, password)
    assert found == CLIENTS[name](peer, mechanism, user, password)
    assert found != "b'value'"
