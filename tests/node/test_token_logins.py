"""Logins with tokens at a whole node: who gets in, renewal with a newer token, issuers that are away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import SystemClock
from service.base.disk import SystemDisk
from service.base.errors import ConfigError
from service.base.world import system_world
from service.client.blocking_client import BlockingClient
from service.client.security import Security
from service.client.tokens import BearerCredentials, FileToken, IssuerToken
from service.health.readiness import HealthState
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread
from tests.support.issuers import (
    ALLOWED,
    MODULE,
    IssuerServer,
    document,
    issuer_server,
    key_file,
    key_set,
    settings_of,
    token_of,
)
from tests.support.processes import wait_until

LISTENER = {
    "listeners": "IN://127.0.0.1:0",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "super.users": "User:alice",
    "connection.failed.authentication.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
ACLS = request_module(ApiKey.DESCRIBE_ACLS)
Start = Callable[..., NodeThread]


def node_of(folder: Path, settings: dict[str, Any]) -> NodeThread:
    return NodeThread(folder, system_world(), **settings)  # tokens are of today


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[NodeThread] = []

    def run(url: str, **more: str) -> NodeThread:
        settings = {**LISTENER, **settings_of(url, "in"), ALLOWED: url, **more}
        nodes.append(node_of(tmp_path / "data", settings))
        return nodes[-1].start()

    yield run
    for node in nodes:
        node.stop()


def log_in(node: NodeThread, token: str | Callable[[], str], **extensions: str) -> BlockingClient:
    fetch = token if callable(token) else lambda: token
    security = Security(None, BearerCredentials(fetch, extensions))
    return BlockingClient(node.host, node.port, "test", security=security, timeout_s=20)


def may(client: BlockingClient) -> bool:
    """Whether the client may see the ACLs, as alice may."""
    request = ACLS.DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    return bool(client.request(ApiKey.DESCRIBE_ACLS, request).error_code == 0)


def tokens_check(node: NodeThread) -> Any:
    return next(one for one in node.node.parts.health(0).checks if one.what == "tokens")


def refused(node: NodeThread, token: str) -> str:
    with pytest.raises(ConfigError) as raised:
        log_in(node, token)
    assert token not in str(raised.value)
    return str(raised.value)


def test_the_owner_of_a_token_is_the_principal(start: Start, tmp_path: Path) -> None:
    node = start(key_file(tmp_path, "one"))
    wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)
    for name in ("alice", "bob"):
        with log_in(node, token_of(name), logicalCluster="lkc") as client:
            assert may(client) == (name == "alice")


def test_bad_tokens_are_refused_as_kafka_refuses_them(start: Start, tmp_path: Path) -> None:
    node = start(key_file(tmp_path, "one"))
    wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)
    for token in (
        token_of("alice", life_s=-31),
        token_of("alice", "two"),
        token_of("alice", aud="x"),
        "x.y.z",
    ):
        assert refused(node, token).endswith(': {"status":"invalid_token"}')
    metrics = node.node.parts.network.logins_of("IN")
    assert (metrics.succeeded, metrics.failed) == (0, 4)


def test_a_session_ends_with_its_token_and_goes_on_with_a_newer_one(start: Start, tmp_path: Path) -> None:
    node = start(key_file(tmp_path, "one"))
    path = tmp_path / "token"
    wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)
    path.write_text(token_of("alice", life_s=2) + "\n")
    with log_in(node, FileToken(str(path), SystemDisk())) as client:
        assert 0 < client._session.lifetime_ms <= 2000
        path.write_text(token_of("alice", life_s=3600))
        metrics = node.node.parts.network.logins_of("IN")
        wait_until("a renewal", lambda: may(client) and metrics.succeeded_again == 1)
        assert client._session.lifetime_ms > 3_000_000
        assert metrics.succeeded == 1


def test_a_session_cannot_be_renewed_as_somebody_else(start: Start, tmp_path: Path) -> None:
    node = start(key_file(tmp_path, "one"))
    wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)
    tokens = [token_of("alice", life_s=2), token_of("bob")]
    words = r"Cannot change principals during re-authentication from User\.alice: User\.bob"
    with log_in(node, lambda: tokens.pop(0)) as client, pytest.raises(ConfigError, match=words):
        wait_until("a renewal", lambda: not may(client))


def test_while_the_issuer_is_away_clients_try_again_and_health_says_why(start: Start) -> None:
    with issuer_server(document(b"", 503)) as server:
        node = start(server.url)
        wait_until("a try", lambda: "status 503" in tokens_check(node).why)
        assert tokens_check(node).state is HealthState.DEGRADED
        with pytest.raises(ConnectionResetError):  # an answer would say that the token is wrong
            log_in(node, token_of("alice"))
        server.answer = document(key_set("one"))
        wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)
        with log_in(node, token_of("alice")) as client:
            assert may(client)


def test_a_flood_of_made_up_key_ids_asks_the_issuer_once_and_delays_nobody(start: Start) -> None:
    with issuer_server(document(key_set("one"))) as server:
        node = start(server.url)
        wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)
        head, body, signature = token_of("alice").split(".")
        del head
        began = time.monotonic()
        for number in range(100):
            kid = token_of("alice", f"made-up-{number % 3}").split(".")[0]
            refused(node, f"{kid}.{body}.{signature}")
        assert server.asked <= 2
        with log_in(node, token_of("alice")) as client:
            assert may(client)
        assert time.monotonic() - began < 60


def test_a_client_gets_its_token_from_an_issuer(start: Start, tmp_path: Path) -> None:
    node = start(key_file(tmp_path, "one"))
    wait_until("the keys", lambda: tokens_check(node).state is HealthState.OK)

    def give(server: IssuerServer) -> None:
        source = IssuerToken(server.url, "client", "geheim", "kafka", SystemClock())
        for _ in range(2):
            with log_in(node, source) as client:
                assert may(client)
        assert server.forms == [b"grant_type=client_credentials&scope=kafka"], "the token is used again"

    with issuer_server(document(b"")) as server:
        answer = json.dumps({"access_token": token_of("alice"), "expires_in": 60})
        server.answer = document(answer.encode())
        give(server)


def test_tokens_without_signatures_need_an_option_that_says_so(start: Start, tmp_path: Path) -> None:
    own = "listener.name.in.oauthbearer."
    plain = {**LISTENER, f"{own}sasl.jaas.config": f"{MODULE} required;"}
    with pytest.raises(ConfigError, match="let everybody in under any name"):
        node_of(tmp_path / "first", plain).start()
    plain[f"{own}sasl.jaas.config"] = f'{MODULE} required unsecuredValidatorPrincipalClaimName="sub";'
    node = node_of(tmp_path / "second", plain).start()
    try:
        head, body, _ = token_of("alice").split(".")
        del head
        with log_in(node, f"eyJhbGciOiJub25lIn0.{body}.") as client:
            assert may(client)
        assert "invalid_token" in refused(node, token_of("alice"))
    finally:
        node.stop()


def test_without_joserfc_a_node_says_what_to_install(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "joserfc.jws", None)
    with pytest.raises(ConfigError, match=r"its extra \[security\]"):
        start(key_file(tmp_path, "one"))
