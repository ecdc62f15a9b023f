"""Throttled connections (KIP-219): the response is sent at once, and no other connection waits."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable

import pytest

from service.network.request import PeerLimits, RequestContext, Response, Throttled
from service.network.server import Server
from service.wire.frames import frame
from tests.support.waiting import until

LONG_S = 3600.0


class Throttling:
    """Answers what it is asked; `t` with a pause after it, `l` as well, later, `n` with a pause alone."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.mute_s = LONG_S

    def __call__(
        self, context: RequestContext, request: memoryview
    ) -> Response | Awaitable[Response | None] | None:
        content = bytes(request)
        self.asked.append(content)
        if content[:1] == b"t":
            return Throttled(_parts(content), self.mute_s)
        if content[:1] == b"l":
            return self._later(content)
        if content[:1] == b"n":
            return Throttled([], self.mute_s)
        return Response(_parts(content))

    async def _later(self, content: bytes) -> Response:
        await asyncio.sleep(0)
        return Throttled(_parts(content), self.mute_s)


def _parts(content: bytes) -> list[bytes]:
    return [struct.pack(">i", len(content)), content]


async def _serve(handler: Throttling) -> Server:
    server = Server("127.0.0.1", 0, handler, limits=PeerLimits(idle_ms=100))
    await server.start()
    return server


async def _receive(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


@pytest.mark.parametrize("first", [b"t", b"l"])
def test_the_answer_comes_at_once_and_the_next_request_waits(first: bytes) -> None:
    async def scenario() -> None:
        handler = Throttling()
        server = await _serve(handler)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        other_reader, other_writer = await asyncio.open_connection(server.host, server.port)
        writer.write(frame(first) + frame(b"e1") + frame(b"e2"))
        assert await _receive(reader) == first
        for number in range(20):
            other_writer.write(frame(b"o%d" % number))
            assert await _receive(other_reader) == b"o%d" % number
        assert b"e1" not in handler.asked, "the connection is mute"
        assert not reader.at_eof(), "and not idle"
        writer.close()
        other_writer.close()
        await server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("first", [b"t", b"l", b"n"])
def test_requests_behind_a_throttled_response_are_answered_in_order(first: bytes) -> None:
    async def scenario() -> None:
        handler = Throttling()
        handler.mute_s = 0.02
        server = await _serve(handler)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"".join(frame(one) for one in (first, b"e1", first, b"e2")))
        expected = [first, b"e1", first, b"e2"]
        for content in expected:
            if content != b"n":
                assert await _receive(reader) == content
        await until(lambda: handler.asked == expected)
        writer.close()
        await server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("first", [b"t", b"n"])
def test_a_server_that_stops_waits_for_no_pause(first: bytes) -> None:
    async def scenario() -> None:
        handler = Throttling()
        server = await _serve(handler)
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(frame(first))
        await until(lambda: handler.asked == [first])
        await server.close(grace_s=3600)
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.parametrize(("rest", "mute_s"), [(b"", LONG_S), (frame(b"e"), 0.02)])
def test_a_client_that_goes_meanwhile_leaves_nothing_behind(rest: bytes, mute_s: float) -> None:
    async def scenario() -> None:
        handler = Throttling()
        handler.mute_s = mute_s
        server = await _serve(handler)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(frame(b"t") + rest)
        assert await _receive(reader) == b"t"
        writer.transport.abort()
        await until(lambda: server.connection_count == 0)
        await server.close()

    asyncio.run(scenario())
