"""Apache Kafka with its StandardAuthorizer gives the answers of the table that a node of ours gives."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from tests.node.conftest import Talk
from tests.support.acl_requests import Asker
from tests.support.acl_table import CASES
from tests.support.kafka_node import KafkaNode
from tests.support.requirements import need_kafka_tools

pytestmark = pytest.mark.java
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    """The node and its administrator are anonymous, on PLAINTEXT; alice logs in by PLAIN."""
    need_kafka_tools()
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="secret";',
        "group.initial.rebalance.delay.ms": "0",
    }
    kafka = KafkaNode(tmp_path / "kafka", settings, heap="512m", secured=("SASL_PLAINTEXT",))
    try:
        with ExitStack() as stack:
            host, port = kafka.bootstrap.split(":")
            admin = Talk(stack.enter_context(BlockingClient(host, int(port), timeout_s=30)))
            login = Security(None, Credentials("PLAIN", "alice", "secret", secrets.token_urlsafe))
            host, port = kafka.addresses["SASL_PLAINTEXT"].split(":")
            alice = Talk(stack.enter_context(BlockingClient(host, int(port), timeout_s=30, security=login)))
            asker = Asker(admin, alice, settle_s=0.1)
            asker.wait_for_groups()
            yield asker
    finally:
        kafka.stop()


def test_kafka_asks_what_the_table_says(asker: Asker) -> None:
    found = {case.name: tuple(asker.run(case)) for case in CASES}
    assert found == {case.name: case.expected for case in CASES}
