"""Answers that are promised: in order, counted, and for peers that leave or servers that close meanwhile."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from service.base.errors import RequestError
from service.network.request import Answer, Later, PendingResponse, RequestContext, Response
from service.network.server import Server
from service.wire.errors import MalformedMessage
from service.wire.frames import frame
from tests.support.waiting import until


class Told(PendingResponse):
    """Says in words what failed."""

    def failed(self, error: Exception) -> Response:
        if not isinstance(error, RequestError):
            raise error
        return Response([frame(b"failed")])


class Promiser:
    """Answers by the first byte: echo, at once, promise; what was promised is kept when `keep` is called."""

    def __init__(self) -> None:
        self.open: deque[tuple[PendingResponse, bytes]] = deque()
        self.most_open = 0

    def __call__(self, context: RequestContext, request: memoryview) -> Answer | Later:
        kind, raw = chr(request[0]), bytes(request)
        context.api_key = 8
        if kind == "e":
            return Response([frame(raw)])
        promise = Told()
        if kind == "a":
            promise.set_result(Response([frame(raw)]))
        elif kind == "x":
            promise.set_exception(MalformedMessage("not that"))
        else:
            self.open.append((promise, raw))
            self.most_open = max(self.most_open, len(self.open))
        return promise

    def keep(self, error: Exception | None = None) -> None:
        promise, raw = self.open.popleft()
        if error is None:
            promise.set_result(Response([frame(raw)]))
        else:
            promise.set_exception(error)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, Promiser]]:
    promiser = Promiser()
    server = Server("127.0.0.1", 0, promiser)
    await server.start()
    try:
        yield server, promiser
    finally:
        await server.close(grace_s=0.2)
        assert server.connection_count == 0


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def receive(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(bounded())


def test_promised_answers_come_in_the_order_of_their_requests() -> None:
    async def scenario() -> None:
        seed = 5
        rng = random.Random(seed)
        async with serving() as (server, promiser):
            reader, writer = await connect(server)
            requests = [
                rng.choice(b"eapp").to_bytes() + rng.randbytes(rng.choice((0, 9, 3000))) for _ in range(300)
            ]
            writer.write(b"".join(map(frame, requests)))

            async def keep() -> None:
                while True:
                    while promiser.open:
                        promiser.keep()
                    await asyncio.sleep(0)

            keeping = asyncio.create_task(keep())
            assert [await receive(reader) for _ in requests] == requests, f"seed {seed}"
            keeping.cancel()
            assert promiser.most_open == 1, "the next request is asked after the answer"
            api = server.counters.apis[8]
            assert server.counters.requests == 300
            assert api.sent_bytes == sum(len(request) + 4 for request in requests)
            assert sum(api.later.counts) == sum(request[:1] == b"p" for request in requests)
            assert api.total().observed == 300, "each once"
            writer.close()

    run(scenario())


def test_a_response_completed_in_the_handler_is_sent_at_once() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            reader, writer = await connect(server)
            writer.write(frame(b"a1") + frame(b"a2"))
            assert await receive(reader) == b"a1"
            assert await receive(reader) == b"a2"
            writer.close()

    run(scenario())


def test_a_promise_that_fails_says_so_or_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as (server, promiser):
            reader, writer = await connect(server)
            writer.write(frame(b"p"))
            await until(lambda: len(promiser.open) == 1)
            promiser.keep(RequestError(16, "not here"))  # type: ignore[arg-type]
            assert await receive(reader) == b"failed"
            writer.write(frame(b"p"))
            await until(lambda: len(promiser.open) == 1)
            promiser.keep(ValueError("a bug"))
            assert await reader.read() == b""
            assert server.counters.handler_errors == 1
            reader, writer = await connect(server)
            writer.write(frame(b"x"))
            assert await reader.read() == b""
            assert server.counters.wire_errors == 1
            writer.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert "ValueError: a bug" in caplog.text


def test_a_peer_that_leaves_is_not_answered_and_one_that_sends_no_more_is() -> None:
    async def scenario() -> None:
        async with serving() as (server, promiser):
            reader, writer = await connect(server)
            writer.write(frame(b"p"))
            await until(lambda: len(promiser.open) == 1)
            writer.transport.abort()
            await asyncio.sleep(0.01)
            promiser.keep()
            await until(lambda: server.connection_count == 0)
            reader, writer = await connect(server)
            writer.write(frame(b"p1") + frame(b"p2"))
            writer.write_eof()
            for answer in (b"p1", b"p2"):
                await until(lambda: len(promiser.open) == 1)
                promiser.keep()
                assert await receive(reader) == answer
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_a_server_that_closes_waits_for_what_is_promised_and_cuts_what_does_not_come() -> None:
    async def scenario() -> None:
        async with serving() as (server, promiser):
            reader, writer = await connect(server)
            late_reader, late_writer = await connect(server)
            writer.write(frame(b"p"))
            await until(lambda: len(promiser.open) == 1)
            late_writer.write(frame(b"p"))
            await until(lambda: len(promiser.open) == 2)
            assert len(list(server.being_answered())) == 2
            closing = asyncio.create_task(server.close(grace_s=0.2))
            await asyncio.sleep(0.01)
            promiser.keep()
            assert await receive(reader) == b"p"
            assert await reader.read() == b""
            await closing
            assert server.connection_count == 0
            promiser.keep()  # to nobody
            assert await late_reader.read() == b""
            writer.close()
            late_writer.close()

    run(scenario())
