"""The server's side of OAUTHBEARER: messages, errors as challenges, extensions, authorization ids."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.security.oauthbearer import (
    AcceptedToken,
    OAuthBearerServer,
    TokenRefused,
    read_initial,
    write_initial,
)
from service.security.sasl_server import SaslRefused, SaslUnavailable


def validate(token: str) -> AcceptedToken:
    if token == "good":
        return AcceptedToken("alice", 5000)
    if token == "later":
        raise SaslUnavailable("no keys yet")
    if token == "narrow":
        raise TokenRefused("too little", "insufficient_scope", '[a "quoted" scope]')
    raise TokenRefused("not signed by anybody")


def login() -> OAuthBearerServer:
    return OAuthBearerServer(validate)


def test_a_good_token_logs_in_until_it_ends() -> None:
    found = login().evaluate(write_initial("good", {}))
    assert (found.token, found.name, found.expires_ms) == (b"", "alice", 5000)


def test_extensions_are_read_and_dropped() -> None:
    message = write_initial("good", {"logicalCluster": "lkc-1", "more": "a b"})
    assert message == b"n,,\x01auth=Bearer good\x01logicalCluster=lkc-1\x01more=a b\x01\x01"
    assert read_initial(message).extensions == {"logicalCluster": "lkc-1", "more": "a b"}
    assert login().evaluate(message).name == "alice"


def test_a_bad_token_is_a_challenge_and_then_the_end() -> None:
    server = login()
    found = server.evaluate(write_initial("bad", {}))
    assert (found.token, found.name) == (b'{"status":"invalid_token"}', None)
    with pytest.raises(SaslRefused, match="not signed by anybody") as refused:
        server.evaluate(b"\x01")
    assert refused.value.told == '{"status":"invalid_token"}'


def test_a_missing_scope_is_told() -> None:
    found = login().evaluate(write_initial("narrow", {}))
    assert found.token == b'{"status":"insufficient_scope", "scope":"[a \\"quoted\\" scope]"}'


def test_another_token_may_follow_an_error() -> None:
    server = login()
    server.evaluate(write_initial("bad", {}))
    assert server.evaluate(write_initial("good", {})).name == "alice"


def test_an_acknowledgement_of_nothing_is_refused() -> None:
    with pytest.raises(SaslRefused) as refused:
        login().evaluate(b"\x01")
    assert refused.value.told is None


def test_keys_that_are_not_there_yet_refuse_nobody() -> None:
    with pytest.raises(SaslUnavailable):
        login().evaluate(write_initial("later", {}))


def test_an_authorization_id_has_to_be_the_owners_name() -> None:
    assert login().evaluate(b"n,a=alice,\x01auth=Bearer good\x01\x01").name == "alice"
    with pytest.raises(SaslRefused) as refused:
        login().evaluate(b"n,a=bob,\x01auth=Bearer good\x01\x01")
    assert refused.value.told == (
        "Authentication failed: Client requested an authorization id (bob) that is different from the "
        "token's principal name (alice)"
    )


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0alice\0secret",
        b"n,,n=alice,r=nonce",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer go od\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01k=v\x01\x01",
        b"n,,\x01auth=Bearer good\x01k1=v\x01\x01",
        b"n,,\x01auth=Bearer good\x01k=\x01\x01",
        b"n,a=al=ice,\x01auth=Bearer good\x01\x01",
        "n,a=ålice,\x01auth=Bearer good\x01\x01".encode(),
        b"n,,\x01auth=Bearer " + b"x" * (64 << 10) + b"\x01\x01",
    ],
)
def test_messages_of_another_form_are_refused_in_usual_words(message: bytes) -> None:
    with pytest.raises(SaslRefused) as refused:
        login().evaluate(message)
    assert refused.value.told is None


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("a b", {}),
        ("a\x01k=v", {}),
        ("é", {}),
        ("a", {"auth": "x"}),
        ("a", {"k1": "x"}),
        ("a", {"k": ""}),
    ],
)
def test_a_client_sends_nothing_that_would_be_read_otherwise(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        write_initial(token, extensions)


@pytest.mark.parametrize("piece", [b"=2C", b"x", b"\x01", b"a=b\x01", b" "])
def test_long_messages_take_no_longer_than_their_length(piece: bytes) -> None:
    many = piece * ((60 << 10) // len(piece))
    for message in (
        b"n,a=" + many,
        b"n,a=" + many + b",\x01\x01",
        b"n,,\x01" + many,
        b"n,,\x01k=" + many + b"\x02",
    ):
        with pytest.raises(SaslRefused):
            read_initial(message)


@pytest.mark.parametrize("name", ["mal\ud800lory", "\udc80", "n" * 32_763, "\u00e9" * 16_382])
def test_a_name_that_no_message_carries_is_refused(name: str) -> None:
    server = OAuthBearerServer(lambda _: AcceptedToken(name, 5000))
    found = server.evaluate(write_initial("good", {}))
    assert (found.token, found.name) == (b'{"status":"invalid_token"}', None)


@pytest.mark.parametrize("name", ["Zo\u00eb \U0001f600", "n" * 32_762, "\u00e9" * 16_381])
def test_any_other_name_logs_in(name: str) -> None:
    server = OAuthBearerServer(lambda _: AcceptedToken(name, 5000))
    assert server.evaluate(write_initial("good", {})).name == name
