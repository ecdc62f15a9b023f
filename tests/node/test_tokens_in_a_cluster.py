"""Delegation tokens of a cluster: a broker forwards what its clients ask, and follows what comes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from service.controller_server.api_table import CONTROLLER_APIS
from service.network.request import RequestContext
from service.security.principal import Principal
from service.security.session import Session
from service.wire.api import ApiKey, request_module
from tests.support.controllers import Broker, Fleet
from tests.support.waiting import until

SETTINGS = {"delegation.token.secret.key": "key", "delegation.token.expiry.check.interval.ms": "100"}


def login(name: str, *, is_token: bool = False) -> Session:
    return Session(Principal("User", name, is_token), "192.0.2.9", "CLIENTS", "SASL_SSL")


async def create(broker: Broker, who: Session, lifetime_ms: int = -1) -> Any:
    message = request_module(ApiKey.CREATE_DELEGATION_TOKEN).CreateDelegationTokenRequest(
        owner_principal_type="", owner_principal_name="", renewers=(), max_lifetime=lifetime_ms
    )
    return await broker.forward(ApiKey.CREATE_DELEGATION_TOKEN, 3, message, who)


async def renew(broker: Broker, who: Session, hmac: bytes) -> str:
    module = request_module(ApiKey.RENEW_DELEGATION_TOKEN)
    message = module.RenewDelegationTokenRequest(hmac=hmac, renew_period=-1)
    answer = await broker.forward(ApiKey.RENEW_DELEGATION_TOKEN, 2, message, who)
    return str(answer.error_code.name)


async def described(fleet: Fleet, who: Session) -> list[str]:
    """Ids of the tokens that a controller's listener tells a client of its own."""
    node = await fleet.led()
    context = RequestContext(1, who.host, 5, "CONTROLLER", who)
    context.api_key = ApiKey.DESCRIBE_DELEGATION_TOKEN
    message = request_module(context.api_key).DescribeDelegationTokenRequest(owners=None)
    answer = await CONTROLLER_APIS[context.api_key].handle(node.side, context, message)
    return [one.token_id for one in answer.tokens]


def test_the_controller_sees_the_client_and_its_tokens_reach_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path, settings=SETTINGS).start()
        broker = await Broker(fleet, 7).start()
        made = await create(broker, login("alice"))
        assert (made.error_code.name, made.principal_name, len(made.hmac)) == ("none", "alice", 64)
        token = broker.publisher.image.tokens[made.token_id]
        assert (str(token.owner), str(token.requester)) == ("User:alice", "User:alice")
        assert await renew(broker, login("alice"), made.hmac) == "none"
        assert await renew(broker, login("bob"), made.hmac) == "delegation_token_owner_mismatch"
        assert await described(fleet, login("bob")) == [made.token_id], "there is no authorizer"
        by_token = login("alice", is_token=True)
        assert await renew(broker, by_token, made.hmac) == "delegation_token_request_not_allowed"
        refused = await create(broker, by_token)
        assert (refused.error_code.name, refused.token_id) == ("delegation_token_request_not_allowed", "")
        short = await create(broker, login("alice"), 300)
        await fleet.kill(fleet.id_of(await fleet.led()))
        await fleet.led()
        await until(lambda: set(broker.publisher.image.tokens) == {made.token_id})
        assert short.error_code.name == "none"
        assert await renew(broker, login("alice"), made.hmac) == "none", "the next controller, too"
        assert await renew(broker, login("alice"), short.hmac) == "delegation_token_not_found"
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    asyncio.run(scenario())
