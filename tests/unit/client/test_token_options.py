"""Options of clients with tokens: names of Java, librdkafka and Spark, and what of them is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.errors import ConfigError
from service.client.security import file_credentials, security_of
from service.client.tokens import FileToken, IssuerToken
from service.config.client import parse_client
from service.security.jaas import PLAIN_MODULE
from service.spark.tail.options import parse_batch
from tests.support.issuers import MODULE, document, issuer_server

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
URL = "sasl.oauthbearer.token.endpoint.url"


def first(options: dict[str, str]) -> bytes:
    credentials = security_of(parse_client(options), lambda: "nonce").credentials
    assert credentials is not None
    assert credentials.mechanism == "OAUTHBEARER"
    return credentials.login().first()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(" abc.def.ghi \n")
    return path


def test_a_token_comes_from_a_file_each_time(token: Path) -> None:
    credentials = security_of(parse_client({**BASE, URL: token.as_uri()}), lambda: "").credentials
    assert credentials is not None
    assert credentials.login().first() == b"n,,\x01auth=Bearer abc.def.ghi\x01\x01"
    token.write_text("jkl.mno.pqr")
    assert credentials.login().first() == b"n,,\x01auth=Bearer jkl.mno.pqr\x01\x01"


@pytest.mark.parametrize(
    "more",
    [
        {
            "sasl.jaas.config": f'{MODULE} required extension_logicalCluster="lkc" clientId="x";',
            "sasl.login.callback.handler.class": f"{PACKAGE}OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}FileJwtRetriever",
        },
        {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.extensions": "logicalCluster=lkc"},
    ],
)
def test_files_of_java_and_librdkafka_are_taken(token: Path, more: dict[str, str]) -> None:
    assert first({**BASE, URL: token.as_uri(), **more}) == (
        b"n,,\x01auth=Bearer abc.def.ghi\x01logicalCluster=lkc\x01\x01"
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "needs option sasl.oauthbearer.token.endpoint.url"),
        ({URL: "file:relative"}, "is no URL of https"),
        ({URL: "http://issuer.test/token"}, "not encrypted"),
        ({URL: "https://issuer.test/token"}, "to whom the issuer gives a token"),
        ({URL: "https://u:p@issuer.test/token"}, "url: https://issuer.test/token has a user or a pass"),
        ({URL: "file:///t", "sasl.username": "u"}, "says nothing with sasl.mechanism=OAUTHBEARER"),
        ({URL: "file:///t", "sasl.oauthbearer.extensions": "auth"}, "not name=value"),
        ({URL: "file:///t", "sasl.oauthbearer.assertion.file": "/x"}, "is not served"),
        ({URL: "file:///t", "sasl.login.callback.handler.class": "com.acme.Own"}, "; there is org"),
        ({URL: "file:///t", "sasl.jaas.config": f"{PLAIN_MODULE} required;"}, "needs the login module"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p", URL: "file:///t"},
         "says nothing with sasl.mechanism=PLAIN"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        security_of(parse_client({**BASE, **more}), lambda: "")


@pytest.mark.parametrize("content", [None, b"", b"a b", b"\xff", b"x" * (65 << 10)])
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        file_credentials(str(path), f"{MODULE} required;", SystemDisk()).login()
    assert not content or content[:5].decode("latin1") not in str(raised.value)


def test_secrets_are_in_no_repr(token: Path) -> None:
    options = parse_client({**BASE, URL: "https://i.test/t", "sasl.oauthbearer.client.id": "me",
                            "sasl.oauthbearer.client.secret": "geheim"})  # fmt: skip
    credentials = security_of(options, lambda: "").credentials
    assert "geheim" not in f"{options!r} {credentials!r} {credentials.fetch!r}"
    assert FileToken(str(token), SystemDisk())() not in repr(FileToken(str(token), SystemDisk()))


def test_an_issuers_token_is_used_for_four_fifths_of_its_life() -> None:
    clock = ManualClock(0)
    with issuer_server(document(b'{"access_token": " one ", "expires_in": 100}')) as server:
        source = IssuerToken(server.url, "me", "geheim", None, clock)
        assert source() == "one"
        server.answer = document(b'{"id_token": "two"}')
        clock.advance(79_000)
        assert source() == "one"
        clock.advance(2_000)
        assert [source(), source()] == ["two", "two"]
        assert (server.asked, server.forms[0]) == (3, b"grant_type=client_credentials")


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"access_token": 5}', b'{"error": "geheim"}', b"[" * 9000])
def test_an_issuer_without_a_token_is_an_issuer_that_is_away(answer: bytes) -> None:
    with issuer_server(document(answer)) as server:
        source = IssuerToken(server.url, "me", "geheim", None, ManualClock(0))
        with pytest.raises(ConnectionError, match="no token") as raised:
            source()
        assert "geheim" not in str(raised.value)
        server.answer = document(b"", 302, Location="http://127.0.0.1:1/")
        with pytest.raises(ConnectionError, match="not allowed"):
            source()


def test_sparks_tail_takes_them_with_its_prefix(token: Path) -> None:
    raw = {"subscribe": "t", "url": "s3://b/p", "bootstrap.servers": "h:1"}
    raw |= {f"kafka.{name}": value for name, value in {**BASE, URL: token.as_uri()}.items()}
    _, tail = parse_batch(raw)
    assert tail is not None
    credentials = security_of(tail.client, lambda: "").credentials
    assert b"abc.def.ghi" in credentials.login().first()
    del raw[f"kafka.{URL}"]
    with pytest.raises(ConfigError, match=f"needs option kafka.{URL}"):
        parse_batch(raw)


def test_names_of_owners_come_from_the_token_and_are_not_believed() -> None:
    from service.client.sasl import OAuthBearerLogin
    from tests.support.issuers import token_of

    assert OAuthBearerLogin(token_of("alice"), {}).username == "alice"
    for token in ("x", "a.b.c", "a..c", f"a.{json.dumps([]).encode().hex()}.c"):
        assert OAuthBearerLogin(token, {}).username == "the token's owner"
