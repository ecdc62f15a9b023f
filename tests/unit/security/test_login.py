"""ServerLogin of a connection: states, rounds, reauthentication."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from service.base.errors import InvariantError
from service.security.login import MOVES, LoginEnded, LoginState, ServerLogin, UnsupportedMechanism
from service.security.principal import Principal
from service.security.sasl_server import Evaluation, SaslRefused


class Scripted:
    """A mechanism of two tokens: any, and ``name``."""

    def __init__(self) -> None:
        self.tokens: list[bytes] = []

    def evaluate(self, token: bytes) -> Evaluation:
        self.tokens.append(token)
        if token == b"bad":
            raise SaslRefused("wrong", "told")
        return Evaluation(b"go on") if token == b"more" else Evaluation(b"done", token.decode())


def login() -> ServerLogin:
    return ServerLogin({"M": Scripted, "OTHER": Scripted})


def complete(name: bytes = b"alice") -> ServerLogin:
    made = login()
    made.request_came()
    made.versions_came(is_valid=True)
    made.request_came()
    made.handshake_came("M", 1)
    made.token_came(name)
    return made


def test_a_login_goes_through_the_states_of_the_table() -> None:
    made = login()
    seen = [made.state]
    made.request_came()
    seen.append(made.state)
    made.versions_came(is_valid=False)
    seen.append(made.state)
    made.versions_came(is_valid=True)
    seen.append(made.state)
    made.handshake_came("M", 1)
    seen.append(made.state)
    assert made.token_came(b"more") == Evaluation(b"go on")
    seen.append(made.state)
    made.token_came(b"alice")
    seen.append(made.state)
    assert [one.name for one in seen] == [
        "INITIAL", "VERSIONS_OR_HANDSHAKE", "VERSIONS_OR_HANDSHAKE", "HANDSHAKE", "AUTHENTICATE",
        "AUTHENTICATE", "COMPLETE",
    ]  # fmt: skip
    assert made.principal == Principal("User", "alice")


def test_a_second_valid_versions_request_ends_the_login() -> None:
    made = login()
    made.request_came()
    made.versions_came(is_valid=True)
    with pytest.raises(LoginEnded):
        made.versions_came(is_valid=True)
    assert made.state is LoginState.FAILED


def test_a_mechanism_that_is_not_enabled_ends_the_login() -> None:
    made = login()
    made.request_came()
    with pytest.raises(UnsupportedMechanism):
        made.handshake_came("GSSAPI", 1)
    assert made.state is LoginState.FAILED
    assert made.mechanisms == ("M", "OTHER")


def test_a_wrong_token_ends_the_login() -> None:
    made = login()
    made.request_came()
    made.handshake_came("M", 0)
    assert not made.has_headers
    with pytest.raises(SaslRefused, match="wrong"):
        made.token_came(b"bad")
    assert made.state is LoginState.FAILED
    assert made.principal is None


def test_eight_tokens_are_enough() -> None:
    made = login()
    made.request_came()
    made.handshake_came("M", 1)
    for _ in range(8):
        made.token_came(b"more")
    with pytest.raises(SaslRefused, match="more than 8 tokens"):
        made.token_came(b"alice")
    assert made.state is LoginState.FAILED


def test_a_reauthentication_begins_once_a_second() -> None:
    made = complete()
    assert made.reauthenticate(10.0)
    made.handshake_came("M", 1)
    made.token_came(b"alice")
    assert made.is_complete
    assert not made.reauthenticate(10.9)
    assert made.is_complete
    assert made.reauthenticate(11.0)


def test_a_reauthentication_as_somebody_else_fails_in_kafkas_words() -> None:
    made = complete()
    made.reauthenticate(10.0)
    made.handshake_came("M", 1)
    with pytest.raises(SaslRefused) as refused:
        made.token_came(b"bob")
    assert refused.value.told == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert made.state is LoginState.FAILED


def test_a_reauthentication_with_another_mechanism_ends_at_its_token() -> None:
    made = complete()
    made.reauthenticate(10.0)
    made.handshake_came("OTHER", 1)
    assert made.state is LoginState.WRONG_MECHANISM
    with pytest.raises(LoginEnded, match="another mechanism than M"):
        made.token_came(b"alice")
    assert made.state is LoginState.FAILED


ACTS: dict[str, Callable[[ServerLogin], object]] = {
    "request": lambda one: one.request_came(),
    "versions": lambda one: one.versions_came(is_valid=True),
    "unknown versions": lambda one: one.versions_came(is_valid=False),
    "handshake": lambda one: one.handshake_came("M", 1),
    "other handshake": lambda one: one.handshake_came("OTHER", 0),
    "unknown handshake": lambda one: one.handshake_came("X", 1),
    "token": lambda one: one.token_came(b"alice"),
    "challenge": lambda one: one.token_came(b"more"),
    "bad token": lambda one: one.token_came(b"bad"),
    "again": lambda one: one.reauthenticate(5.0),
}


def test_no_sequence_of_acts_leaves_the_table_or_skips_the_password() -> None:
    for acts in product(ACTS, repeat=5):
        made = login()
        for act in acts:
            before = made.state
            try:
                ACTS[act](made)
            except InvariantError:
                assert made.state is before
            except (LoginEnded, SaslRefused):
                assert made.state is LoginState.FAILED
            assert made.state is before or made.state in _reached(before)
            if made.is_complete and before is not LoginState.COMPLETE:
                assert act == "token"
                assert before is LoginState.AUTHENTICATE


def _reached(state: LoginState) -> set[LoginState]:
    return set(MOVES[state]) | {two for one in MOVES[state] for two in MOVES[one] if two is LoginState.FAILED}
