"""Delegation tokens on a whole node: made, renewed, ended and described over the wire, and logged in with."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until

Start = Callable[..., NodeThread]
MODULES = "org.apache.kafka.common.security"
SASL = {
    "listeners": "CLIENTS://127.0.0.1:0,OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    "inter.broker.listener.name": "OPEN",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": (
        f'{MODULES}.plain.PlainLoginModule required user_alice="secret" user_bob="pencil" user_eve="evil";'
    ),
    "listener.name.clients.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
}
KEY = {"delegation.token.secret.key": "key of all nodes"}
CLOSED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
PASSWORDS = {"alice": "secret", "bob": "pencil", "eve": "evil"}
DAY_MS = 86_400_000


def secured(start: Start, **settings: str) -> NodeThread:
    return start(**{**SASL, **KEY, **settings})


def connect(node: NodeThread, listener: str = "CLIENTS", login: Credentials | None = None) -> BlockingClient:
    host, port = node.node.parts.listeners.places[listener]
    return BlockingClient(host, port, "test", timeout_s=20, security=Security(credentials=login))


def new_nonce() -> str:
    return secrets.token_hex(16)


def talk_as(node: NodeThread, user: str) -> Talk:
    return Talk(connect(node, login=Credentials("PLAIN", user, PASSWORDS[user], new_nonce)))


def by_token(node: NodeThread, made: Any, mechanism: str = "SCRAM-SHA-256") -> Talk:
    password = b64encode(made.hmac).decode()
    return Talk(
        connect(node, login=Credentials(mechanism, made.token_id, password, new_nonce, is_token=True))
    )


def create(talk: Talk, owner: str = "", *renewers: str, version: int = 3, **changes: Any) -> Any:
    module = request_module(ApiKey.CREATE_DELEGATION_TOKEN)
    given: dict[str, Any] = {
        "owner_principal_type": "User" if owner else "",
        "owner_principal_name": owner,
        "renewers": tuple(
            module.CreatableRenewers(principal_type="User", principal_name=one) for one in renewers
        ),
        "max_lifetime": -1,
    }
    request = module.CreateDelegationTokenRequest(**given | changes)
    return talk.client.request(ApiKey.CREATE_DELEGATION_TOKEN, request, newest=version)


def renew(talk: Talk, hmac: bytes, period_ms: int = -1) -> Any:
    return talk(
        ApiKey.RENEW_DELEGATION_TOKEN, "RenewDelegationTokenRequest", hmac=hmac, renew_period=period_ms
    )


def expire(talk: Talk, hmac: bytes, period_ms: int = -1) -> Any:
    return talk(
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        "ExpireDelegationTokenRequest",
        hmac=hmac,
        expiry_time_period=period_ms,
    )


def describe(talk: Talk, *owners: str, version: int = 3, everybody: bool = False) -> Any:
    module = request_module(ApiKey.DESCRIBE_DELEGATION_TOKEN)
    named = tuple(
        module.DescribeDelegationTokenOwner(principal_type="User", principal_name=one) for one in owners
    )
    request = module.DescribeDelegationTokenRequest(owners=None if everybody else named)
    return talk.client.request(ApiKey.DESCRIBE_DELEGATION_TOKEN, request, newest=version)


def described(talk: Talk) -> list[str]:
    answer = describe(talk, everybody=True)
    assert answer.error_code is ErrorCode.none
    return sorted(one.token_id for one in answer.tokens)


def who(talk: Talk, topic: str) -> str:
    """Try to create a topic; the name of the error."""
    return str(talk.create(topic).error_code.name)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_logs_in_as_its_owner_and_may_not_ask_for_another(start: Start, mechanism: str) -> None:
    node = secured(start, **CLOSED)
    alice = talk_as(node, "alice")
    made = create(alice)
    assert made.error_code is ErrorCode.none
    assert (made.principal_type, made.principal_name) == ("User", "alice")
    assert len(made.hmac) == 64
    talk = by_token(node, made, mechanism)
    refused = ErrorCode.delegation_token_request_not_allowed
    answer = create(talk)
    assert (answer.error_code, answer.principal_name, answer.hmac, answer.token_id) == (
        refused, "alice", b"", "",
    )  # fmt: skip
    assert answer.issue_timestamp is answer.expiry_timestamp is answer.max_timestamp is None
    for answer in (renew(talk, made.hmac), expire(talk, made.hmac)):
        assert (answer.error_code, answer.expiry_timestamp) == (refused, None)
    assert describe(talk, everybody=True).error_code is refused
    assert who(talk, "t") == who(alice, "t") == "topic_authorization_failed", "alice has no rights"
    module = request_module(ApiKey.CREATE_ACLS)
    entry = module.AclCreation(
        resource_type=4, resource_name="kafka-cluster", resource_pattern_type=3, principal="User:alice",
        host="*", operation=5, permission_type=3,
    )  # fmt: skip
    Talk(connect(node, "OPEN"))(ApiKey.CREATE_ACLS, "CreateAclsRequest", creations=(entry,))
    assert who(talk, "t") == "none", "what alice may, her token may"


def test_a_client_that_has_not_logged_in_may_not_ask_for_tokens(start: Start) -> None:
    talk = Talk(connect(secured(start), "OPEN"))
    refused = ErrorCode.delegation_token_request_not_allowed
    assert create(talk).error_code is refused
    assert renew(talk, b"any").error_code is refused
    assert expire(talk, b"any").error_code is refused
    assert describe(talk).error_code is refused


def test_without_a_key_there_are_no_tokens(start: Start) -> None:
    node = start(**SASL)
    talk = talk_as(node, "alice")
    disabled = ErrorCode.delegation_token_auth_disabled
    made = create(talk)
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (
        disabled, "alice", "alice",
    )  # fmt: skip
    for answer in (made, renew(talk, b"any"), expire(talk, b"any")):
        assert answer.error_code is disabled
        assert answer.expiry_timestamp.timestamp() == 0, "as Kafka's controller"
    assert describe(talk).error_code is disabled


def test_an_empty_key_is_none(start: Start) -> None:
    talk = talk_as(secured(start, **{"delegation.token.secret.key": ""}), "alice")
    assert create(talk).error_code is ErrorCode.delegation_token_auth_disabled


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_makes_and_describes_tokens(start: Start, version: int) -> None:
    talk = talk_as(secured(start), "alice")
    made = create(talk, "", "bob", version=version)
    assert (made.error_code, made.principal_name) == (ErrorCode.none, "alice")
    (found,) = describe(talk, "alice", version=version).tokens
    assert (found.token_id, found.hmac, found.principal_name) == (made.token_id, made.hmac, "alice")
    assert [(one.principal_type, one.principal_name) for one in found.renewers] == [("User", "bob")]
    assert found.token_requester_principal_name == ("alice" if version == 3 else "")
    assert found.max_timestamp - found.issue_timestamp == 7 * DAY_MS
    assert found.expiry_timestamp - found.issue_timestamp == DAY_MS
    assert made.max_timestamp.timestamp() * 1000 == found.max_timestamp


def test_tokens_are_renewed_ended_and_kept_over_a_start(start: Start) -> None:
    node = secured(start)
    alice, bob, eve = (talk_as(node, one) for one in ("alice", "bob", "eve"))
    made = create(alice, "", "bob")
    mismatch, unknown = ErrorCode.delegation_token_owner_mismatch, ErrorCode.delegation_token_not_found
    assert renew(eve, made.hmac).error_code is expire(eve, made.hmac).error_code is mismatch
    assert renew(bob, made.hmac, 1_000).error_code is ErrorCode.none
    assert renew(alice, bytes(64)).error_code is expire(alice, b"").error_code is unknown
    assert create(alice, "", "x", renewers=()).error_code is ErrorCode.none
    group = request_module(ApiKey.CREATE_DELEGATION_TOKEN).CreatableRenewers(
        principal_type="Group", principal_name="g"
    )
    refused = create(alice, renewers=(group,))
    assert (refused.error_code, refused.max_timestamp) == (ErrorCode.invalid_principal_type, None)
    before = described(alice)
    assert len(before) == 2
    node.stop()
    node = secured(start)
    alice = talk_as(node, "alice")
    assert described(alice) == before
    by_token(node, made)
    assert expire(alice, made.hmac).error_code is ErrorCode.none
    with pytest.raises(Exception, match=r"refuses the login|Authentication failed"):
        by_token(node, made)
    assert described(alice) == [one for one in before if one != made.token_id]
    assert renew(alice, made.hmac).error_code is unknown


def test_tokens_of_others_take_rights(start: Start) -> None:
    node = secured(start, **CLOSED)
    admin = Talk(connect(node, "OPEN"))
    alice, bob, eve = (talk_as(node, one) for one in ("alice", "bob", "eve"))
    refused = create(alice, "bob")
    assert (refused.error_code, refused.principal_name, refused.token_requester_principal_name) == (
        ErrorCode.delegation_token_authorization_failed, "bob", "alice",
    )  # fmt: skip
    module = request_module(ApiKey.CREATE_ACLS)

    def allow(principal: str, operation: int, resource: int, name: str) -> None:
        entry = module.AclCreation(
            resource_type=resource, resource_name=name, resource_pattern_type=3,
            principal=f"User:{principal}", host="*", operation=operation, permission_type=3,
        )  # fmt: skip
        answer = admin(ApiKey.CREATE_ACLS, "CreateAclsRequest", creations=(entry,))
        assert answer.results[0].error_code is ErrorCode.none

    allow("alice", 13, 7, "User:bob")  # CREATE_TOKENS
    made = create(alice, "bob")
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (
        ErrorCode.none, "bob", "alice",
    )  # fmt: skip
    assert described(alice) == described(bob) == [made.token_id]
    assert renew(alice, made.hmac).error_code is ErrorCode.delegation_token_owner_mismatch
    assert renew(bob, made.hmac).error_code is ErrorCode.none
    own = create(bob)
    assert described(eve) == []
    allow("eve", 8, 6, own.token_id)  # DESCRIBE on one token
    assert described(eve) == [own.token_id]
    assert describe(eve, "alice").tokens == describe(eve).tokens == ()
    allow("eve", 14, 7, "User:bob")  # DESCRIBE_TOKENS
    assert described(eve) == sorted([own.token_id, made.token_id])


def test_a_session_ends_with_its_token_unless_it_is_renewed(start: Start) -> None:
    node = secured(start, **{"delegation.token.expiry.check.interval.ms": "100"})
    alice = talk_as(node, "alice")
    made, kept = create(alice), create(alice)
    assert expire(alice, made.hmac, 1_000).error_code is ErrorCode.none
    talk = by_token(node, made)
    assert who(talk, "t") == "none"
    wait_until("the token to be removed", lambda: described(alice) == [kept.token_id])
    with pytest.raises(Exception, match=r"closed|refuses the login|Authentication failed"):
        who(talk, "u")
    assert who(by_token(node, kept), "u") == "none"


def test_the_audit_log_tells_who_changed_which_token_without_its_password(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "firn.audit")
    alice = talk_as(secured(start), "alice")
    made = create(alice, max_lifetime=DAY_MS)
    assert renew(alice, made.hmac).error_code is ErrorCode.none
    assert renew(alice, b"x" * 64).error_code is ErrorCode.delegation_token_not_found
    assert expire(alice, made.hmac).error_code is ErrorCode.none
    lines = [one.getMessage() for one in caplog.records if one.name == "firn.audit"]
    lines = [line for line in lines if "token" in line]
    assert [line.partition(" (1): ")[0] for line in lines] == [
        f"delegation tokens {what}" for what in ("created", "renewed", "expired")
    ]
    for line in lines:
        assert f"(1): {made.token_id} of User:alice [valid until 20" in line
        assert line.endswith("; by User:alice from 127.0.0.1, client id 'test'")
        assert b64encode(made.hmac).decode() not in line
