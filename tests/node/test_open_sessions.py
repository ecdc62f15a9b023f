"""ListSessions and EndSessions on a whole node: who is told, who is closed out, and who gets in again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError
from service.client.admin import ChangingCluster
from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.client.session_requests import end_sessions, find_sessions
from service.security.scram import salted_password
from service.serving.handlers import end_sessions as handler
from service.wire.api import ApiKey, request_module
from service.wire.sessions import EndSessionsRequest, ListSessionsRequest
from tests.node.conftest import NodeThread
from tests.support.login_frames import message, sized
from tests.support.processes import wait_until

Start = Callable[..., NodeThread]
_MODULES = "org.apache.kafka.common.security"
_JAAS = "listener.name.plaintext.{}.sasl.jaas.config"
SECURED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    _JAAS.format("plain"): f"{_MODULES}.plain.PlainLoginModule required "
    'user_admin="of admin" user_alice="of alice" user_eve="of eve";',
    _JAAS.format("scram-sha-256"): f"{_MODULES}.scram.ScramLoginModule required;",
}
CLOSED = SECURED | {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
CLUSTER = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
    include_cluster_authorized_operations=False, include_fenced_brokers=False
)


def login(user: str, password: str | None = None, mechanism: str = "PLAIN") -> Security:
    return Security(None, Credentials(mechanism, user, password or f"of {user}", lambda: "nonce"))


def client(node: NodeThread, user: str, *more: str) -> BlockingClient:
    return BlockingClient(
        node.host, node.port, f"client of {user}", timeout_s=20, security=login(user, *more)
    )


@contextmanager
def admin(node: NodeThread) -> Iterator[ChangingCluster]:
    with ChangingCluster(f"{node.host}:{node.port}", security=login("admin")) as cluster:
        yield cluster


def is_served(one: BlockingClient) -> bool:
    try:
        one.request(ApiKey.DESCRIBE_CLUSTER, CLUSTER)
    except ConnectionError:
        return False
    return True


def set_password(cluster: ChangingCluster, user: str, password: str) -> None:
    module = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    salted = salted_password("SCRAM-SHA-256", password.encode(), b"salt", 4096)
    new = module.ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=4096, salt=b"salt", salted_password=salted
    )
    request = module.AlterUserScramCredentialsRequest(deletions=(), upsertions=(new,))
    (result,) = cluster.first.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request).results
    assert result.error_code is ErrorCode.none


def test_sessions_of_one_are_ended_and_others_go_on(start: Start) -> None:
    node = start(**SECURED)
    with (
        client(node, "alice") as first,
        client(node, "alice") as second,
        client(node, "eve") as eve,
        admin(node) as cluster,
    ):
        found = find_sessions(cluster, None).sessions
        assert sorted(one.session.principal for one in found) == [
            "User:admin", "User:alice", "User:alice", "User:eve",
        ]  # fmt: skip
        alices = [one.session for one in found if one.session.principal == "User:alice"]
        assert {(one.client_id, one.host, one.listener, one.protocol) for one in alices} == {
            ("client of alice", "127.0.0.1", "PLAINTEXT", "SASL_PLAINTEXT")
        }
        assert all(one.left_ms == -1 and 0 <= one.idle_ms < 20_000 for one in alices)
        assert end_sessions(cluster, "User:alice") == ({1: 2}, [])
        assert end_sessions(cluster, "User:nobody") == ({1: 0}, [])
        assert [is_served(one) for one in (first, second, eve)] == [False, False, True]
        with client(node, "alice") as again:
            assert is_served(again)
            assert len(find_sessions(cluster, "User:alice").sessions) == 1


def test_the_session_that_asks_stays(start: Start) -> None:
    node = start(**SECURED)
    with client(node, "admin") as other, admin(node) as cluster:
        assert end_sessions(cluster, "User:admin") == ({1: 1}, [])
        assert not is_served(other)
        assert is_served(cluster.first)


def test_a_user_that_is_closed_out_needs_the_credential_that_is_there_then(start: Start) -> None:
    node = start(**SECURED)
    with admin(node) as cluster:
        set_password(cluster, "bob", "old")
        with client(node, "bob", "old", "SCRAM-SHA-256") as bob:
            set_password(cluster, "bob", "new")
            assert is_served(bob)
            assert end_sessions(cluster, "User:bob").ended == {1: 1}
            assert not is_served(bob)
        with pytest.raises(ConfigError, match="refuses the login of bob"):
            client(node, "bob", "old", "SCRAM-SHA-256")
        with client(node, "bob", "new", "SCRAM-SHA-256") as again:
            assert is_served(again)


def test_a_login_that_is_half_done_ends_too(start: Start) -> None:
    """Else it could be completed with a credential that was taken away meanwhile."""
    node = start(**SECURED)
    with socket.create_connection((node.host, node.port), 10) as half, admin(node) as cluster:
        half.sendall(sized(message("versions", 0)))
        assert half.recv(4)
        assert len(find_sessions(cluster, None).sessions) == 1
        assert end_sessions(cluster, "User:bob").ended == {1: 0}
        rest = b"."
        while rest:
            try:
                rest = half.recv(1 << 16)
            except ConnectionResetError:
                break


def test_pages_are_bounded_and_go_on_where_they_ended(start: Start) -> None:
    node = start(**SECURED)
    clients = [client(node, "alice") for _ in range(5)]
    try:
        found: list[int] = []
        is_last = False
        while not is_last:
            after = found[-1] if found else -1
            page = clients[0].request(
                ApiKey.LIST_SESSIONS, ListSessionsRequest(principal="User:alice", after=after, most=2)
            )
            assert len(page.sessions) <= 2
            found += [one.connection for one in page.sessions]
            is_last = page.is_last
        assert len(found) == 5
        assert found == sorted(set(found))
        for most in (-1, 0):
            request = ListSessionsRequest(principal=None, most=most)
            assert len(clients[0].request(ApiKey.LIST_SESSIONS, request).sessions) == 1
    finally:
        for one in clients:
            one.close()


def allow(cluster: ChangingCluster, principal: str, operation: int) -> None:
    module = request_module(ApiKey.CREATE_ACLS)
    entry = module.AclCreation(
        resource_type=4, resource_name="kafka-cluster", principal=principal, host="*", operation=operation,
        permission_type=3,
    )  # fmt: skip
    answer = cluster.first.request(ApiKey.CREATE_ACLS, module.CreateAclsRequest(creations=(entry,)))
    assert answer.results[0].error_code is ErrorCode.none


def test_listing_takes_describe_and_ending_takes_alter_on_the_cluster(start: Start) -> None:
    node = start(**CLOSED)
    listing, ending = ListSessionsRequest(principal=None), EndSessionsRequest(principal="User:admin")
    with client(node, "eve") as eve, admin(node) as cluster:

        def codes() -> list[Any]:
            return [
                eve.request(ApiKey.LIST_SESSIONS, listing).error_code,
                eve.request(ApiKey.END_SESSIONS, ending).error_code,
            ]

        refused = ErrorCode.cluster_authorization_failed
        assert codes() == [refused, refused]
        assert eve.request(ApiKey.LIST_SESSIONS, listing).sessions == ()
        allow(cluster, "User:eve", 8)
        assert codes() == [ErrorCode.none, refused]
        assert is_served(cluster.first)
        allow(cluster, "User:eve", 7)
        assert codes() == [ErrorCode.none, ErrorCode.none]
        assert not is_served(cluster.first)


def test_a_node_that_does_not_learn_the_newest_metadata_ends_them_and_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "PATIENCE_S", 0.1)
    node = start(**SECURED)
    with client(node, "alice") as alice, client(node, "admin") as asking:
        request = EndSessionsRequest(principal="User:alice", metadata_offset=1 << 40)
        answer = asking.request(ApiKey.END_SESSIONS, request)
        assert (answer.error_code, answer.ended) == (ErrorCode.request_timed_out, 1)
        assert "1 sessions were ended" in answer.error_message
        assert not is_served(alice)


def test_a_closed_connection_is_no_session(start: Start) -> None:
    node = start(**SECURED)
    with admin(node) as cluster:
        client(node, "alice").close()
        wait_until("it to be gone", lambda: not find_sessions(cluster, "User:alice").sessions)
