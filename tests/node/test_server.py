"""The server over real sockets: order of responses, failing handlers, shutdown, request metrics."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import time
from contextlib import suppress

import pytest

from service.base.errors import ConfigError
from service.base.turns import TurnTimes
from service.network.request import PeerContext, PeerLimits, RequestContext, Response
from service.network.server import Server
from service.wire.frames import frame
from tests.support.echo_server import FILE_ANSWER, connect, receive, run, serving
from tests.support.waiting import until


def test_answers_come_in_order_whatever_kind_they_are() -> None:
    async def scenario() -> None:
        rng = random.Random(7)
        async with serving() as (server, _):
            reader, writer = await connect(server)
            stream, expected = b"", []
            for _ in range(200):
                kind = rng.choice("eeelnf" if rng.random() < 0.1 else "eeln")
                request = kind.encode() + rng.randbytes(rng.choice([0, 5, 3000, 70_000]))
                stream += frame(request)
                if kind == "f":
                    expected.append(FILE_ANSWER)
                elif kind != "n":
                    expected.append(request)

            async def send() -> None:
                at = 0
                while at < len(stream):
                    piece = rng.choice([1, 3, 100, 9000, 200_000])
                    writer.write(stream[at : at + piece])
                    await writer.drain()
                    at += piece

            sending = asyncio.create_task(send())
            for answer in expected:
                assert await receive(reader) == answer
            await sending
            assert server.counters.requests == 200
            assert server.request_memory_bytes == 0
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", 2**31 - 1) + b"x",
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        frame(b""),
        frame(b"m and what follows is not read") + frame(b"e"),
    ],
)
def test_garbage_costs_its_own_connection_only(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(max_request_bytes=1 << 20)) as (server, _):
            good_reader, good_writer = await connect(server)
            good_writer.write(frame(b"e1"))
            assert await receive(good_reader) == b"e1"
            reader, writer = await connect(server)
            writer.write(frame(b"e0") + garbage)
            with suppress(ConnectionResetError):
                assert await reader.read() == frame(b"e0")
            good_writer.write(frame(b"e2"))
            assert await receive(good_reader) == b"e2"
            assert server.counters.wire_errors == 1
            good_writer.close()
            writer.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert "127.0.0.1" in caplog.text


def test_a_bug_in_a_handler_is_logged_and_costs_that_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            reader, writer = await connect(server)
            writer.write(frame(b"bug"))
            assert await reader.read() == b""
            assert server.counters.handler_errors == 1
            writer.close()

    run(scenario())
    assert "ValueError: a bug" in caplog.text


def test_a_file_that_is_too_short_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            reader, writer = await connect(server)
            writer.write(frame(b"s"))
            with suppress(ConnectionResetError):
                assert len(await reader.read()) <= 4 + 50_000
            assert server.counters.handler_errors == 1
            writer.close()

    run(scenario())
    assert "StorageError" in caplog.text


def test_a_half_closed_peer_still_gets_what_it_asked_for() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            reader, writer = await connect(server)
            writer.write(frame(b"later") + frame(b"later too") + frame(b"e3") + frame(b"f") + b"\x00\x00")
            writer.write_eof()
            assert await receive(reader) == b"later"
            assert await receive(reader) == b"later too"
            assert await receive(reader) == b"e3"
            assert await receive(reader) == FILE_ANSWER
            assert await reader.read() == b""
            await until(lambda: server.connection_count == 0)
            writer.close()

    run(scenario())


def test_closing_lets_requests_under_way_finish() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            waiting, idle = await connect(server), await connect(server)
            waiting[1].write(frame(b"w") + frame(b"e: not taken up any more"))
            await until(lambda: bool(echo.contexts))
            closing = asyncio.create_task(server.close(grace_s=5))
            assert await idle[0].read() == b""
            echo.released.set()
            assert await receive(waiting[0]) == b"write"
            await closing
            with pytest.raises(ConnectionRefusedError):
                await connect(server)
            for _, writer in (waiting, idle):
                writer.close()

    run(scenario())


def test_closing_cuts_what_does_not_finish() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            _, writer = await connect(server)
            writer.write(frame(b"w"))
            await until(lambda: bool(echo.contexts))
            await server.close(grace_s=0.05)
            await asyncio.sleep(0)
            assert server.connection_count == 0
            writer.close()

    run(scenario())


def test_closing_does_not_wait_for_long_polls() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            reader, writer = await connect(server)
            writer.write(frame(b"p"))
            await until(lambda: bool(echo.contexts))
            await server.close(grace_s=60)  # more than a scenario may take
            assert await reader.read() == b""
            assert echo.cancelled == ["poll"]
            writer.close()

    run(scenario())


def test_an_address_that_cannot_be_had_is_named_in_one_line() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            with pytest.raises(ConfigError) as refused:
                await Server("127.0.0.1", server.port, echo).start()
            assert str(refused.value) == (
                f"listeners: PLAINTEXT://127.0.0.1:{server.port}: Address already in use"
            )
            with pytest.raises(
                ConfigError, match=r"^listeners: PLAINTEXT://no\.such\.host\.invalid:1: [^\n]+$"
            ):
                await Server("no.such.host.invalid", 1, echo).start()

    run(scenario())


def test_a_request_that_holds_the_loop_is_named() -> None:
    def slow(context: RequestContext, request: memoryview) -> Response:
        context.api_key = 0
        if request == b"slow":
            time.sleep(0.03)
        return Response([frame(b"done")])

    def describe(context: PeerContext, request: memoryview | None) -> str:
        return f"{bytes(request or b'').decode()} of connection {context.connection_id}"

    async def scenario() -> None:
        turns = TurnTimes()
        server = Server("127.0.0.1", 0, slow, turns=turns, describe=describe)
        await server.start()
        try:
            reader, writer = await connect(server)
            writer.write(frame(b"quick") + frame(b"slow") + frame(b"quick"))
            await reader.readexactly(3 * len(frame(b"done")))
            writer.close()
        finally:
            await server.close(grace_s=0.2)
        turns.note_turn(0.04, 0.0)
        assert [one.who for one in turns.longest] == ["slow of connection 1"]
        api = server.counters.of(0)
        assert api.handling().observed == 3
        assert api.handling().total >= 0.03
        assert api.total().observed == 3
        assert api.total().total >= api.handling().total
        assert api.received_bytes == 14
        assert api.sent_bytes == 3 * len(frame(b"done"))

    asyncio.run(scenario())


def test_an_answer_that_comes_later_is_counted_with_its_time() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            reader, writer = await connect(server)
            writer.write(frame(b"later"))
            await reader.readexactly(len(frame(b"later")))
            writer.close()
            api = server.counters.of(-1)
            assert api.later.snapshot().observed == 1
            assert api.later.total > 0
            assert api.handling().observed == 1
            assert api.total().observed == 1

    asyncio.run(scenario())
