"""Precedence of quotas, and who shares a bucket."""

from __future__ import annotations

import pytest

from service.quotas.entities import (
    UNLIMITED,
    Entity,
    Limits,
    Share,
    Shares,
    connection_limit,
    shares_of,
)

KEY = "producer_byte_rate"
LADDER: list[tuple[Entity, str | None, str | None]] = [
    (("alice", "c1", ""), "alice", "c1"),
    (("alice", None, ""), "alice", "c1"),
    (("alice", "", ""), "alice", None),
    ((None, "c1", ""), "alice", "c1"),
    ((None, None, ""), "alice", "c1"),
    ((None, "", ""), "alice", None),
    (("", "c1", ""), None, "c1"),
    (("", None, ""), None, "c1"),
]
"""entities of alice with client id c1, the most specific first, with user and client id of their bucket"""


@pytest.mark.parametrize("first", range(len(LADDER)))
def test_the_most_specific_entity_with_a_limit_counts(first: int) -> None:
    limits: Limits = {entity: {KEY: float(n)} for n, (entity, _, _) in enumerate(LADDER) if n >= first}
    _, user, client_id = LADDER[first]
    assert shares_of(limits, "alice", "c1") == Shares(produce=Share(user, client_id, float(first)))


def test_each_key_has_its_own_precedence() -> None:
    limits: Limits = {
        ("alice", "c1", ""): {"request_percentage": 50.0},
        ("alice", "", ""): {"request_percentage": 10.0, "consumer_byte_rate": 7.0},
        ("", None, ""): {"controller_mutation_rate": 2.5},
    }
    assert shares_of(limits, "alice", "c1") == Shares(
        produce=None,
        fetch=Share("alice", None, 7.0),
        request=Share("alice", "c1", 50.0),
        mutation=Share(None, "c1", 2.5),
    )


def test_others_quotas_do_not_apply() -> None:
    limits: Limits = {
        ("bob", "", ""): {KEY: 1.0},
        ("bob", "c1", ""): {KEY: 1.0},
        ("", "c2", ""): {KEY: 1.0},
        ("", "", "10.0.0.1"): {"connection_creation_rate": 1.0},
        ("", "", None): {"connection_creation_rate": 1.0},
    }
    assert shares_of(limits, "alice", "c1") is UNLIMITED
    assert shares_of(limits, "alice", "c1") == (None, None, None, None)


def test_each_user_under_a_default_has_a_bucket_of_its_own() -> None:
    limits: Limits = {(None, "", ""): {KEY: 5.0}}
    assert shares_of(limits, "alice", "x").produce == Share("alice", None, 5.0)
    assert shares_of(limits, "bob", "x").produce == Share("bob", None, 5.0)
    assert shares_of(limits, "ANONYMOUS", "y").produce == Share("ANONYMOUS", None, 5.0)


def test_an_empty_name_is_nobody_and_under_the_defaults_all_the_same() -> None:
    limits: Limits = {("alice", "", ""): {KEY: 1.0}, ("", "c1", ""): {KEY: 2.0}}
    assert shares_of(limits, "alice", "").produce == Share("alice", None, 1.0)
    assert shares_of(limits, "", "c1").produce == Share(None, "c1", 2.0)
    assert shares_of(limits, "", "") is UNLIMITED
    limits = {("", None, ""): {KEY: 3.0}}
    assert shares_of(limits, "alice", "").produce == Share(None, "", 3.0)
    limits = {("alice", None, ""): {KEY: 4.0}, ("alice", "", ""): {KEY: 9.0}}
    assert shares_of(limits, "alice", "").produce == Share("alice", "", 4.0)


def test_an_address_has_its_own_limit_or_the_default() -> None:
    rates: Limits = {
        ("", "", "10.0.0.1"): {"connection_creation_rate": 4.0},
        ("", "", None): {"connection_creation_rate": 9.0},
    }
    assert connection_limit(rates, "10.0.0.1") == 4.0
    assert connection_limit(rates, "10.0.0.2") == 9.0
    assert connection_limit({}, "10.0.0.2") is None


@pytest.mark.parametrize("name", ["2001:db8::5", "2001:db8:0:0:0:0:0:5"])
def test_an_address_of_ipv6_has_the_limit_of_any_of_its_texts(name: str) -> None:
    limits: Limits = {("", "", name): {"connection_creation_rate": 3.0}}
    assert connection_limit(limits, "2001:db8::5") == 3.0
    assert connection_limit(limits, "2001:db8::6") is None


def test_a_bucket_keeps_no_long_name_and_tells_long_names_apart() -> None:
    limits: Limits = {(None, None, ""): {KEY: 1.0}}
    long = "c" * 30_000
    found = [shares_of(limits, user, client_id).produce for user, client_id in (
        ("alice", long), ("alice", long + "x"), ("bob", long), ("alice", long), (long, "c1"),
    )]  # fmt: skip
    assert all(one is not None and len(one.user or "") + len(one.client_id or "") < 400 for one in found)
    assert len({one[:2] for one in found if one is not None}) == 4
    assert found[0] == found[3]
    named: Limits = {("", long, ""): {KEY: 7.0}, ("", None, ""): {KEY: 1.0}}
    assert [shares_of(named, "", one).produce.limit for one in (long, long + "x")] == [7.0, 1.0]
