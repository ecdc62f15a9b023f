"""Clients whose certificates are wrong hear the same of Firn as of Apache Kafka.

But for the number of the alert, which each library of TLS chooses: OpenSSL says more than Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.certificates import Authority, Issued
from tests.support.kafka_node import KafkaNode
from tests.support.processes import Node, free_port, wait_until
from tests.support.requirements import need_kafka_tools

pytestmark = pytest.mark.java
CA, OTHER = Authority(), Authority("Other CA")


@pytest.fixture(scope="module")
def bootstraps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Address of a listener that requires certificates, of Firn and of Kafka."""
    need_kafka_tools()
    folder = tmp_path_factory.mktemp("tls")
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": CA.issue().write(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": CA.write(folder / "ca.pem"),
        "ssl.client.auth": "required",
    }
    (folder / "firn").mkdir()
    node, port = Node(folder / "firn"), free_port()
    node.settings |= {**settings, "listeners": f"PLAINTEXT://127.0.0.1:{node.port},SSL://127.0.0.1:{port}"}
    node.start()
    kafka = KafkaNode(folder / "kafka", settings, heap="512m", secured=("SSL",))
    try:
        yield {"firn": f"127.0.0.1:{port}", "kafka": kafka.addresses["SSL"]}
    finally:
        kafka.stop()
        node.stop()


CLIENTS: dict[str, tuple[Authority, Issued | None]] = {
    "of another authority": (CA, OTHER.issue("alice", hosts=())),
    "expired": (CA, CA.issue("alice", hosts=(), days=-0.1)),
    "not yet valid": (CA, CA.issue("alice", hosts=(), starts_in_days=1)),
    "without one": (CA, None),
    "that trusts another authority": (OTHER, CA.issue("alice", hosts=())),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_is_refused_in_the_same_way_by_both(bootstraps: dict[str, str], kind: str) -> None:
    trusted, own = CLIENTS[kind]
    told = {name: first_error(address, trusted, own) for name, address in bootstraps.items()}
    assert told["firn"] == told["kafka"]


def first_error(address: str, trusted: Authority, own: Issued | None) -> tuple[int, str]:
    """Code and reason of librdkafka's first error."""
    errors: list[Any] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.pem": trusted.pem,
        "reconnect.backoff.ms": 1000,
        "log_level": 0,
        "error_cb": errors.append,
    }
    if own is not None:
        settings |= {"ssl.certificate.pem": own.chain_pem, "ssl.key.pem": own.key_pem()}
    admin = AdminClient(settings)
    wait_until("an error of the connection", lambda: admin.poll(0.1) >= 0 and errors)
    text = re.sub(r"^.*?:\d+/bootstrap: |\(after.*", "", errors[0].str())
    return errors[0].code(), re.sub(r"error:\w+:SSL routines::.* alert number \d+", "alert", text).strip()


def test_a_client_with_the_right_certificate_is_served_by_both(
    bootstraps: dict[str, str], tmp_path: Path
) -> None:
    own = CA.issue("alice", hosts=())
    for address in bootstraps.values():
        admin = AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "SSL",
                "ssl.ca.pem": CA.pem,
                "ssl.certificate.pem": own.chain_pem,
                "ssl.key.pem": own.key_pem(),
            }
        )
        assert admin.list_topics(timeout=20).brokers
