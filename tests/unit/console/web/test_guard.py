"""Access to a console."""

from __future__ import annotations

import itertools

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError
from service.console.web.guard import (
    MOST_WRONG,
    SESSION_MS,
    WINDOW_MS,
    Guard,
    TokenVerdict,
    is_same_origin,
)
from service.console.web.settings import ConsoleSettings


def guard(token: str | None, clock: ManualClock) -> Guard:
    secrets = (f"secret-{n}" for n in itertools.count())
    return Guard(token, lambda: next(secrets), clock.monotonic_ms)


def test_without_a_token_everybody_of_this_machine_may_look_and_no_other_name() -> None:
    found = guard(None, ManualClock())
    assert found.judge_token("1.2.3.4", None) is TokenVerdict.WELCOME
    assert found.knows_session(None)
    for host in ("127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.0.0.2"):
        assert found.admits_host(host)
    for host in ("evil.example:8080", "127.0.0.1.evil.example", "127.evil:1", "", "[::2]:80"):
        assert not found.admits_host(host)


def test_too_many_wrong_tokens_lock_an_address_for_a_while() -> None:
    clock = ManualClock()
    found = guard("right-token", clock)
    for _ in range(MOST_WRONG):
        assert found.judge_token("a", "wrong") is TokenVerdict.UNKNOWN
    assert found.judge_token("a", "right-token") is TokenVerdict.TOO_OFTEN
    assert found.judge_token("b", "right-token") is TokenVerdict.WELCOME
    clock.advance(WINDOW_MS)
    assert found.judge_token("a", "right-token") is TokenVerdict.WELCOME


def test_one_ipv6_network_is_one_guesser() -> None:
    """Else each of its 2^64 addresses had tries of its own."""
    found = guard("right-token", ManualClock())
    for n in range(MOST_WRONG):
        assert found.judge_token(f"2001:db8:1:2::{n}", "wrong") is TokenVerdict.UNKNOWN
    assert found.judge_token("2001:db8:1:2:ffff::1", "right-token") is TokenVerdict.TOO_OFTEN
    assert found.judge_token("2001:db8:1:3::1", "right-token") is TokenVerdict.WELCOME
    for _ in range(MOST_WRONG):
        assert found.judge_token("10.0.0.1", "wrong") is TokenVerdict.UNKNOWN
    assert found.judge_token("::ffff:10.0.0.1", "right-token") is TokenVerdict.TOO_OFTEN
    assert found.judge_token("10.0.0.2", "right-token") is TokenVerdict.WELCOME


def test_no_token_is_no_try() -> None:
    found = guard("right-token", ManualClock())
    for _ in range(10 * MOST_WRONG):
        assert found.judge_token("a", None) is TokenVerdict.UNKNOWN
    assert found.judge_token("a", "right-token") is TokenVerdict.WELCOME


def test_a_session_ends() -> None:
    clock = ManualClock()
    found = guard("right-token", clock)
    secret = found.open_session()
    assert found.knows_session(secret)
    assert not found.knows_session("secret-9")
    assert not found.knows_session(None)
    clock.advance(SESSION_MS)
    assert not found.knows_session(secret)
    other = found.open_session()
    found.close_session(other)
    assert not found.knows_session(other)


def test_another_token_ends_the_sessions_of_the_old_one() -> None:
    found = guard("token-one", ManualClock())
    secret = found.open_session()
    assert found.is_token("token-one")
    found.change_token("token-two")
    assert not found.knows_session(secret)
    assert not found.is_token("token-one")
    assert found.judge_token("1.2.3.4", "token-two") is TokenVerdict.WELCOME
    for _ in range(20):
        assert not found.is_token("wrong")
    assert found.judge_token("1.2.3.4", "token-two") is TokenVerdict.WELCOME, "those were no attempts"


def test_others_than_this_machine_need_a_token() -> None:
    ConsoleSettings("b:1").check()
    ConsoleSettings("b:1", host="::1").check()
    ConsoleSettings("b:1", host="0.0.0.0", token="long-enough").check()
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "example.org", "127.evil.example"):
        with pytest.raises(ConfigError):
            ConsoleSettings("b:1", host=host).check()
    with pytest.raises(ConfigError):
        ConsoleSettings("b:1", token="short").check()


def test_a_form_of_another_site_is_told_by_its_origin() -> None:
    host = "127.0.0.1:8080"
    for origin in ("http://127.0.0.1:8080", "https://127.0.0.1:8080", "null", None):
        assert is_same_origin(origin, host)
    for origin in ("http://evil.example", "http://127.0.0.1:8081", "http://127.0.0.1", "127.0.0.1:8080", ""):
        assert not is_same_origin(origin, host)
    assert not is_same_origin("http://evil.example", None)
