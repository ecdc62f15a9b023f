"""`firn acl`, `user` and `quota` leave the same behind as kafka-acls and kafka-configs, and see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from service.client.access_requests import AclQuery, describe_acls, describe_quotas, describe_users
from service.client.admin import Cluster
from tests.support.kafka_tools import tool
from tests.support.processes import Node
from tests.support.requirements import need_kafka_tools

pytestmark = [pytest.mark.java, pytest.mark.thorough]
CLOSED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ACLS = [
    "--allow-principal User:{} --producer --topic orders --transactional-id tx --idempotent",
    "--allow-principal User:{} --consumer --topic o- --group r- --resource-pattern-type prefixed",
    "--allow-principal User:{} --producer --consumer --topic both --group g --allow-host 192.0.2.1",
    "--allow-principal User:{} --deny-principal User:{}-not --operation DescribeConfigs --operation Alter "
    "--topic t --cluster",
    "--deny-principal User:{} --deny-host 192.0.2.7 --group *",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    need_kafka_tools()
    found = Node(tmp_path_factory.mktemp("node"), CLOSED)
    try:
        yield found.start()
    finally:
        found.close()


def firn(node: Node, *words: str) -> None:
    assert main([*words, "--bootstrap-server", node.bootstrap]) == 0


def acls(node: Node, user: str) -> set[tuple[Any, ...]]:
    """Everything that is said about a user, and about one whose name begins so, without the name."""
    with Cluster(node.bootstrap) as cluster:
        found = describe_acls(cluster, AclQuery())
    return {
        tuple(one._replace(principal=one.principal.removeprefix(f"User:{user}")))
        for one in found
        if one.principal.startswith(f"User:{user}")
    }


@pytest.mark.parametrize("line", ACLS, ids=["producer", "consumer", "both", "operations", "denied"])
def test_acls_are_those_of_kafka_acls(
    node: Node, line: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    name = request.node.callspec.id
    ours, theirs = (line.replace("{}", f"{name}-{whose}").split() for whose in ("firn", "kafka"))
    firn(node, "acl", "add", *ours)
    tool("acls", "--bootstrap-server", node.bootstrap, "--add", *theirs)
    found = acls(node, f"{name}-firn")
    assert found
    assert acls(node, f"{name}-kafka") == found
    tool("acls", "--bootstrap-server", node.bootstrap, "--remove", "--force", *ours)
    firn(node, "acl", "remove", *theirs)
    assert (acls(node, f"{name}-firn"), acls(node, f"{name}-kafka")) == (set(), set())


def configs(node: Node, *words: str) -> None:
    tool("configs", "--bootstrap-server", node.bootstrap, "--alter", *words)


def test_users_are_those_of_kafka_configs(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "password").write_text("secret\n")
    password = ("--password", f"@{tmp_path / 'password'}")
    mechanisms = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    firn(node, "user", "add", "ours", *password, *mechanisms)
    theirs = ("--entity-type", "users", "--entity-name", "theirs")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        configs(node, *theirs, "--add-config", f"{mechanism}=[password=secret]")
    with Cluster(node.bootstrap) as cluster:
        found = [tuple(one) for one in describe_users(cluster)]
    assert found == [("ours", 1, 4096), ("ours", 2, 4096), ("theirs", 1, 4096), ("theirs", 2, 4096)]
    told = tool(
        "configs", "--bootstrap-server", node.bootstrap, "--describe", "--entity-type", "users",
        "--entity-name", "ours",
    )  # fmt: skip
    assert "SCRAM-SHA-512=iterations=4096" in told
    firn(node, "user", "remove", "theirs")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        configs(node, "--entity-type", "users", "--entity-name", "ours", "--delete-config", mechanism)
    with Cluster(node.bootstrap) as cluster:
        assert describe_users(cluster) == []


def test_quotas_are_those_of_kafka_configs(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    entities = [
        (("--user", "{}"), ("--entity-type", "users", "--entity-name", "{}")),
        (
            ("--user", "{}", "--default-client"),
            ("--entity-type", "users", "--entity-name", "{}", "--entity-type", "clients", "--entity-default"),
        ),
        (("--client", "{}"), ("--entity-type", "clients", "--entity-name", "{}")),
    ]
    for ours, theirs in entities:
        words = [one.replace("{}", "ours") for one in ours]
        firn(node, "quota", "set", "producer_byte_rate=1024", "request_percentage=12.5", *words)
        given = ("--add-config", "producer_byte_rate=1024,request_percentage=12.5")
        configs(node, *(one.replace("{}", "theirs") for one in theirs), *given)
    firn(node, "quota", "set", "connection_creation_rate=7", "--ip", "192.0.2.1")
    configs(
        node,
        "--entity-type",
        "ips",
        "--entity-name",
        "192.0.2.2",
        "--add-config",
        "connection_creation_rate=7",
    )

    def rows(user: str, address: str) -> list[str]:
        with Cluster(node.bootstrap) as cluster:
            found = json.dumps([dict(one.parts) | one.values for one in describe_quotas(cluster, {})])
        return [row for row in map(json.dumps, json.loads(found)) if user in row or address in row]

    found = rows("ours", "192.0.2.1")
    assert len(found) == 4
    others = [one.replace("theirs", "ours") for one in rows("theirs", "192.0.2.2")]
    assert [one.replace("192.0.2.2", "192.0.2.1") for one in others] == found
    told = tool(
        "configs", "--bootstrap-server", node.bootstrap, "--describe", "--entity-type", "users",
        "--entity-name", "ours",
    )  # fmt: skip
    assert "producer_byte_rate=1024.0" in told
    firn(node, "quota", "remove", "--user", "theirs")
    configs(
        node, "--entity-type", "users", "--entity-name", "ours",
        "--delete-config", "producer_byte_rate,request_percentage",
    )  # fmt: skip
    assert len(rows("ours", "192.0.2.1")) == len(rows("theirs", "192.0.2.2")) == 3
