"""Signed tokens that attackers make: none gets in, and what is wrong is said without the token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey
from joserfc.jws import JWSRegistry

from service.security.json_web_token import JwtRules, JwtValidator
from service.security.oauthbearer import TokenRefused
from service.security.verification_keys import MalformedKeys, read_keys
from tests.support.issuers import ISSUER, key_of, key_set, token_of

RULES = JwtRules(("kafka",), ISSUER)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def validator(*kids: str, rules: JwtRules = RULES) -> JwtValidator:
    keys = read_keys(key_set(*(kids or ("one",))))

    def find(algorithm: str, kid: str | None) -> Any:
        if (key := keys.find(algorithm, kid)) is None:
            raise TokenRefused("no key")
        return key

    return JwtValidator(rules, find, lambda: int(time.time() * 1000))


def refused(token: str, **more: Any) -> str:
    with pytest.raises(TokenRefused) as raised:
        validator(**more).validate(token)
    assert raised.value.status == "invalid_token"
    assert all(part not in str(raised.value) for part in token.split(".") if len(part) > 30)
    return str(raised.value)


def test_the_owner_is_the_subject_until_the_token_ends() -> None:
    found = validator().validate(token_of("alice", life_s=100))
    assert found.name == "alice"
    assert 98_000 < found.expires_ms - time.time() * 1000 <= 100_000


def test_another_claim_may_name_the_owner() -> None:
    rules = JwtRules(("kafka",), ISSUER, sub_claim_name="azp")
    assert validator(rules=rules).validate(token_of("id-5", azp="reports")).name == "reports"


def forged(header: dict[str, Any]) -> str:
    """A good token whose header is another, signed as its algorithm says by what everybody has."""
    body = token_of("admin").split(".")[1]
    head = f"{b64(json.dumps(header).encode())}.{body}"
    public = key_of("one").as_pem(private=False)
    return f"{head}.{b64(hmac.new(public, head.encode(), hashlib.sha256).digest())}"


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "nOnE", "HS256", "HS384", "HS512", "", None, 5, ["RS256"]]
)
def test_tokens_without_a_signature_or_with_a_shared_secret_are_refused(algorithm: Any) -> None:
    token = forged({"alg": algorithm, "kid": "one"})
    head, body, _ = token.split(".")
    assert "algorithm" in refused(token)
    refused(f"{head}.{body}.")
    refused(f"{head}.{body}.x")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "without an audience"),
        ({"iss": "https://evil.test"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"life_s": -31}, "expired"),
        ({"exp": None}, "without exp"),
        ({"iat": None}, "without iat"),
        ({"nbf": time.time() + 3600}, "begins"),
        ({"sub": None}, "missing or blank"),
        ({"sub": " "}, "missing or blank"),
        ({"exp": 10**30}, "no time"),
        ({"scope": ["a", "a"]}, "same scope twice"),
    ],
)
def test_claims_that_do_not_count_are_refused(given: dict[str, Any], reason: str) -> None:
    claims = dict(given)
    assert reason in refused(token_of(claims.pop("sub", "alice"), **claims))


def test_clocks_may_differ_by_half_a_minute() -> None:
    assert validator().validate(token_of("alice", life_s=-25)).name == "alice"


def test_a_token_that_says_whom_it_is_for_is_refused_where_nobody_is_expected() -> None:
    assert "another audience" in refused(token_of("alice"), rules=JwtRules())
    assert validator(rules=JwtRules()).validate(token_of("alice", aud=None)).name == "alice"


def test_keys_of_others_and_changed_tokens_are_refused() -> None:
    token = token_of("alice")
    head, body, signature = token.split(".")
    other = token_of("admin").split(".")[1]
    assert "BadSignature" in refused(f"{head}.{other}.{signature}")
    refused(f"{head}.{body}.{signature[:-4]}AAAA")
    assert "no key" in refused(token_of("alice", "two"))
    stolen = JWSRegistry.algorithms["RS256"].sign(f"{head}.{body}".encode(), key_of("two"))
    assert "BadSignature" in refused(f"{head}.{body}.{b64(stolen)}")


@pytest.mark.parametrize(
    "more", [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"kid": "k" * (1 << 14)}, {"kid": 5}]
)
def test_headers_that_demand_or_overflow_are_refused(more: dict[str, Any]) -> None:
    refused(forged({"alg": "RS256", "kid": "one", **more}))


def test_a_key_of_the_header_is_no_key() -> None:
    own = RSAKey.generate_key(2048)
    head = {"alg": "RS256", "kid": "one", "jwk": own.as_dict(private=False), "jku": "https://evil.test"}
    signed = f"{b64(json.dumps(head).encode())}.{token_of('admin').split('.')[1]}"
    signature = JWSRegistry.algorithms["RS256"].sign(signed.encode(), own)
    assert "BadSignature" in refused(f"{signed}.{b64(signature)}")


@pytest.mark.parametrize(
    "body", [b"[" * 40_000, b'{"a":' * 9_000, b"{}", b'{"exp":NaN}', b"1" * 9_000, b"\xff"]
)
def test_bodies_that_break_parsers_are_refused(body: bytes) -> None:
    head = f"{b64(json.dumps({'alg': 'RS256', 'kid': 'one'}).encode())}.{b64(body)}"
    signature = JWSRegistry.algorithms["RS256"].sign(head.encode(), key_of("one"))
    refused(f"{head}.{b64(signature)}")
    refused(f"{b64(body)}.{b64(body)}.{b64(signature)}")


def test_a_key_set_is_read_as_far_as_it_is_of_use() -> None:
    ec = {**ECKey.generate_key("P-256").as_dict(private=False), "kid": "ec"}
    given = [
        ec,
        {**ec, "kid": "k" * 1001},
        {**ec, "x": "AA"},
        {**ec, "use": "enc"},
        {**ec, "crv": "P-999"},
        {**OctKey.generate_key(256).as_dict(), "kid": "secret"},
        {**key_of("one").as_dict(private=False), "e": 5},
        {"kty": "RSA", "n": b64(b"\xff" * 128), "e": "AQAB"},
        {"kty": "RSA", "n": b64(b"\xff" * 2048), "e": "AQAB"},
        "x",
        {},
        {"kty": "OKP", "crv": "Ed25519", "x": b64(bytes(32))},
    ]
    found = read_keys(json.dumps({"keys": given}).encode())
    assert (len(found), found.ignored, found.ids) == (1, 11, frozenset({"ec"}))
    assert found.find("ES256", "ec") is found.find("ES256", None) is not None
    assert [found.find(*one) for one in (("ES256", "x"), ("ES384", "ec"), ("RS256", "ec"))] == [None] * 3


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"keys": {}}', b'{"keys": "x"}', b"\xff", b"[" * 10**6])
def test_other_documents_are_no_key_sets(data: bytes) -> None:
    with pytest.raises(MalformedKeys):
        read_keys(data)


def test_a_private_key_in_a_key_set_is_taken_as_its_public_part() -> None:
    given = {**key_of("one").as_dict(private=True), "kid": "one"}
    key = read_keys(json.dumps({"keys": [given]}).encode()).find("RS256", "one")
    assert key is not None
    assert not key.is_private
