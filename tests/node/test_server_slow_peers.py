"""Peers of the server that read or write slowly, or disconnect before their response."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress

import pytest

from service.network import sender
from service.network.request import PeerLimits, RequestContext, Response
from service.network.server import Server
from service.wire.frames import frame
from tests.support.echo_server import FILE_ANSWER, connect, receive, run, serving
from tests.support.waiting import until


def test_a_slow_reader_gets_its_answers_and_grows_no_memory() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 12)
            fast_reader, fast_writer = await connect(server)
            for _ in range(20):
                writer.write(frame(b"f"))
            await asyncio.sleep(0.1)
            # Only the first of its requests is under way; the others wait, and so do not exist yet.
            assert server.counters.requests <= 4
            fast_writer.write(frame(b"e"))
            assert await receive(fast_reader) == b"e"
            for _ in range(20):
                assert await receive(reader) == FILE_ANSWER
            assert len(echo.contexts) == 21
            writer.close()
            fast_writer.close()

    run(scenario())


def test_a_slow_reader_of_memory_is_fed_piece_by_piece() -> None:
    async def scenario() -> None:
        big = bytes(range(256)) * (64 << 10)
        backlog = 0

        def handler(context: RequestContext, request: memoryview) -> Response:
            return Response([struct.pack(">i", len(big)), memoryview(big)])

        server = Server("127.0.0.1", 0, handler)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 12)
        writer.write(frame(b"x"))
        await asyncio.sleep(0.05)
        for peer in server._connections:
            backlog = max(backlog, peer._transport.get_write_buffer_size())
        assert backlog <= sender.PIECE_BYTES
        assert await receive(reader) == big
        writer.close()
        await server.close()

    run(scenario())


@pytest.mark.parametrize("leaves", [False, True], ids=["read to the end", "given up"])
def test_a_handler_is_told_once_when_its_answer_is_not_needed_any_more(leaves: bool) -> None:
    async def scenario() -> None:
        big = bytes(32 << 20)
        done: list[int] = []

        def handler(context: RequestContext, request: memoryview) -> Response:
            return Response([struct.pack(">i", len(big)), big], lambda: done.append(len(request)))

        server = Server("127.0.0.1", 0, handler)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 12)
        writer.write(frame(b"x"))
        await asyncio.sleep(0.1)
        assert done == []
        if leaves:
            writer.transport.abort()
        else:
            assert await receive(reader) == big
        while not done:
            await asyncio.sleep(0.01)
        writer.close()
        await server.close()
        assert done == [1]

    run(scenario())


def test_a_response_for_a_disconnected_peer_is_released() -> None:
    async def scenario() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()
        done: list[str] = []

        async def handler(context: RequestContext, request: memoryview) -> Response:
            asked.set()
            await go_on.wait()
            return Response([frame(b"late")], lambda: done.append("let go"))

        server = Server("127.0.0.1", 0, handler)
        await server.start()
        _, writer = await connect(server)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.write(frame(b"x"))
        await asked.wait()
        writer.close()
        await until(lambda: server.connection_count == 0)
        assert done == []
        go_on.set()
        await until(lambda: bool(done))
        await server.close()
        assert done == ["let go"]

    run(scenario())


def test_a_long_poll_ends_with_its_peer() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            _, writer = await connect(server)
            writer.write(frame(b"p"))
            await until(lambda: bool(echo.contexts))
            writer.close()
            await until(lambda: server.connection_count == 0)
            await until(lambda: echo.cancelled == ["poll"])

    run(scenario())


def test_a_write_goes_on_when_its_peer_is_gone() -> None:
    async def scenario() -> None:
        async with serving() as (server, echo):
            _, writer = await connect(server)
            reset = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            writer.write(frame(b"w"))
            await until(lambda: bool(echo.contexts))
            writer.close()
            await until(lambda: server.connection_count == 0)
            echo.released.set()
            await asyncio.sleep(0.01)
            assert echo.cancelled == []
            assert server.counters.handler_errors == 0

    run(scenario())


def test_a_peer_that_disconnects_during_sendfile_leaks_nothing() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 12)
                writer.write(frame(b"f") * 3)
                await asyncio.sleep(0.005)
                writer.transport.abort()
            await until(lambda: server.connection_count == 0)
            assert len(os.listdir("/proc/self/fd")) <= before + 1
            assert server.counters.handler_errors == 0
            reader, writer = await connect(server)
            writer.write(frame(b"e"))
            assert await receive(reader) == b"e"
            writer.close()

    run(scenario())


def test_a_peer_with_many_requests_at_hand_lets_others_go_first() -> None:
    order: list[bytes] = []

    def handler(context: RequestContext, request: memoryview) -> Response:
        order.append(bytes(request))
        if len(order) == 1:
            asyncio.get_running_loop().call_soon(order.append, b"another's turn")
        return Response([frame(bytes(request))])

    async def scenario() -> None:
        server = Server("127.0.0.1", 0, handler)
        await server.start()
        reader, writer = await connect(server)
        requests = [b"%d" % n for n in range(1000)]
        writer.write(b"".join(map(frame, requests)))
        assert [await receive(reader) for _ in requests] == requests
        assert order.index(b"another's turn") <= 256
        writer.close()
        await server.close(grace_s=0.2)

    run(scenario())


def test_a_request_that_comes_byte_by_byte_is_given_up_and_a_slow_but_steady_one_is_not() -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(read_timeout_ms=1000)) as (server, _):
            reader, writer = await connect(server)
            writer.write(struct.pack(">i", 5000))
            steady_reader, steady = await connect(server)
            request = b"e" + bytes(600_000)
            steady.write(frame(request)[:100_000])

            async def drip() -> None:
                with suppress(ConnectionError):
                    while True:
                        writer.write(b"x")
                        await writer.drain()
                        await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            with suppress(ConnectionError):
                assert await reader.read() == b""
            for at in range(100_000, len(request) + 4, 100_000):
                steady.write(frame(request)[at : at + 100_000])
                await asyncio.sleep(0.2)
            assert await receive(steady_reader) == request
            assert server.counters.late_requests == 1
            dripping.cancel()
            steady.close()
            writer.close()

    run(scenario())


def test_requests_behind_a_long_poll_are_not_late() -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(read_timeout_ms=1000)) as (server, echo):
            reader, writer = await connect(server)
            writer.write(frame(b"p") + frame(b"e1"))
            await asyncio.sleep(2.5)
            echo.released.set()
            assert await receive(reader) == b"poll"
            assert await receive(reader) == b"e1"
            writer.close()

    run(scenario())


def test_a_peer_that_does_not_read_its_response_is_disconnected() -> None:
    async def scenario() -> None:
        big = bytes(32 << 20)
        done: list[int] = []

        def handler(context: RequestContext, request: memoryview) -> Response:
            return Response([struct.pack(">i", len(big)), big], lambda: done.append(len(request)))

        server = Server("127.0.0.1", 0, handler, limits=PeerLimits(send_timeout_ms=1000))
        await server.start()
        # Small buffers of the kernel's, so that what lies in them gives little time.
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        await until(lambda: server.connection_count == 1)
        for peer in server._connections:
            own = peer._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await asyncio.get_running_loop().sock_sendall(sock, frame(b"x"))
        async with asyncio.timeout(18):
            while not done:
                await asyncio.sleep(0.02)
        assert server.counters.late_responses == 1
        assert server.connection_count == 0
        sock.close()
        await server.close()

    run(scenario())
