"""The secured cluster that terraform renders: formed, closed, rolled, and its certificate renewed."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from infra.boot.firn_boot.secret_files import FILES, HOME, step_secrets
from infra.roll.firn_roll import rolling
from infra.roll.firn_roll.rolling import Options, roll
from service.cli.dev_nodes import HOST
from tests.infra.test_formed import BROKERS, TOPIC, Home, World, Writer, at_home, rendered
from tests.support.certificates import Authority, Issued
from tests.support.processes import FIRN, wait_until
from tests.support.stores import CREDENTIALS, moto_server

pytestmark = pytest.mark.timeout(600)
PASSWORD = "of-the-admin"
CA = Authority()


def node_certificate(authority: Authority = CA) -> Issued:
    return authority.issue("firn-node", hosts=(HOST, "*.firn.internal"))


class Vault:
    """Secrets Manager, with the four secrets."""

    def __init__(self, endpoint: str) -> None:
        self._client: Any = boto3.client("secretsmanager", endpoint_url=endpoint, region_name="eu-central-1")
        node = node_certificate()
        values = {
            "node": node.key_pem() + node.chain_pem,
            "ca": CA.pem,
            "admin": PASSWORD,
            "super_users": "User:admin;User:CN=firn-node",
        }
        self.arns = {
            name: str(self._client.create_secret(Name=f"firn/{name}", SecretString=text)["ARN"])
            for name, text in values.items()
        }

    def renew(self, name: str, text: str) -> None:
        self._client.put_secret_value(SecretId=self.arns[name], SecretString=text)


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    with moto_server(tmp_path) as endpoint:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        yield Vault(endpoint)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vault: Vault) -> Iterator[World]:
    monkeypatch.setattr(rolling, "POLL_S", 0.3)
    (tmp_path / "store").mkdir()
    (tmp_path / "world").mkdir()
    documents = rendered(tmp_path / "terraform", vault.arns)
    for document in documents.values():
        document["properties"]["firn.ssl.reload.interval.ms"] = "500"
    made = World(tmp_path / "world", at_home(documents, tmp_path / "store"))
    try:
        yield made
    finally:
        for member in made.members.values():
            if member.is_running:
                member.kill()


def login(world: World, **more: str) -> dict[str, str]:
    (world.environment / "ca.pem").write_text(CA.pem)
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(world.environment / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": PASSWORD,
        **more,
    }


def admin(world: World, **more: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": world.bootstrap, **login(world, **more)})


def refused(settings: Mapping[str, str]) -> None:
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=4)


def shown(port: int) -> str:
    """The certificate that a listener shows, as PEM."""
    context = ssl.create_default_context(cadata=CA.pem)
    with (
        socket.create_connection((HOST, port), 10) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as peer,
    ):
        return ssl.DER_cert_to_PEM_cert(peer.getpeercert(binary_form=True) or b"")


def is_closed(port: int) -> bool:
    """Return whether a peer without a certificate gets no answer to ApiVersions."""
    context = ssl.create_default_context(cadata=CA.pem)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), 10) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as peer,
    ):
        peer.sendall(bytes.fromhex("0000000a00120000000000010000"))
        return peer.recv(1) == b""
    return True


@pytest.mark.thorough
def test_the_secured_cluster_that_terraform_renders_is_formed_closed_and_rolled(
    world: World, vault: Vault
) -> None:
    for name in world.documents:
        world.boot(name)
    for name in world.documents:
        world.ready(name)
    wait_until("the cluster to lack nothing", lambda: not world.lacks(), 90)

    # The admin that was made with the cluster logs in, and may do everything.
    client = admin(world)
    client.create_topics([NewTopic(TOPIC, 6, -1)])[TOPIC].result(30)
    # A command on a machine goes by the file that is there.
    config = world.root("1") / HOME / "client.properties"
    describe = [str(FIRN), "cluster", "describe", "--bootstrap-server", world.bootstrap]
    command = [*describe, "--command-config", str(config)]

    def describes() -> bool:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0

    wait_until("the cluster, with its keeper, to be described as whole", describes, 60)

    nobody_else_comes_in(world)
    writer = Writer(world.bootstrap, **{key.replace(".", "_"): one for key, one in login(world).items()})
    wait_until("records", lambda: len(writer.taken) > 100)
    roll(world, Options(settle_s=1, patience_s=120))
    assert set(world.numbers.values()) == {1}
    after = len(writer.taken)
    wait_until("records after it", lambda: len(writer.taken) > after + 100)

    # A renewed certificate is fetched and shown; no node was restarted for it.
    runs = {name: member.process for name, member in world.members.items()}
    new = node_certificate()
    vault.renew("node", new.key_pem() + new.chain_pem)
    for name, document in world.documents.items():
        step_secrets(Home(world.root(name)), document)
    port = world.documents["1"].nodes[0].port
    wait_until("the new certificate", lambda: shown(port) == new.pem, 30)
    after = len(writer.taken)
    wait_until("records after that", lambda: len(writer.taken) > after + 100)
    writer.close()
    assert writer.refused == []
    assert {name: member.process for name, member in world.members.items()} == runs
    wait_until("nothing to lack at the end", lambda: not world.lacks(), 60)
    secrets_are_in_their_folder_alone(world)


def nobody_else_comes_in(world: World) -> None:
    """Without TLS, with a wrong password, without a certificate."""
    refused({"bootstrap.servers": world.bootstrap})
    refused({"bootstrap.servers": world.bootstrap, **login(world, **{"sasl.password": "another"})})
    nodes = {name: document.nodes[0] for name, document in world.documents.items()}
    internal = [port for name in BROKERS if (port := nodes[name].internal_port) is not None]
    assert len(internal) == 3
    for port in (*internal, nodes["c1"].port):
        assert is_closed(port)


def secrets_are_in_their_folder_alone(world: World) -> None:
    for name in world.documents:
        home = world.root(name) / HOME
        assert {path.name for path in home.iterdir()} == {*FILES.values(), "client.properties"}
        assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}
        texts = [
            path.read_bytes()
            for path in world.root(name).rglob("*")
            if path.is_file() and home not in path.parents
        ]
        assert not [one for one in texts if PASSWORD.encode() in one or b"PRIVATE KEY" in one]
