"""PLAIN against Kafka's words, and against tokens that no client sends."""

from __future__ import annotations

import pytest

from service.security.plain import PlainServer, PlainUsers
from service.security.sasl_server import Evaluation, SaslRefused

USERS = PlainUsers(
    {"username": "node", "password": "x", "user_alice": "alice-secret", "user_": "", "user_bob": "ö"}
)
WRONG = "Authentication failed: Invalid username or password"


def evaluate(token: bytes) -> Evaluation:
    return PlainServer(USERS).evaluate(token)


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (b"\0alice\0alice-secret", "alice"),
        (b"alice\0alice\0alice-secret", "alice"),
        ("\0bob\0ö".encode(), "bob"),
    ],
)
def test_a_user_with_its_password_is_in(token: bytes, name: str) -> None:
    assert evaluate(token) == Evaluation(b"", name)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0alice-secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice\0alice-secret\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"\0\0", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wrong", WRONG),
        (b"\0alice\0alice-secret ", WRONG),
        (b"\0nobody\0alice-secret", WRONG),
        (b"\0Alice\0alice-secret", WRONG),
        (b"\0node\0x", WRONG),
        (b"\0\xff\0alice-secret", WRONG),
        (b"\0alice\0\xff", WRONG),
        (b"bob\0alice\0wrong", WRONG),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0alice\0" + b"x" * 65_600, WRONG),
    ],
)
def test_everything_else_is_refused_in_kafkas_words(token: bytes, told: str) -> None:
    with pytest.raises(SaslRefused) as refused:
        evaluate(token)
    assert refused.value.told == told
    assert "alice-secret" not in str(refused.value)


def test_passwords_are_in_no_repr() -> None:
    assert repr(USERS) == "PlainUsers(3 users)"
