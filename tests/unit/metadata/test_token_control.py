"""Decisions on delegation tokens; what Kafka answers is in the golden tests."""

from __future__ import annotations

from dataclasses import replace
from hmac import digest
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps, at_once
from service.metadata.controller import token_control
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.token_control import (
    TokenChange,
    TokenIndex,
    TokenWanted,
    create_token,
    describe_tokens,
    expire_token,
    renew_token,
    sweep_expired_tokens,
)
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, FeatureRange, MetadataImage
from service.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from service.security.principal import Principal
from service.security.tokens import DelegationToken, TokenRules, TokenSecret

ALICE, BOB, CAROL, DAVE = (Principal("User", name) for name in ("alice", "bob", "carol", "dave"))
SECRET = TokenSecret(b"key")
RULES = TokenRules(SECRET, max_lifetime_ms=10_000, expiry_time_ms=3_000)
NOW = 1_000_000


class Tokens:
    """An image that decisions change."""

    def __init__(self, rules: TokenRules = RULES) -> None:
        self.rules = rules
        self.index = TokenIndex(rules.secret)
        self.image = MetadataImage()

    def decide(self, decision: Steps[ControllerResult[Any]]) -> Any:
        made = at_once(decision)
        delta = MetadataDelta(self.image).replay_all(one.record for one in made.frames)
        self.image = delta.build(self.image.offset + len(made.frames), 1, 0)
        return made.response

    def create(self, now_ms: int = NOW, **changes: Any) -> DelegationToken:
        given: dict[str, Any] = {
            "owner": ALICE, "requester": ALICE, "renewers": (BOB,), "max_lifetime_ms": -1,
        }  # fmt: skip
        wanted = TokenWanted(**given | changes)
        made: DelegationToken = self.decide(
            create_token(self.image, wanted, self.rules, self.index, now_ms=now_ms, new_uuid=uuid4)
        )
        return made

    def renew(self, token_id: str, by: Principal, period_ms: int, now_ms: int) -> Any:
        change = TokenChange(SECRET.hmac_of(token_id), by, period_ms, now_ms)
        return self.decide(renew_token(self.image, change, self.rules, self.index)).expiry_ms

    def expire(self, token_id: str, by: Principal, period_ms: int, now_ms: int) -> Any:
        change = TokenChange(SECRET.hmac_of(token_id), by, period_ms, now_ms)
        return self.decide(expire_token(self.image, change, self.index)).expiry_ms


def refused(call: Any, *arguments: Any, **more: Any) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        call(*arguments, **more)
    return caught.value.code


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expiry_ms"),
    [(-1, NOW + 10_000, NOW + 3_000), (0, NOW + 10_000, NOW + 3_000), (2_000, NOW + 2_000, NOW + 2_000),
     (5_000, NOW + 5_000, NOW + 3_000), (99_000, NOW + 10_000, NOW + 3_000)],
)  # fmt: skip
def test_a_token_lives_as_long_as_asked_for_and_allowed(asked_ms: int, max_ms: int, expiry_ms: int) -> None:
    tokens = Tokens()
    token = tokens.create(max_lifetime_ms=asked_ms)
    assert (token.issue_ms, token.max_ms, token.expiry_ms) == (NOW, max_ms, expiry_ms)
    assert dict(tokens.image.tokens) == {token.id: token}
    assert len(token.id) == 22


def test_no_lifetime_is_too_long_for_an_answer() -> None:
    token = Tokens(RULES._replace(max_lifetime_ms=(1 << 63) - 1, expiry_time_ms=(1 << 63) - 1)).create()
    assert token.max_ms == token.expiry_ms == 253_402_300_799_999


def test_an_id_never_begins_as_an_option() -> None:
    ids = iter([UUID(int=0xF8 << 120), UUID(int=0xFB << 120), UUID(int=1)])
    wanted = TokenWanted(ALICE, ALICE, (), -1)
    index = TokenIndex(SECRET)
    made = at_once(
        create_token(MetadataImage(), wanted, RULES, index, now_ms=NOW, new_uuid=ids.__next__)
    ).response
    assert made.id == "AAAAAAAAAAAAAAAAAAAAAQ"


def test_a_token_of_a_token_holder_is_of_the_user() -> None:
    token = Tokens().create(requester=ALICE._replace(is_token=True))
    assert token.requester == ("User", "alice", False)


def test_without_a_key_there_is_nothing() -> None:
    tokens = Tokens(RULES._replace(secret=None))
    assert refused(tokens.create) is ErrorCode.delegation_token_auth_disabled
    assert refused(tokens.renew, "any", ALICE, -1, NOW) is ErrorCode.delegation_token_auth_disabled
    assert refused(tokens.expire, "any", ALICE, -1, NOW) is ErrorCode.delegation_token_auth_disabled


@pytest.mark.parametrize(
    "changes", [{"renewers": (BOB, Principal("Group", "g"))}, {"owner": Principal("Group", "alice")}]
)
def test_only_users_own_and_renew_tokens(changes: dict[str, Any]) -> None:
    assert refused(Tokens().create, **changes) is ErrorCode.invalid_principal_type


def test_long_names_and_too_many_of_them_are_refused() -> None:
    many = tuple(Principal("User", f"{number:05}") for number in range(501))
    long = tuple(Principal("User", f"{number:0200}") for number in range(320))
    wide = tuple(Principal("User", f"{number:02}" + "\u20ac" * 5_000) for number in range(5))  # 75 KB
    for renewers in (
        (Principal("User", "n" * 32_763),), (Principal("User", "\u00e9" * 16_382),), many, long, wide,
    ):  # fmt: skip
        assert refused(Tokens().create, renewers=renewers) is ErrorCode.invalid_request
    assert len(Tokens().create(renewers=many[:500]).renewers) == 500
    assert len(Tokens().create(renewers=long[:319]).renewers) == 319


def test_one_principal_asks_for_so_many_tokens_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_control, "MOST_TOKENS", 2)
    tokens = Tokens()
    first, _ = tokens.create(), tokens.create(owner=BOB)
    assert refused(tokens.create) is ErrorCode.policy_violation
    tokens.create(requester=BOB)
    tokens.expire(first.id, ALICE, -1, NOW)
    tokens.create()
    assert refused(tokens.create) is ErrorCode.policy_violation


def test_one_principal_names_so_many_bytes_in_all_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_control, "MOST_NAMES_BYTES", 100)
    tokens = Tokens()
    long = (Principal("User", "n" * 35),)  # 60 bytes of principals with the other two
    first = tokens.create(renewers=long)
    assert refused(tokens.create, renewers=long) is ErrorCode.policy_violation
    tokens.create(requester=BOB, renewers=long)
    tokens.create(renewers=())
    tokens.create(renewers=())
    assert refused(tokens.create, renewers=()) is ErrorCode.policy_violation
    tokens.expire(first.id, ALICE, -1, NOW)
    tokens.create(renewers=long)


def test_the_principals_of_all_tokens_of_one_are_16_mib_at_most() -> None:
    tokens = Tokens()
    most = tuple(Principal("User", f"{number}{'n' * 31_994}") for number in range(2))  # 64,000 bytes
    for _ in range(262):
        tokens.create(renewers=most)
    assert refused(tokens.create, renewers=most) is ErrorCode.policy_violation


# -- renewal


@pytest.mark.parametrize(
    ("period_ms", "until"), [(-1, 4_000), (0, 4_000), (500, 1_500), (3_000, 4_000), (9_999, 4_000)]
)
def test_a_renewal_lasts_as_long_as_asked_for_and_allowed(period_ms: int, until: int) -> None:
    tokens = Tokens()
    token = tokens.create()
    assert tokens.renew(token.id, BOB, period_ms, NOW + 1_000) == NOW + until
    assert dict(tokens.image.tokens) == {token.id: token._replace(expiry_ms=NOW + until)}


def test_no_renewal_goes_beyond_the_longest_life() -> None:
    tokens = Tokens()
    token = tokens.create()
    for later, until in ((3_000, 6_000), (6_000, 9_000), (9_000, 10_000), (10_000, 10_000)):
        assert tokens.renew(token.id, ALICE, -1, NOW + later) == NOW + until
    assert refused(tokens.renew, token.id, ALICE, -1, NOW + 10_001) is ErrorCode.delegation_token_expired


def test_only_owner_and_renewers_renew_and_expire() -> None:
    tokens = Tokens()
    token = tokens.create(requester=CAROL)
    for who in (CAROL, DAVE):
        assert refused(tokens.renew, token.id, who, -1, NOW) is ErrorCode.delegation_token_owner_mismatch
        assert refused(tokens.expire, token.id, who, -1, NOW) is ErrorCode.delegation_token_owner_mismatch
    for who in (ALICE, BOB):
        tokens.renew(token.id, who, -1, NOW)
        tokens.expire(token.id, who, 1_000, NOW)


def test_an_unknown_token_is_not_found_before_anything_else() -> None:
    tokens = Tokens()
    token = tokens.create()
    tokens.expire(token.id, ALICE, -1, NOW)
    for unknown in (token.id, "nothing"):
        assert refused(tokens.renew, unknown, DAVE, -1, NOW) is ErrorCode.delegation_token_not_found
        assert refused(tokens.expire, unknown, DAVE, -1, NOW) is ErrorCode.delegation_token_not_found


def test_an_ended_token_is_expired_to_whoever_renews_and_to_its_owner_only_where_it_expires() -> None:
    tokens = Tokens()
    token = tokens.create()
    assert tokens.expire(token.id, ALICE, 0, NOW) == NOW
    later = NOW + 1
    assert refused(tokens.renew, token.id, DAVE, -1, later) is ErrorCode.delegation_token_expired
    assert refused(tokens.expire, token.id, DAVE, 5, later) is ErrorCode.delegation_token_owner_mismatch
    assert refused(tokens.expire, token.id, ALICE, 5, later) is ErrorCode.delegation_token_expired
    assert tokens.expire(token.id, ALICE, -1, later) == later
    assert not tokens.image.tokens


def test_an_expiry_may_be_later_than_a_renewal_but_not_than_the_longest_life() -> None:
    tokens = Tokens()
    token = tokens.create()
    assert tokens.expire(token.id, ALICE, 5_000, NOW) == NOW + 5_000
    assert tokens.expire(token.id, ALICE, 1 << 60, NOW) == NOW + 10_000


# -- the sweep


def test_the_sweep_removes_what_has_ended_and_nothing_else() -> None:
    tokens = Tokens()
    short, long = tokens.create(max_lifetime_ms=1_000), tokens.create()
    assert tokens.decide(sweep_expired_tokens(tokens.image, NOW + 1_000)) is False
    assert len(tokens.image.tokens) == 2
    tokens.decide(sweep_expired_tokens(tokens.image, NOW + 1_001))
    assert list(tokens.image.tokens) == [long.id] != [short.id]
    tokens.decide(sweep_expired_tokens(tokens.image, NOW + 3_001))
    assert not tokens.image.tokens
    assert at_once(sweep_expired_tokens(tokens.image, NOW)).frames == ()


def test_one_sweep_removes_a_thousand_tokens_at_most() -> None:
    tokens = Tokens()
    for _ in range(1_001):
        tokens.create(max_lifetime_ms=1)
    assert tokens.decide(sweep_expired_tokens(tokens.image, NOW + 2)) is True
    assert len(tokens.image.tokens) == 1
    assert tokens.decide(sweep_expired_tokens(tokens.image, NOW + 2)) is False
    assert len(tokens.image.tokens) == 0


# -- descriptions


def told(tokens: Tokens, who: Principal, owners: list[Principal] | None, allowed: str = "") -> str:
    """Names of the owners whose tokens `who` sees; `allowed`: the owners of which it may see others'."""
    of = None if owners is None else frozenset(one[:2] for one in owners)
    found = at_once(describe_tokens(tokens.image.tokens, who, of, lambda one: one.owner.name in allowed))
    return " ".join(sorted(one.owner.name for one in found))


def test_a_client_sees_the_tokens_in_which_it_has_a_part_and_those_that_it_may() -> None:
    tokens = Tokens()
    tokens.create()
    tokens.create(owner=CAROL, renewers=())
    tokens.create(owner=DAVE, requester=DAVE, renewers=())
    assert told(tokens, ALICE, None) == "alice carol"
    assert told(tokens, BOB, None) == "alice"
    assert told(tokens, DAVE, None) == "dave"
    assert told(tokens, Principal("User", "eve"), None) == ""
    assert told(tokens, Principal("Group", "alice"), None) == ""
    assert told(tokens, BOB, None, allowed="carol dave") == "alice carol dave"
    assert told(tokens, ALICE, [BOB]) == "alice"
    assert told(tokens, ALICE, [CAROL, DAVE]) == "carol"
    assert told(tokens, ALICE, [DAVE], allowed="dave") == "dave"
    assert told(tokens, ALICE, [Principal("Group", "alice")]) == ""


# -- records


def test_a_token_is_one_record_and_its_removal_another() -> None:
    tokens = Tokens()
    wanted = TokenWanted(ALICE, CAROL, (BOB, DAVE), -1)
    (frame,) = at_once(
        create_token(tokens.image, wanted, RULES, tokens.index, now_ms=NOW, new_uuid=lambda: UUID(int=1))
    ).frames
    assert frame.record == DelegationTokenRecord(
        owner="User:alice",
        requester="User:carol",
        renewers=("User:bob", "User:dave"),
        issue_timestamp=NOW,
        max_timestamp=NOW + 10_000,
        expiration_timestamp=NOW + 3_000,
        token_id="AAAAAAAAAAAAAAAAAAAAAQ",
    )
    token = tokens.create()
    change = TokenChange(digest(b"key", token.id.encode(), "sha512"), ALICE, -1, NOW)
    (frame,) = at_once(expire_token(tokens.image, change, tokens.index)).frames
    assert frame.record == RemoveDelegationTokenRecord(token_id=token.id)


def test_no_token_is_made_while_a_node_cannot_read_it() -> None:
    tokens = Tokens()
    old = BrokerImage(
        7, 1, UUID(int=7), (), (FeatureRange("firn.catalog.version", 0, 1),), None, False, False, ()
    )
    tokens.image = replace(tokens.image, brokers={7: old})
    with pytest.raises(RequestError, match="Broker 7 runs software without") as caught:
        tokens.create()
    assert caught.value.code is ErrorCode.unsupported_version


# -- long work


def test_a_token_is_found_in_small_steps_and_hmacs_are_made_once() -> None:
    tokens = Tokens()
    for _ in range(500):
        tokens.create(now_ms=NOW)
    made: list[str] = []

    class Counting(TokenSecret):
        def hmac_of(self, token_id: str) -> bytes:
            made.append(token_id)
            return super().hmac_of(token_id)

    index = TokenIndex(Counting(b"key"))
    steps = index.find(tokens.image.tokens, b"none of them")
    before, most = 0, 0
    for _ in steps:
        most, before = max(most, len(made) - before), len(made)
    assert most <= 64
    assert len(made) == 500
    tokens.create()
    assert at_once(index.find(tokens.image.tokens, b"none of them")) is None
    assert len(made) == 501


def test_a_search_that_was_given_up_leaves_a_whole_index() -> None:
    tokens = Tokens()
    made = [tokens.create() for _ in range(200)]
    index = TokenIndex(SECRET)
    steps = index.find(tokens.image.tokens, b"")
    next(steps)
    next(steps)
    steps.close()
    for one in made:
        assert at_once(index.find(tokens.image.tokens, SECRET.hmac_of(one.id))) == one
    assert at_once(index.requested_by(tokens.image.tokens, ALICE))[0] == 200


def test_tokens_of_before_are_found_after_a_search_in_later_ones_was_given_up() -> None:
    tokens, index = Tokens(), TokenIndex(SECRET)
    made = tokens.create()
    before = tokens.image.tokens
    assert at_once(index.find(before, SECRET.hmac_of(made.id))) == made
    tokens.expire(made.id, ALICE, -1, NOW)
    tokens.create()
    steps = index.find(tokens.image.tokens, b"")
    for _ in range(2):
        next(steps)
    steps.close()
    assert at_once(index.find(before, SECRET.hmac_of(made.id))) == made


def test_secrets_are_not_shown() -> None:
    assert "key" not in repr(RULES)
    assert "mac" not in repr(TokenChange(b"mac", ALICE, 1, 2))
