"""Pipelined requests that wait behind several pauses count as come when they were read."""

from __future__ import annotations

import asyncio
from typing import Any

from service.network.request import RequestContext, Throttled
from service.network.server import Server
from tests.support.login_frames import message
from tests.support.logins import Listener
from tests.support.tls_server import request


def test_requests_behind_several_pauses() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(max_reauth_ms={"PLAIN": 400})
        logins = listener.logins
        logins.now = loop.time

        def handler(context: RequestContext, frame: memoryview) -> Any:
            return Throttled(listener.handle(context, frame).parts, 0.25)

        server = Server("127.0.0.1", 0, handler, listener="SASL", logins=logins)
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        names = ("plain", "right", *["metadata"] * 4)
        writer.write(b"".join(request(message(name, n)) for n, name in enumerate(names)))
        try:
            for _ in range(65):
                if len(listener.asked) < 4:
                    await asyncio.sleep(0.02)
        finally:
            writer.close()
            await server.close(0.1)
        assert len(listener.asked) == 4, (
            f"{len(listener.asked)} were handled, expired={listener.metrics.expired}"
        )

    asyncio.run(run())
