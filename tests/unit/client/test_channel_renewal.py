"""A channel's reauthentication is not the affair of the one call that happens to begin it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from service.client.node_channel import Channel, ChannelOptions
from service.client.security import Credentials, Security
from service.network.request import RequestContext
from service.network.server import Server
from service.wire.api import ApiKey, api_versions_request, response_module
from tests.support.logins import Listener


def answer_versions(version: int, request: Any) -> Any:
    module = response_module(ApiKey.API_VERSIONS)
    own = module.ApiVersion(api_key=18, min_version=0, max_version=3)
    return module.ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(own,), throttle_time=__import__("datetime").timedelta()
    )


def test_a_short_call_that_begins_the_renewal_costs_no_other_call_its_answer() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(max_reauth_ms={"PLAIN": 1000})
        logins = listener.logins
        logins.now = loop.time
        slow = True

        def handler(context: RequestContext, frame: memoryview) -> Any:
            nonlocal slow
            answer = listener.handle(context, frame)
            if not slow:
                return answer
            slow = False

            async def later() -> Any:
                await asyncio.sleep(0.6)
                return answer

            return later()

        server = Server("127.0.0.1", 0, handler, listener="SASL", logins=logins)
        await server.bind()
        server.set_handler(handler, lambda context, request: str(context), answer_versions)
        await server.start()
        security = Security(None, Credentials("PLAIN", "alice", "secret", lambda: "nonce"))
        channel = Channel(
            SimpleNamespace(host="127.0.0.1", port=server.port), ChannelOptions(security=security)
        )
        await channel.versions()
        await asyncio.sleep(0.7)
        long = asyncio.create_task(channel.call(18, 3, api_versions_request()))
        await asyncio.sleep(0.25)  # 85 to 95 % of a second are over
        short = asyncio.create_task(channel.call(18, 3, api_versions_request(), timeout_ms=50))
        done = await asyncio.gather(long, short, return_exceptions=True)
        channel.disconnect("the test ends")
        await server.close(0.1)
        assert not isinstance(done[0], Exception), repr(done[0])

    asyncio.run(run())
