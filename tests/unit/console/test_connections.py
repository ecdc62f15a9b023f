"""HTTP connections at the end of their server, and what of their peers is logged."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

import pytest
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from service.console.connections import Connections
from service.console.quiet import QuietLog

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def served(said: logging.Logger, takes_s: float = 0) -> tuple[Connections, asyncio.Server, int]:
    loop = asyncio.get_running_loop()

    async def answer(request: BaseRequest) -> StreamResponse:
        await asyncio.sleep(takes_s)
        response = StreamResponse()
        await response.prepare(request)
        await response.write_eof(b"ok" * 1000)
        return response

    quiet = QuietLog(said, loop.time)
    made = Connections(
        answer, most=9, age_s=60, logger=quiet, access_log=None, keepalive_timeout=60, lingering_time=0
    )
    listening = await loop.create_server(made, "127.0.0.1", 0)
    return made, listening, listening.sockets[0].getsockname()[1]


def test_a_scraper_that_keeps_its_connection_does_not_delay_the_end() -> None:
    async def scenario() -> None:
        made, listening, port = await served(logging.getLogger("test"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        await reader.readuntil(b"ok")
        listening.close()
        async with asyncio.timeout(10):
            await made.end()
        writer.close()

    asyncio.run(scenario())


def test_nothing_is_logged_of_peers_that_leave_or_speak_no_http(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        made, listening, port = await served(logging.getLogger("test"), takes_s=0.05)
        for data in (ASK, ASK + b"\x00\xff nonsense\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            await asyncio.sleep(0.01)
            if data == ASK:  # it leaves while it is being answered
                found: socket.socket = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.close()
            else:
                await reader.read(-1)
                writer.close()
        await asyncio.sleep(0.1)
        listening.close()
        await made.end()

    asyncio.run(scenario())
    assert caplog.records == []
