"""Stores of a running node's listener that are altered: taken at once, or refused with the reason."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from service.client.blocking_client import BlockingClient
from service.client.security import Security, tls_context
from tests.node.conftest import NodeThread, Talk
from tests.node.test_topics_and_configs import alter, described
from tests.support.certificates import Authority, Issued
from tests.support.processes import free_port, wait_until

CA = Authority()
KEY = "listener.name.ssl.ssl.keystore.location"
BROKER = 4


def shown(node: NodeThread) -> bytes | None:
    """The certificate that the SSL listener shows to a new connection."""
    (port,) = [one.port for one in node.node.parts.listening if one.listener == "SSL"]
    context = ssl.create_default_context(cadata=CA.pem)
    with (
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as conn,
    ):
        return conn.getpeercert(binary_form=True)


def der(issued: Issued) -> bytes:
    return ssl.PEM_cert_to_DER_cert(issued.pem)


@pytest.fixture
def node(start: Callable[..., NodeThread], tmp_path: Path) -> NodeThread:
    return start(
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=CA.issue("node").write(tmp_path / "first.pem"),
    )


def test_a_store_that_can_be_used_is_used_at_once(node: NodeThread, tmp_path: Path) -> None:
    new = CA.issue("node")
    path = new.write(tmp_path / "second.pem")
    with node.client() as client:
        talk = Talk(client)
        assert alter(talk, "1", (KEY, 0, path), kind=BROKER).error_code == 0
        wait_until("the new certificate", lambda: shown(node) == der(new), 5)
        assert described(talk, "1", KEY, kind=BROKER) == {KEY: path}
        newer = CA.issue("node")
        newer.write(tmp_path / "second.pem")
        assert alter(talk, "1", (KEY, 0, path), kind=BROKER).error_code == 0, "the same again"
        wait_until("the newest certificate", lambda: shown(node) == der(newer), 5)


def test_a_controller_takes_stores_by_the_id_of_its_node(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    port = free_port()
    node = start(
        process_roles="controller",
        node_id="3000",
        listeners=f"SSL://127.0.0.1:{port}",
        controller_listener_names="SSL",
        controller_quorum_voters=f"3000@127.0.0.1:{port}",
        ssl_keystore_location=CA.issue("node").write(tmp_path / "first.pem"),
        ssl_truststore_location=CA.write(tmp_path / "ca.pem"),
    )
    new = CA.issue("node")
    path = new.write(tmp_path / "second.pem")
    trusting = Security(tls_context(str(tmp_path / "ca.pem")))
    with BlockingClient("127.0.0.1", port, "test", timeout_s=20, security=trusting) as client:
        talk = Talk(client)
        assert alter(talk, "3000", (KEY, 0, path), kind=BROKER).error_code == 0
        wait_until("the new certificate", lambda: shown(node) == der(new), 5)
        newer = CA.issue("node")
        newer.write(tmp_path / "second.pem")
        assert alter(talk, "3000", (KEY, 0, path), kind=BROKER).error_code == 0, "the same again"
        wait_until("the newest certificate", lambda: shown(node) == der(newer), 5)
        assert alter(talk, "3001", (KEY, 0, path), kind=BROKER).error_message == "No node with id 3001 found."
        assert alter(talk, "3000", (KEY, 0, "/nowhere"), kind=BROKER).error_code == 0
        tls = node.node.parts.tls
        assert tls is not None
        wait_until("the reason", lambda: "No such file" in tls.problems.get("SSL", ""), 5)
        assert shown(node) == der(newer)
    node.stop()
    assert node.failure is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nowhere.pem", "No such file"), ("other.pem", "ssl.allow.dn.changes"), ("half.pem", "does not end")],
)
def test_a_store_that_cannot_be_used_is_refused(
    node: NodeThread, tmp_path: Path, name: str, reason: str
) -> None:
    CA.issue("another").write(tmp_path / "other.pem")
    whole = CA.issue("node")
    (tmp_path / "half.pem").write_text((whole.key_pem() + whole.pem)[:-50])
    before = shown(node)
    with node.client() as client:
        talk = Talk(client)
        answer = alter(talk, "1", (KEY, 0, str(tmp_path / name)), kind=BROKER)
        assert answer.error_code == 42  # INVALID_REQUEST, as Kafka's
        assert reason in answer.error_message
        assert KEY not in described(talk, "1", KEY, kind=BROKER)
    assert shown(node) == before


def test_an_altered_store_is_in_effect_after_a_restart(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    new = CA.issue("node")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl_keystore_location": CA.issue("node").write(tmp_path / "first.pem"),
        "log_dirs": str(tmp_path / "data"),
    }
    first = start(**settings)
    with first.client() as client:
        altered = alter(Talk(client), "1", (KEY, 0, new.write(tmp_path / "second.pem")), kind=BROKER)
        assert altered.error_code == 0
    first.stop()
    assert shown(start(**settings)) == der(new)
