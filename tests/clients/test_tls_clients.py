"""Ordinary clients over SSL, with certificates of their own and without, against a node that they start."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.certificates import Authority, Issued
from tests.support.kafka_tools import tool
from tests.support.processes import Node, free_port, wait_until
from tests.support.requirements import need_kafka_tools

VALUES = [f"value {at}".encode() * 50 for at in range(2000)]
"""about a megabyte"""


PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}


@dataclass(frozen=True)
class Secured:
    """A node with listeners SSL (certificates requested), MTLS (required) and SASL_SSL."""

    node: Node
    ports: dict[str, int]
    folder: Path
    ca: Authority
    client: Issued

    def bootstrap(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"

    def librdkafka(self, listener: str) -> dict[str, Any]:
        own = {}
        if listener == "MTLS":
            own = {"ssl.certificate.pem": self.client.chain_pem, "ssl.key.pem": self.client.key_pem()}
        if listener == "SASL_SSL":
            own = {**LOGIN, "security.protocol": "SASL_SSL"}
        return {
            "bootstrap.servers": self.bootstrap(listener),
            "security.protocol": "SSL",
            "ssl.ca.pem": self.ca.pem,
            **own,
        }

    def context(self, listener: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.pem)
        if listener == "MTLS":
            context.load_cert_chain(str(self.folder / "client.pem"))
        return context

    def java(self, listener: str) -> Path:
        """A file of properties for Kafka's tools."""
        lines = ["security.protocol=SSL", "ssl.truststore.type=PEM"]
        lines.append(f"ssl.truststore.location={self.folder / 'ca.pem'}")
        if listener == "MTLS":
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={self.folder / 'client.pem'}"]
        path = self.folder / f"{listener}.properties"
        path.write_text("\n".join(lines) + "\n")
        return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, ca = tmp_path_factory.mktemp("tls"), Authority()
    client = ca.issue("alice", hosts=())
    client.write(folder / "client.pem")
    ca.write(folder / "ca.pem")
    ports = {"SSL": free_port(), "MTLS": free_port(), "SASL_SSL": free_port()}
    node = Node(folder)
    node.settings |= {
        "listeners": ",".join(
            (
                f"PLAINTEXT://localhost:{node.port}",
                *(f"{name}://localhost:{at}" for name, at in ports.items()),
            )
        ),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN,
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": ca.issue().write(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.client.auth": "requested",
        "listener.name.mtls.ssl.client.auth": "required",
    }
    node.start()
    try:
        yield Secured(node, ports, folder, ca, client)
    finally:
        node.stop()


LISTENERS = pytest.mark.parametrize("listener", ["SSL", "MTLS"])


def make_topic(secured: Secured, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": secured.node.bootstrap.replace("127.0.0.1", "localhost")})
    for done in admin.create_topics([NewTopic(name, 1, 1)]).values():
        done.result(20)
    return name


@pytest.mark.parametrize("listener", ["SSL", "MTLS", "SASL_SSL"])
def test_librdkafka_writes_and_reads(secured: Secured, listener: str) -> None:
    topic = make_topic(secured, f"librdkafka-{listener}")
    settings = secured.librdkafka(listener)
    producer = Producer({**settings, "linger.ms": 5})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        for message in consumer.consume(500, 20):
            assert message.error() is None
            found.append(message.value())
    consumer.close()
    assert found == VALUES


@LISTENERS
def test_aiokafka_writes_and_reads(secured: Secured, listener: str) -> None:
    topic = make_topic(secured, f"aiokafka-{listener}")
    common = {
        "bootstrap_servers": secured.bootstrap(listener),
        "security_protocol": "SSL",
        "ssl_context": secured.context(listener),
    }

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(**common) as producer:
            for value in VALUES:
                await producer.send(topic, value)
            await producer.flush()
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **common) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == VALUES


@LISTENERS
def test_kafka_python_writes_and_reads(secured: Secured, listener: str) -> None:
    topic = make_topic(secured, f"kafka-python-{listener}")
    common = {
        "bootstrap_servers": secured.bootstrap(listener),
        "security_protocol": "SSL",
        "ssl_context": secured.context(listener),
    }
    producer = kafka.KafkaProducer(**common)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, group_id=None, **common
    )
    found = [next(consumer).value for _ in VALUES]
    consumer.close()
    assert found == VALUES


@pytest.mark.java
@LISTENERS
def test_kafkas_console_tools_write_and_read(secured: Secured, listener: str) -> None:
    need_kafka_tools()
    topic = make_topic(secured, f"java-{listener}")
    config = str(secured.java(listener))
    server = ["--bootstrap-server", secured.bootstrap(listener), "--topic", topic]
    lines = "".join(f"{at}\n" for at in range(500)).encode()
    tool("console-producer", *server, "--command-config", config, stdin=lines)
    read = tool(
        "console-consumer", *server, "--command-config", config, "--from-beginning",
        "--max-messages", "500", "--timeout-ms", "20000",
    )  # fmt: skip
    assert read.split() == [str(at) for at in range(500)]


def librdkafka_error(settings: dict[str, Any]) -> str:
    """What librdkafka says of a connection that is not made."""
    errors: list[str] = []
    quiet = {"reconnect.backoff.ms": 1000, "log_level": 0, "error_cb": lambda e: errors.append(e.str())}
    admin = AdminClient({**settings, **quiet})
    wait_until("an error of the connection", lambda: admin.poll(0.1) >= 0 and errors)
    return errors[0]


def test_wrong_ones_are_refused(secured: Secured) -> None:
    settings = secured.librdkafka("MTLS")
    other = Authority("Other CA")
    assert "certificate verify failed" in librdkafka_error({**settings, "ssl.ca.pem": other.pem})
    stranger = other.issue("alice", hosts=())
    wrong = {"ssl.certificate.pem": stranger.chain_pem, "ssl.key.pem": stranger.key_pem()}
    assert "alert unknown ca" in librdkafka_error({**settings, **wrong}).lower()
    expired = secured.ca.issue("alice", hosts=(), days=-0.1)
    wrong = {"ssl.certificate.pem": expired.chain_pem, "ssl.key.pem": expired.key_pem()}
    assert "alert certificate expired" in librdkafka_error({**settings, **wrong}).lower()
    bare = {**settings, "bootstrap.servers": secured.bootstrap("MTLS")}
    for name in wrong:
        del bare[name]
    assert "certificate required" in librdkafka_error(bare).lower()
