"""Kafka's `kafka-acls` against nodes with an authorizer: one that is alone, and a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import Node, wait_until
from tests.support.quorums import Cluster
from tests.support.requirements import need_kafka_tools

pytestmark = pytest.mark.java
CLOSED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Acls:
    """`kafka-acls` against one or several brokers."""

    def __init__(self, bootstrap: str) -> None:
        self.at = ("--bootstrap-server", bootstrap)

    def __call__(self, *arguments: str) -> str:
        return tool("acls", *self.at, *arguments)

    def listed(self, *arguments: str) -> str:
        return self("--list", *arguments)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acls]:
    need_kafka_tools()
    node = Node(tmp_path_factory.mktemp("alone"), CLOSED)
    try:
        yield Acls(node.start().bootstrap)
    finally:
        node.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acls]:
    need_kafka_tools()
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=CLOSED) as nodes:
        nodes.start(seconds=120)
        yield Acls(nodes.bootstrap)


@pytest.mark.parametrize("where", ["alone", pytest.param("cluster", marks=pytest.mark.thorough)])
def test_kafka_acls_adds_lists_and_removes(where: str, request: pytest.FixtureRequest) -> None:
    acls: Acls = request.getfixturevalue(where)
    acls("--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
    acls(
        *("--add", "--deny-principal", "User:*", "--deny-host", "192.0.2.7", "--operation", "All"),
        *("--group", "app-", "--resource-pattern-type", "prefixed"),
    )
    acls("--add", "--allow-principal", "User:CN=node,O=firn", "--operation", "ClusterAction", "--cluster")
    wait_until("the last of them to be known", lambda: "CN=node,O=firn" in acls.listed())
    said = acls.listed()
    for words in (
        "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)",
        "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)",
        "ResourcePattern(resourceType=GROUP, name=app-, patternType=PREFIXED)",
        "(principal=User:*, host=192.0.2.7, operation=ALL, permissionType=DENY)",
        "ResourcePattern(resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL)",
        "(principal=User:CN=node,O=firn, host=*, operation=CLUSTER_ACTION, permissionType=ALLOW)",
    ):
        assert words in said
    assert "name=app-" in acls.listed("--group", "app-7", "--resource-pattern-type", "match")
    assert "name=app-" not in acls.listed("--group", "app-7")
    assert "orders" not in acls.listed("--principal", "User:bob")
    acls(
        *("--remove", "--force", "--deny-principal", "User:*", "--deny-host", "192.0.2.7"),
        *("--operation", "All", "--group", "app-", "--resource-pattern-type", "prefixed"),
    )
    acls("--remove", "--force", "--topic", "orders")
    acls("--remove", "--force", "--cluster")
    wait_until("all of them to be gone", lambda: acls.listed().strip() == "")


@pytest.mark.parametrize(
    ("principal", "words"),
    [
        ("alice", "Could not parse principal from `alice`"),
        ("User:alice", "The only valid name for the CLUSTER"),
    ],
)
def test_confluent_is_told_why_an_entry_is_refused(alone: Acls, principal: str, words: str) -> None:
    admin = AdminClient({"bootstrap.servers": alone.at[1]})
    kind = ResourceType.TOPIC if principal == "alice" else ResourceType.BROKER
    entry = AclBinding(
        kind, "n", ResourcePatternType.LITERAL, principal, "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    (refused,) = admin.create_acls([entry]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(20)
    error = caught.value.args[0]
    assert error.code() == KafkaError.INVALID_REQUEST
    assert words in error.str()


def test_kafka_acls_says_that_there_is_no_authorizer(tmp_path: Path) -> None:
    need_kafka_tools()
    node = Node(tmp_path)
    try:
        refused = run_tool("acls", "--bootstrap-server", node.start().bootstrap, "--list")
        assert b"No Authorizer is configured on the broker" in refused.stdout + refused.stderr
    finally:
        node.close()
