"""Delegation tokens: their passwords, whose they are, and how long they let their clients in."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from service.security.principal import Principal
from service.security.tokens import DelegationToken, TokenLookup, TokenRules, TokenSecret, parse_principal

ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
TOKEN = DelegationToken("id", ALICE, BOB, (CAROL,), 1_000, 9_000, 5_000)


def test_the_password_is_the_hmac_of_the_id_in_base64() -> None:
    mac = hmac.new(b"key", b"cKR0ZTq5RF2y5Zw-q4VmRg", hashlib.sha512).digest()
    secret = TokenSecret(b"key")
    assert secret.hmac_of("cKR0ZTq5RF2y5Zw-q4VmRg") == mac
    assert secret.password_of("cKR0ZTq5RF2y5Zw-q4VmRg") == base64.b64encode(mac)


def test_the_key_is_not_shown() -> None:
    assert "key" not in repr(TokenSecret(b"key"))
    assert "key" not in f"{TokenRules(TokenSecret(b'key'))}"


def test_principals_of_records_are_read_up_to_the_first_colon() -> None:
    assert parse_principal("User:CN=a,OU=b:c") == ("User", "CN=a,OU=b:c", False)
    assert parse_principal("User:") == ("User", "", False)
    with pytest.raises(ValueError, match="not a principal"):
        parse_principal("alice")


def test_owner_and_renewers_may_renew_and_the_requester_sees_it_too() -> None:
    other = Principal("Group", "alice")
    assert [TOKEN.may_be_renewed_by(one) for one in (ALICE, BOB, CAROL, other)] == [True, False, True, False]
    assert [TOKEN.is_of(one) for one in (ALICE, BOB, CAROL, other)] == [True, True, True, False]


@pytest.mark.parametrize(("now_ms", "is_found"), [(4_999, True), (5_000, True), (5_001, False)])
def test_a_token_lets_in_until_it_expires(now_ms: int, is_found: bool) -> None:
    lookup = TokenLookup(TokenSecret(b"key"), {"id": TOKEN}.get, lambda: now_ms)
    assert (lookup.find("id") is not None) == is_found
    assert lookup.find("another") is None


def test_a_token_lets_in_until_its_longest_life_ends() -> None:
    lookup = TokenLookup(TokenSecret(b"key"), {"id": TOKEN._replace(max_ms=4_000)}.get, lambda: 4_001)
    assert lookup.find("id") is None


def test_only_tokens_of_users_let_in() -> None:
    of_a_group = TOKEN._replace(owner=Principal("Group", "alice"))
    assert TokenLookup(TokenSecret(b"key"), {"id": of_a_group}.get, lambda: 1).find("id") is None
