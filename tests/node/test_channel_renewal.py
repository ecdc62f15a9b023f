"""A channel renews its login between two requests, however long what is owed takes."""

from __future__ import annotations

import asyncio
from typing import Any

from service.client.security import Credentials, Security
from service.wire.api import ApiKey, RequestHeader, response_frame, response_module
from tests.support.channels import BRISK, KEY, ask, run, talk
from tests.support.peers import sound
from tests.support.waiting import until

LIFETIME_MS = 200
OPTIONS = BRISK._replace(
    connect_timeout_ms=300,
    security=Security(credentials=Credentials("PLAIN", "alice", "secret", lambda: "nonce")),
)


def login(header: RequestHeader, request: Any) -> bytes | None:
    """Answer a login with PLAIN, whose session ends; None for what is none."""
    if header.api_key == ApiKey.SASL_HANDSHAKE:
        module = response_module(ApiKey.SASL_HANDSHAKE)
        answer = module.SaslHandshakeResponse(error_code=0, mechanisms=("PLAIN",))
    elif header.api_key == ApiKey.SASL_AUTHENTICATE:
        module = response_module(ApiKey.SASL_AUTHENTICATE)
        answer = module.SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=b"", session_lifetime=LIFETIME_MS
        )
    else:
        return sound(header, request)
    return bytes(response_frame(header, answer))


def test_an_answer_that_takes_longer_than_a_connection_may_does_not_end_it() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def held(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == KEY and request.broker_epoch == 1:
                await gate.wait()
            return login(header, request)

        async with talk(held, OPTIONS) as (other, channel):
            first = asyncio.create_task(channel.call(KEY, 0, ask(1)))
            await until(lambda: len(other.asked) == 3)
            await asyncio.sleep(LIFETIME_MS / 1000)
            second = asyncio.create_task(channel.call(KEY, 0, ask(2)))
            await asyncio.sleep(0.5)  # longer than `connect_timeout_ms`
            assert not first.done()
            assert not second.done()
            gate.set()
            assert (await first).producer_id_start == 1
            assert (await second).producer_id_start == 2
            assert other.accepted == 1
            asked = [key for key, _ in other.asked]
            assert asked == [
                ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, KEY,
                ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, KEY,
            ]  # fmt: skip

    run(scenario())


def test_a_peer_that_does_not_answer_a_renewal_is_left_in_time() -> None:
    async def scenario() -> None:
        logins = 0

        def mute(header: RequestHeader, request: Any) -> bytes | None:
            nonlocal logins
            logins += header.api_key == ApiKey.SASL_HANDSHAKE
            return None if logins == 2 and header.api_key == ApiKey.SASL_HANDSHAKE else login(header, request)

        async with talk(mute, OPTIONS) as (other, channel):
            assert (await channel.call(KEY, 0, ask(1))).producer_id_start == 1
            await asyncio.sleep(LIFETIME_MS / 1000)
            assert (await channel.call(KEY, 0, ask(2))).producer_id_start == 2
            assert other.accepted == 2

    run(scenario())
