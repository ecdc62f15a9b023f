"""A connection that is over is freed at once: the collector finds nothing of it."""

from __future__ import annotations

import asyncio
import gc

from service.network.exchange import Response
from service.network.peer import Peer
from service.network.server import Server

FRAME = b"\0\0\0\4abcd"


def test_a_connection_that_has_ended_is_freed_without_the_collector() -> None:
    async def scenario() -> int:
        server = Server("127.0.0.1", 0, lambda context, request: Response([FRAME]))
        await server.start()
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(FRAME)
            assert await reader.readexactly(len(FRAME)) == FRAME
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(30):
            while server.connection_count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        alive = sum(isinstance(one, Peer) for one in gc.get_objects())
        await server.close()
        return alive

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(scenario()) == 0
    finally:
        gc.enable()
