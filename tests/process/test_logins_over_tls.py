"""Logins over TLS: records, renewed sessions, a wrong password, a changed one."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from service.base.errors import ConfigError
from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security, tls_context
from tests.support.processes import FIRN
from tests.support.secured_firn import SecuredFirn, secured_firn
from tests.support.secured_kafka import LOGINS, make_pem

LIFETIME_MS = 1500


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pem(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[SecuredFirn]:
    settings = {"connections.max.reauth.ms": str(LIFETIME_MS)}
    with secured_firn(tmp_path_factory.mktemp("firn") / "node", settings, pem) as running:
        yield running


def client(node: SecuredFirn, pem: Path, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.addresses["SASL_SSL"], "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password,
        "ssl.ca.location": str(pem / "cert.pem"),
    }  # fmt: skip


def connect(node: SecuredFirn, pem: Path, mechanism: str, user: str, password: str) -> BlockingClient:
    host, _, port = node.addresses["SASL_SSL"].rpartition(":")
    login = Credentials(mechanism, user, password, secrets.token_urlsafe)
    return BlockingClient(host, int(port), security=Security(tls_context(str(pem / "cert.pem")), login))


@pytest.mark.parametrize(("mechanism", "user", "password"), LOGINS)
def test_a_producer_goes_on_beyond_the_end_of_its_session(
    node: SecuredFirn, pem: Path, mechanism: str, user: str, password: str
) -> None:
    failed: list[object] = []
    lost: list[object] = []
    producer = confluent_kafka.Producer(
        {**client(node, pem, mechanism, user, password), "error_cb": lost.append}
    )
    for _ in range(8):
        producer.produce("t", b"value", on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(20) == 0
        time.sleep(LIFETIME_MS / 4000)
    assert failed == [None] * 8
    assert not lost, "no connection was closed for the end of its session"


@pytest.mark.parametrize(("mechanism", "user", "password"), LOGINS)
def test_our_client_logs_in_and_is_refused_by_name(
    node: SecuredFirn, pem: Path, mechanism: str, user: str, password: str
) -> None:
    with connect(node, pem, mechanism, user, password) as made:
        assert made.serves(3)
    with pytest.raises(ConfigError, match=f"refuses the login of {user}"):
        connect(node, pem, mechanism, user, "wrong")


def test_a_command_logs_in_over_tls(node: SecuredFirn, pem: Path, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    given = client(node, pem, "SCRAM-SHA-512", "bob", "pencil")
    config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    command = [str(FIRN), "topic", "list", "--bootstrap-server", given["bootstrap.servers"]]
    told = subprocess.run(
        [*command, "--command-config", str(config)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr


def test_a_changed_password_counts_at_once_and_ends_no_session(node: SecuredFirn, pem: Path) -> None:
    admin = AdminClient(client(node, pem, "PLAIN", "alice", "secret"))

    def change(password: bytes) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        for done in admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("carol", info, password)]
        ).values():
            done.result(20)

    change(b"first")
    with connect(node, pem, "SCRAM-SHA-256", "carol", "first") as before:
        change(b"second")
        assert before.serves(3)
        with pytest.raises(ConfigError):
            connect(node, pem, "SCRAM-SHA-256", "carol", "first")
        connect(node, pem, "SCRAM-SHA-256", "carol", "second").close()
