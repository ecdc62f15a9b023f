"""The server over real sockets: order, splits, hostile peers, slow readers, files, many connections, ends."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest

from service.base.errors import ConfigError
from service.base.turns import TurnTimes
from service.network import sender
from service.network.admission import Admission
from service.network.request import PeerLimits, RequestContext, Response
from service.network.server import Server
from service.wire.errors import MalformedMessage
from service.wire.frames import frame
from tests.support.near_file import NearFile
from tests.support.waiting import until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class File(NearFile):
    def __init__(self, content: bytes) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.write(content)
        self._file.flush()
        self.fd = self._file.fileno()

    def pread(self, size: int, position: int) -> bytes:
        return os.pread(self.fd, size, position)

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        return os.sendfile(socket_fd, self.fd, position, size)

    def close(self) -> None:
        self._file.close()


class FileSlice(NamedTuple):
    file: File
    position: int
    size: int


CONTENT = random.Random(1).randbytes(3 << 20)


class Echo:
    """Answers by the first byte: echo, later, no answer, file, short file, malformed, bug, poll, write."""

    def __init__(self) -> None:
        self.file = File(CONTENT)
        self.cancelled: list[str] = []
        self.contexts: list[RequestContext] = []
        self.released = asyncio.Event()

    def __call__(
        self, context: RequestContext, request: memoryview
    ) -> Response | Awaitable[Response | None] | None:
        self.contexts.append(context)
        kind = chr(request[0]) if len(request) else "m"
        if kind == "e":
            return Response([struct.pack(">i", len(request)), request])
        if kind == "n":
            return None
        if kind == "l":
            return self._later(request)
        if kind == "p":
            context.cancel_on_disconnect = True
            return self._poll("poll")
        if kind == "w":
            return self._poll("write")
        if kind == "f":
            return Response(self.file_parts())
        if kind == "s":
            return Response(
                [struct.pack(">i", 100_000), FileSlice(self.file, len(CONTENT) - 50_000, 100_000)]
            )
        if kind == "m":
            raise MalformedMessage("cannot make sense of it")
        raise ValueError("a bug")

    def file_parts(self) -> list[Any]:
        slices = [
            FileSlice(self.file, 5, 1 << 20),
            FileSlice(self.file, 77, 100),
            FileSlice(self.file, 9, 2 << 20),
        ]
        parts: list[Any] = [slices[0], b"<middle>", slices[1], b"", slices[2]]
        size = sum(part.size if isinstance(part, FileSlice) else len(part) for part in parts)
        return [struct.pack(">i", size), *parts]

    async def _later(self, request: memoryview) -> Response:
        await asyncio.sleep(0.001)
        return Response([struct.pack(">i", len(request)), bytes(request)])

    async def _poll(self, name: str) -> Response:
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        return Response([frame(name.encode())])


FILE_ANSWER = CONTENT[5 : 5 + (1 << 20)] + b"<middle>" + CONTENT[77:177] + CONTENT[9 : 9 + (2 << 20)]


@asynccontextmanager
async def serving(
    limits: PeerLimits | None = None, admission: Admission | None = None
) -> AsyncIterator[tuple[Server, Echo]]:
    echo = Echo()
    server = Server("127.0.0.1", 0, echo, limits=limits, admission=admission)
    await server.start()
    try:
        yield server, echo
    finally:
        await server.close(grace_s=0.2)
        assert server.connection_count == 0
        echo.file.close()


async def connect(server: Server) -> Streams:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def receive(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(bounded())


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


def test_a_claimed_size_costs_nothing_until_the_bytes_come() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            writers = []
            for _ in range(50):
                _, writer = await connect(server)
                writer.write(struct.pack(">i", 100 << 20) + b"ten bytes!")
                writers.append(writer)
            await until(lambda: server.counters.received_bytes == 50 * 14)
            assert server.request_memory_bytes <= 50 * 4096
            for writer in writers:
                writer.close()
            await until(lambda: server.connection_count == 0)
            assert server.request_memory_bytes == 0

    run(scenario())


def test_requests_over_the_memory_budget_wait_for_each_other() -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(request_memory_bytes=1 << 20)) as (server, _):
            request = b"e" + bytes(900_000)
            peak = 0

            async def ask() -> None:
                nonlocal peak
                reader, writer = await connect(server)
                for at in range(0, len(request) + 4, 100_000):
                    writer.write(frame(request)[at : at + 100_000])
                    await writer.drain()
                    await asyncio.sleep(0.001)
                    peak = max(peak, server.request_memory_bytes)
                assert await receive(reader) == request
                writer.close()

            await asyncio.gather(*(ask() for _ in range(12)))
            assert peak <= (1 << 20) + len(request) + 12 * (128 << 10)
            assert server.request_memory_bytes == 0

    run(scenario())


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


def test_an_answer_that_comes_when_its_peer_is_gone_is_let_go_of() -> None:
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


def test_a_peer_that_leaves_in_the_middle_of_a_file_disturbs_nobody() -> None:
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


def test_hundreds_of_idle_connections_hold_no_buffers() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            peers = [await connect(server) for _ in range(300)]
            for _, writer in peers:
                writer.write(frame(b"e" + bytes(2000)))
            for reader, _ in peers:
                assert len(await receive(reader)) == 2001
            assert server.connection_count == 300
            assert server.request_memory_bytes == 0
            for _, writer in peers:
                writer.close()

    run(scenario())


def test_connections_over_the_limit_wait_for_one_to_end() -> None:
    async def scenario() -> None:
        async with serving(admission=Admission(2)) as (server, _):
            one, two = await connect(server), await connect(server)
            two[1].write(frame(b"e"))
            assert await receive(two[0]) == b"e"
            waiting = [await connect(server) for _ in range(3)]
            for n, (_, writer) in enumerate(waiting):
                writer.write(frame(b"e%d" % n))
            first = asyncio.ensure_future(receive(waiting[0][0]))
            await asyncio.sleep(0.05)
            assert not first.done()
            assert server.counters.requests == 1
            one[1].close()
            assert await first == b"e0"
            for n in (1, 2):
                waiting[n - 1][1].close()
                assert await receive(waiting[n][0]) == b"e%d" % n
            for _, writer in (two, waiting[2]):
                writer.close()
            await until(lambda: server.connection_count == 0)
            again = await connect(server)
            again[1].write(frame(b"e"))
            assert await receive(again[0]) == b"e"
            again[1].close()

    run(scenario())


def test_the_limit_on_connections_is_one_over_all_listeners() -> None:
    async def scenario() -> None:
        admission = Admission(2)
        async with serving(admission=admission) as (a, _), serving(admission=admission) as (b, _):
            one, two = await connect(a), await connect(a)
            await until(lambda: admission.count == 2)
            third = await connect(b)
            third[1].write(frame(b"e"))
            await asyncio.sleep(0.05)
            assert b.counters.requests == 0
            two[1].close()
            assert await receive(third[0]) == b"e"
            for _, writer in (one, third):
                writer.close()

    run(scenario())


def test_no_more_descriptors_are_taken_than_the_limit_allows() -> None:
    async def scenario() -> None:
        async with serving(admission=Admission(2)) as (server, _):
            let_in = [await connect(server) for _ in range(2)]
            await until(lambda: server.connection_count == 2)
            before = len(os.listdir("/proc/self/fd"))
            outside = [await connect(server) for _ in range(50)]
            await asyncio.sleep(0.05)
            assert len(os.listdir("/proc/self/fd")) == before + len(outside)
            assert server.connection_count == 2
            for _, writer in (*let_in, *outside):
                writer.close()

    run(scenario())


def test_who_leaves_while_waiting_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with serving(admission=Admission(1)) as (server, _):
            # All come before any is let in: some are accepted at once and wait on this side.
            streams = await asyncio.gather(*(connect(server) for _ in range(4)))
            for _, writer in streams:
                writer.write(frame(b"e"))
            for _, writer in streams[:3]:
                writer.close()
            assert await receive(streams[3][0]) == b"e"
            streams[3][1].close()

    run(scenario())


def test_idle_connections_are_closed_but_not_those_that_wait_for_an_answer() -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(idle_ms=150)) as (server, echo):
            idle, polling, half = [await connect(server) for _ in range(3)]
            polling[1].write(frame(b"p"))
            half[1].write(b"\x00\x00\x01")
            with suppress(ConnectionResetError):
                assert await idle[0].read() == b""
            with suppress(ConnectionResetError):
                assert await half[0].read() == b""
            assert server.connection_count == 1
            assert server.counters.idle_closed == 2
            echo.released.set()
            assert await receive(polling[0]) == b"poll"
            for _, writer in (idle, polling, half):
                writer.close()

    run(scenario())


def test_a_reader_that_stops_reading_is_closed_when_idle() -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(idle_ms=200)) as (server, _):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 10)
            writer.write(frame(b"f") * 10)
            await until(lambda: server.counters.requests > 0)
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


def test_silent_connections_do_not_keep_memory_from_those_that_go_on() -> None:
    async def scenario() -> None:
        async with serving(PeerLimits(request_memory_bytes=1 << 20)) as (server, _):
            silent = []
            for _ in range(12):
                _, writer = await connect(server)
                writer.write(struct.pack(">i", 1 << 20) + bytes(100_000))
                silent.append(writer)
            await until(lambda: server.request_memory_bytes > 900_000)
            reader, writer = await connect(server)
            request = b"e" + bytes(150_000)
            for _ in range(50):
                writer.write(frame(request))
                assert await receive(reader) == request
            assert server.counters.ended_for_memory >= 1
            for one in [*silent, writer]:
                one.close()

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


def test_who_does_not_take_its_answer_is_disconnected_and_lets_go_of_it() -> None:
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


def test_who_holds_the_loop_is_told_with_what_he_asked() -> None:
    def slow(context: RequestContext, request: memoryview) -> Response:
        context.api_key = 0
        if request == b"slow":
            time.sleep(0.03)
        return Response([frame(b"done")])

    def describe(context: RequestContext, request: memoryview | None) -> str:
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

    asyncio.run(scenario())
