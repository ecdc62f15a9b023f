"""A controller's delegation tokens as its clock moves: made, renewed, ended, and removed once they have."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import RequestError
from service.metadata.controller.token_control import TokenWanted
from service.security.principal import Principal
from service.security.tokens import TokenRules, TokenSecret
from tests.support.world import make_world
from tests.unit.metadata.controllers import LoneController, running

ALICE = Principal("User", "alice")
SECRET = TokenSecret(b"key")
HOUR = 3_600_000
RULES = TokenRules(SECRET, max_lifetime_ms=10 * HOUR, expiry_time_ms=3 * HOUR)
WANTED = TokenWanted(ALICE, ALICE, (), -1)


async def pass_time(controller: LoneController, clock: ManualClock, hours: int) -> None:
    """Move the clock by hours, and do what is due."""
    for _ in range(hours):
        clock.advance(HOUR)
        assert controller.next_deadline_ms <= clock.monotonic_ms()
        await controller.tick()


def test_a_token_is_removed_within_an_hour_of_its_end_unless_it_is_renewed(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock), tokens=RULES) as controller:
            tokens = controller.access.tokens
            left, kept = await tokens.create(WANTED), await tokens.create(WANTED)
            assert left.expiry_ms == clock.now_ms() + 3 * HOUR
            await pass_time(controller, clock, 2)
            hmac = SECRET.hmac_of(kept.id)
            assert (await tokens.renew(hmac, ALICE, -1)).expiry_ms == clock.now_ms() + 3 * HOUR
            await pass_time(controller, clock, 1)
            assert set(controller.image.tokens) == {left.id, kept.id}
            await pass_time(controller, clock, 1)
            assert set(controller.image.tokens) == {kept.id}
            assert (await tokens.expire(hmac, ALICE, 1)).expiry_ms == clock.now_ms() + 1
            clock.advance(2)
            with pytest.raises(RequestError) as caught:
                await tokens.renew(hmac, ALICE, -1)
            assert caught.value.code is ErrorCode.delegation_token_expired
            await pass_time(controller, clock, 1)
            assert not controller.image.tokens

    asyncio.run(scenario())


def test_more_tokens_than_a_decision_removes_go_one_decision_after_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock), tokens=RULES) as controller:
            wanted = WANTED._replace(max_lifetime_ms=1)
            await asyncio.gather(*(controller.access.tokens.create(wanted) for _ in range(1_001)))
            clock.advance(HOUR)
            await controller.tick()
            assert len(controller.image.tokens) == 1
            assert controller.next_deadline_ms <= clock.monotonic_ms()
            await controller.tick()
            assert not controller.image.tokens

    asyncio.run(scenario())


def test_a_controller_without_a_key_removes_what_another_has_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        world = make_world(clock)
        async with running(tmp_path, world=world, tokens=RULES) as controller:
            await controller.access.tokens.create(WANTED)
        async with running(tmp_path, world=replace(world)) as controller:
            assert len(controller.image.tokens) == 1
            with pytest.raises(RequestError) as caught:
                await controller.access.tokens.create(WANTED)
            assert caught.value.code is ErrorCode.delegation_token_auth_disabled
            await pass_time(controller, clock, 4)
            assert not controller.image.tokens

    asyncio.run(scenario())
