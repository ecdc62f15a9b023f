"""Any sequence of requests for delegation tokens, as time passes: decisions say what a plain model of Kafka's
rules says, and replay, snapshots and differences say what decisions say."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import RequestError
from service.base.steps import at_once
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
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.security.principal import Principal
from service.security.tokens import TokenRules, TokenSecret

RULES = TokenRules(TokenSecret(b"key"), max_lifetime_ms=100, expiry_time_ms=30)
people = st.sampled_from("abcd")
some = st.lists(people, max_size=2)
tokens = st.integers(0, 6)
periods = st.sampled_from([-5, -1, 0, 1, 10, 30, 90, 500, 1 << 62])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), people, st.none() | people, some, periods),
        st.tuples(st.just("renew"), people, tokens, periods),
        st.tuples(st.just("expire"), people, tokens, periods),
        st.tuples(st.just("describe"), people, st.none() | some, st.none() | people),
        st.tuples(st.just("pass"), st.sampled_from([0, 1, 5, 29, 30, 31, 60])),
        st.tuples(st.just("sweep")),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Token:
    """One token of the model."""

    owner: str
    requester: str
    renewers: list[str]
    max_ms: int
    expiry_ms: int


class Model:
    """Kafka's rules, plainly: tokens by number in the order of their creation."""

    def __init__(self) -> None:
        self.tokens: dict[int, Token] = {}
        self.now = 1_000
        self._numbers = count()

    def create(self, who: str, owner: str | None, renewers: list[str], period: int) -> object:
        last = self.now + (min(100, period) if period > 0 else 100)
        number = next(self._numbers)
        self.tokens[number] = Token(owner or who, who, renewers, last, min(last, self.now + 30))
        return number

    def renew(self, who: str, number: int, period: int) -> object:
        token = self.tokens.get(number)
        if token is None:
            return "not_found"
        if self._is_over(token):
            return "expired"
        if who != token.owner and who not in token.renewers:
            return "owner_mismatch"
        token.expiry_ms = min(token.max_ms, self.now + (min(30, period) if period > 0 else 30))
        return token.expiry_ms

    def expire(self, who: str, number: int, period: int) -> object:
        token = self.tokens.get(number)
        if token is None:
            return "not_found"
        if who != token.owner and who not in token.renewers:
            return "owner_mismatch"
        if period < 0:
            del self.tokens[number]
            return self.now
        if self._is_over(token):
            return "expired"
        token.expiry_ms = min(token.max_ms, self.now + period)
        return token.expiry_ms

    def describe(self, who: str, owners: list[str] | None, allowed: str | None) -> object:
        found = set()
        for number, one in self.tokens.items():
            people_of = {one.owner, one.requester, *one.renewers}
            if (owners is None or people_of & {*owners}) and (who in people_of or one.owner == allowed):
                found.add(number)
        return found

    def sweep(self) -> object:
        self.tokens = {number: one for number, one in self.tokens.items() if not self._is_over(one)}
        return False

    def _is_over(self, token: Token) -> bool:
        return token.expiry_ms < self.now or token.max_ms < self.now


class Ours:
    """The decisions, applied one after another."""

    def __init__(self) -> None:
        self.images = [MetadataImage()]
        self.ids: list[str] = []
        self.index = TokenIndex(RULES.secret)
        self._uuids = (UUID(int=number) for number in count(1))

    def ask(self, step: tuple[Any, ...], now: int) -> object:
        image = self.images[-1]
        match step:
            case ("create", who, owner, renewers, period):
                wanted = TokenWanted(_user(owner or who), _user(who), tuple(map(_user, renewers)), period)
                made = self._decide(
                    create_token(image, wanted, RULES, self.index, now_ms=now, new_uuid=self._uuids.__next__)
                )
                self.ids.append(made.id)
                return len(self.ids) - 1
            case ("renew", who, number, period):
                change = self._change(who, number, period, now)
                return _until(self._decide(renew_token(image, change, RULES, self.index)))
            case ("expire", who, number, period):
                change = self._change(who, number, period, now)
                return _until(self._decide(expire_token(image, change, self.index)))
            case ("describe", who, owners, allowed):
                named = None if owners is None else frozenset(("User", one) for one in owners)
                found = at_once(
                    describe_tokens(image.tokens, _user(who), named, lambda one: one.owner.name == allowed)
                )
                return {self.ids.index(one.id) for one in found}
            case _:
                return self._decide(sweep_expired_tokens(image, now))

    def _change(self, who: str, number: int, period: int, now: int) -> TokenChange:
        secret = RULES.secret
        assert secret is not None
        token_id = self.ids[number] if number < len(self.ids) else "nothing"
        return TokenChange(secret.hmac_of(token_id), _user(who), period, now)

    def _decide(self, decision: Any) -> Any:
        try:
            made = at_once(decision)
        except RequestError as e:
            return e.code.name.removeprefix("delegation_token_")
        if made.frames:
            image = self.images[-1]
            delta = MetadataDelta(image).replay_all(one.record for one in made.frames)
            self.images.append(delta.build(image.offset + len(made.frames), 1, 0))
        return made.response

    def check(self, model: Model) -> None:
        found = {
            self.ids.index(one.id): Token(
                one.owner.name, one.requester.name, [r.name for r in one.renewers], one.max_ms, one.expiry_ms
            )
            for one in self.images[-1].tokens.values()
        }
        assert found == model.tokens


def _until(found: Any) -> Any:
    """Return until when a token is valid, or the error of a refusal."""
    return getattr(found, "expiry_ms", found)


def _user(name: str) -> Principal:
    return Principal("User", name)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_decisions_say_what_kafkas_rules_say(script: list[tuple[Any, ...]]) -> None:
    model, ours = Model(), Ours()
    for step in script:
        what, *given_values = step
        if what == "pass":
            model.now += given_values[0]
            continue
        told = getattr(model, what)(*given_values)
        assert ours.ask(step, model.now) == told, step
        ours.check(model)


@settings(max_examples=60, deadline=None)
@given(steps, st.data())
def test_snapshots_and_differences_say_what_decisions_say(
    script: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    ours, now = Ours(), 1_000
    for step in script:
        if step[0] == "pass":
            now += step[1]
        else:
            ours.ask(step, now)
    for image in ours.images[1:]:
        assert (
            decode_snapshot(list(encode_image(image, now_ms=7)), end_offset=image.offset + 1, epoch=1)
            == image
        )
    before, after = (ours.images[data.draw(st.integers(0, len(ours.images) - 1))] for _ in range(2))
    found, _ = at_once(apply_snapshot(before, after))
    assert found == after
    assert (found.tokens is before.tokens) == (before.tokens == after.tokens)
