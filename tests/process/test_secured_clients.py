"""Our blocking and asyncio clients against Apache Kafka's listeners of TLS and SASL."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.client.blocking_client import BlockingClient
from service.client.node_channel import Channel, ChannelOptions, PeerFailed, was_sent
from service.client.security import Credentials, Security, tls_context
from service.wire.api import ApiKey, request_module
from tests.support.kafka_node import KafkaNode
from tests.support.peers import Address
from tests.support.requirements import need_kafka_tools
from tests.support.secured_kafka import LOGINS, make_pem, secured_kafka

pytestmark = pytest.mark.java
CLUSTER = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
    include_cluster_authorized_operations=False, include_fenced_brokers=False
)
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pem(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[KafkaNode]:
    need_kafka_tools()
    with secured_kafka(tmp_path_factory.mktemp("kafka") / "kafka", pem, {}) as node:
        yield node


def blocking(address: str, security: Security) -> Any:
    host, _, port = address.rpartition(":")
    with BlockingClient(host, int(port), security=security, timeout_s=20) as client:
        return client.request(ApiKey.DESCRIBE_CLUSTER, CLUSTER, newest=1).cluster_id


def asynchronous(address: str, security: Security) -> Any:
    host, _, port = address.rpartition(":")

    async def ask() -> Any:
        channel = Channel(Address(host, int(port)), ChannelOptions(security=security))
        try:
            answers = await asyncio.gather(
                *(channel.call(ApiKey.DESCRIBE_CLUSTER, 1, CLUSTER, timeout_ms=20_000) for _ in range(20))
            )
            return {one.cluster_id for one in answers}.pop()
        finally:
            await channel.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [blocking, asynchronous])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(("mechanism", "username", "password"), LOGINS)
def test_clients_log_in(
    kafka: KafkaNode, pem: Path, ask: Any, protocol: str, mechanism: str, username: str, password: str
) -> None:
    tls = tls_context(str(pem / "cert.pem")) if protocol == "SASL_SSL" else None
    address = kafka.addresses[protocol]
    assert (
        ask(address, Security(tls, Credentials(mechanism, username, password, secrets.token_urlsafe)))
        == CLUSTER_ID
    )
    wrong = Credentials(mechanism, username, "wrong", secrets.token_urlsafe)
    with pytest.raises((ConfigError, PeerFailed), match=f"refuses the login of {username}") as refused:
        ask(address, Security(tls, wrong))
    assert "wrong" not in str(refused.value) + repr(wrong)
    assert not isinstance(refused.value, OSError) or not was_sent(refused.value)


@pytest.mark.parametrize("ask", [blocking, asynchronous])
def test_both_sides_prove_themselves_by_certificates(kafka: KafkaNode, pem: Path, ask: Any) -> None:
    address, own = kafka.addresses["SSL"], (str(pem / "cert.pem"), str(pem / "key.pem"))
    assert ask(address, Security(tls_context(str(pem / "cert.pem"), *own))) == CLUSTER_ID
    with pytest.raises((ConfigError, OSError), match="self-signed certificate"):
        ask(address, Security(tls_context(None, *own)))
    name = "localhost:" + address.rpartition(":")[2]
    with pytest.raises((ConfigError, OSError), match="Hostname mismatch"):
        ask(name, Security(tls_context(str(pem / "cert.pem"), *own)))
    unchecked = tls_context(str(pem / "cert.pem"), *own, checks_hostname=False)
    assert ask(name, Security(unchecked)) == CLUSTER_ID
    with pytest.raises((ConfigError, OSError)):
        ask(address, Security(tls_context(str(pem / "cert.pem"))))


@pytest.mark.parametrize("ask", [blocking, asynchronous])
def test_a_login_to_a_listener_without_one_is_refused(kafka: KafkaNode, ask: Any) -> None:
    with pytest.raises((ConfigError, OSError)):
        ask(kafka.bootstrap, Security(None, Credentials("PLAIN", "alice", "secret", secrets.token_urlsafe)))
