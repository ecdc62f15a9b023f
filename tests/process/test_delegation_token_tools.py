"""Kafka's `kafka-delegation-tokens`, and Java's clients with a token, on a node of ours and on Kafka's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import FIRN, wait_until
from tests.support.requirements import need_kafka_tools
from tests.support.secured_firn import secured_firn
from tests.support.secured_kafka import make_pem, secured_kafka

pytestmark = pytest.mark.java
KEY = {"delegation.token.secret.key": "key of all nodes"}
MODULES = "org.apache.kafka.common.security"


class Peer:
    """A node, and files of client properties: alice's, and of a token."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.alice = self.properties(
            "alice", "PLAIN", f'{MODULES}.plain.PlainLoginModule required username="alice" password="secret";'
        )

    def properties(self, name: str, mechanism: str, jaas: str) -> Path:
        path = self.folder / f"{name}.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        )
        return path

    def of_token(self, token_id: str, hmac: str, mechanism: str = "SCRAM-SHA-256") -> Path:
        login = f'username="{token_id}" password="{hmac}" tokenauth="true"'
        jaas = f"{MODULES}.scram.ScramLoginModule required {login};"
        return self.properties(f"token-{token_id}-{mechanism}", mechanism, jaas)

    def tokens(self, *arguments: str, config: Path | None = None) -> str:
        """What the tool prints, on both outputs."""
        where = ("--bootstrap-server", self.address, "--command-config", config or self.alice)
        done = run_tool("delegation-tokens", *where, *arguments)
        return (done.stdout + done.stderr).decode()

    def create(self, *arguments: str) -> tuple[str, str]:
        """Id and HMAC of a new token."""
        said = self.tokens("--create", "--max-life-time-period", "-1", *arguments)
        row = said.strip().splitlines()[-1].split()
        return row[0], row[1]


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    need_kafka_tools()
    folder = tmp_path_factory.mktemp("firn")
    with secured_firn(folder / "node", KEY) as node:
        yield Peer(node.addresses["SASL_PLAINTEXT"], folder)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    need_kafka_tools()
    folder = tmp_path_factory.mktemp("kafka")
    with secured_kafka(folder / "kafka", make_pem(folder), KEY) as node:
        yield Peer(node.addresses["SASL_PLAINTEXT"], folder)


def plain(text: str) -> str:
    """The text without ids, HMACs, times and what Java says of its threads."""
    text = re.sub(r"[A-Za-z0-9+/]{86}==", "HMAC", text)
    text = re.sub(r"\b[A-Za-z0-9_-]{22}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d", "TIME", text)
    return re.sub(r" +", " ", text)


def test_java_writes_and_reads_with_a_token(firn: Peer) -> None:
    made, hmac = firn.create("--renewer-principal", "User:bob")
    config = firn.of_token(made, hmac)
    at = ("--bootstrap-server", firn.address, "--topic", "t", "--command-config")
    tool("console-producer", *at, config, stdin=b"by a token\n")
    other = firn.of_token(made, hmac, "SCRAM-SHA-512")
    said = tool("console-consumer", *at, other, "--from-beginning", "--max-messages", "1")
    assert said == "by a token\n"


@pytest.mark.thorough
def test_commands_log_in_with_a_token_until_it_is_ended(firn: Peer) -> None:
    made, hmac = firn.create()
    config = firn.of_token(made, hmac)
    command: list[str | Path] = [
        FIRN,
        "topic",
        "list",
        "--bootstrap-server",
        firn.address,
        "--command-config",
        config,
    ]
    listed = subprocess.run(command, capture_output=True, check=True, text=True)
    assert listed.returncode == 0
    refused = firn.tokens("--describe", config=config)
    assert "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels" in refused
    firn.tokens("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    again = run_tool("topics", "--bootstrap-server", firn.address, "--list", "--command-config", config)
    assert again.returncode
    assert (
        b"Authentication failed during authentication due to invalid credentials"
        in again.stdout + again.stderr
    )


def session(peer: Peer) -> list[list[str]]:
    """What the tool says step by step; tokens have no order."""
    first = peer.tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    made, hmac = peer.create()
    of_alice = ("--owner-principal", "User:alice")
    wait_until("the token to be known", lambda: made in peer.tokens("--describe", *of_alice))
    said = (
        ("--describe",),
        ("--describe", *of_alice),
        ("--describe", "--owner-principal", "User:bob"),
        ("--renew", "--renew-time-period", "60000", "--hmac", hmac),
        ("--renew", "--renew-time-period", "-1", "--hmac", "bm9uZQ=="),
        ("--expire", "--expiry-time-period", "60000", "--hmac", hmac),
        ("--create", "--max-life-time-period", "-1", "--renewer-principal", "Group:g"),
        ("--create", "--max-life-time-period", "-1", "--owner-principal", "User:bob"),
        ("--expire", "--expiry-time-period", "-1", "--hmac", hmac),
    )
    texts = [first, *(peer.tokens(*one) for one in said)]
    return [sorted(plain(one).splitlines()) for one in texts]


@pytest.mark.thorough
def test_the_tool_says_of_our_node_what_it_says_of_kafkas(firn: Peer, kafka: Peer) -> None:
    assert session(firn) == session(kafka)
