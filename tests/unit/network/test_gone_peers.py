"""A connection that is over is freed at once: the collector finds nothing of it."""

from __future__ import annotations

import asyncio
import gc
import socket

from service.network.request import Response
from service.network.server import Server
from service.network.server_connection import ServerConnection

FRAME = b"\0\0\0\4abcd"


def test_a_connection_that_has_ended_is_freed_without_the_collector() -> None:
    async def scenario() -> int:
        server = Server("127.0.0.1", 0, lambda context, request: Response([FRAME]))
        await server.start()
        loop = asyncio.get_running_loop()
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, FRAME)
                assert await loop.sock_recv(client, 100) == FRAME
        async with asyncio.timeout(30):
            while server.connection_count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        alive = sum(isinstance(one, ServerConnection | asyncio.Transport) for one in gc.get_objects())
        await server.close()
        return alive

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(scenario()) == 0
    finally:
        gc.enable()
