"""Logins over real sockets: order, splits, limits of size and time, delays, a crowd of silent peers."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from service.base.rate_limited_log import RateLimitedLog
from service.network.admission import Admission
from service.network.authenticating import ListenerLogins
from service.network.metrics import NetworkMetrics
from service.network.request import PeerLimits, RequestContext, Response
from service.network.server import Server
from service.security.login_settings import make_servers
from service.security.scram import UnknownUsers
from tests.support.echo_server import receive, run
from tests.support.login_frames import message, sized
from tests.support.logins import Listener, answer_versions, bobs
from tests.support.waiting import until

LOGIN = ("versions", "plain", "right")


@asynccontextmanager
async def serving(
    *, max_connections: int = 1000, limits: PeerLimits | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, Listener]]:
    """A server with logins; its handler and its settings are `tests.support.logins.Listener`'s."""
    loop = asyncio.get_running_loop()
    listener = Listener(**settings)
    metrics = NetworkMetrics()
    logins = ListenerLogins(
        listener.settings,
        make_servers(listener.settings, bobs, UnknownUsers(b"cluster"), lambda: "of-the-server"),
        "SASL_PLAINTEXT",
        metrics.logins_of("SASL"),
        now=loop.time,
        now_ms=lambda: int(time.time() * 1000),
        warnings=RateLimitedLog(logging.getLogger("tests"), now=loop.time),
    )
    logins.answer_versions = answer_versions
    server = Server(
        "127.0.0.1", 0, listener.handle,
        limits=limits, listener="SASL", admission=Admission(lambda: max_connections), metrics=metrics,
        logins=logins,
    )  # fmt: skip
    await server.start()
    try:
        yield server, listener
    finally:
        await server.close(0.1)


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


def stream_of(*names: str) -> bytes:
    return b"".join(sized(message(name, number)) for number, name in enumerate(names))


async def answers(reader: asyncio.StreamReader) -> list[bytes]:
    """All answers until the server closes."""
    found = []
    with suppress(asyncio.IncompleteReadError, ConnectionResetError):
        while True:
            found.append(await receive(reader))
    return found


def test_everything_at_once_is_handled_in_order_each_after_the_one_before() -> None:
    async def scenario() -> None:
        async with serving() as (server, listener):
            reader, writer = await connect(server)
            writer.write(stream_of(*LOGIN, "metadata", "metadata"))
            found = [await receive(reader) for _ in range(5)]
            assert [struct.unpack_from(">i", one)[0] for one in found] == [0, 1, 2, 3, 4]
            assert listener.asked == [("User:alice", 3), ("User:alice", 3)]
            metrics = server.counters.logins["SASL"]
            assert (metrics.succeeded, metrics.failed) == (1, 0)
            writer.close()

    run(scenario())


def test_any_split_of_the_bytes_gives_the_same() -> None:
    async def scenario() -> None:
        stream = stream_of(*LOGIN, "metadata")
        async with serving() as (server, listener):

            async def in_two(at: int) -> list[bytes]:
                reader, writer = await connect(server)
                writer.write(stream[:at])
                await asyncio.sleep(0.002)
                writer.write(stream[at:])
                found = [await receive(reader) for _ in range(4)]
                writer.close()
                return found

            whole = await in_two(len(stream))
            for start in range(0, len(stream), 40):
                parts = range(start, min(start + 40, len(stream)))
                assert all(found == whole for found in await asyncio.gather(*map(in_two, parts)))
            reader, writer = await connect(server)
            for at in range(len(stream)):
                writer.write(stream[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0)
            assert [await receive(reader) for _ in range(4)] == whole
            writer.close()
            assert set(listener.asked) == {("User:alice", 3)}

    run(scenario())


@pytest.mark.parametrize(
    "names",
    [
        ("produce", *LOGIN),
        ("versions", "produce", "plain", "right"),
        ("versions", "plain", "produce", "right", "produce"),
        ("versions", "plain", "wrong", "produce", "right", "produce"),
        ("versions", "gssapi", "right", "produce"),
        ("plain-bare", "produce", "token", "produce"),
    ],
)
def test_requests_before_between_and_behind_a_failed_login_are_not_handled(names: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with serving() as (server, listener):
            reader, writer = await connect(server)
            writer.write(stream_of(*names))
            await answers(reader)
            assert not listener.asked
            writer.close()

    run(scenario())


def test_a_failure_is_answered_after_the_delay_and_nothing_is_read_meanwhile() -> None:
    async def scenario() -> None:
        async with serving(failed_delay_ms=300) as (server, listener):
            reader, writer = await connect(server)
            began = time.monotonic()
            writer.write(stream_of("plain", "wrong", "metadata"))
            await receive(reader)
            await until(lambda: server.counters.logins["SASL"].failed == 1)
            writer.write(bytes(2 << 20))
            assert server.request_memory_bytes == 0
            refused = await receive(reader)
            assert 0.25 < time.monotonic() - began < 2
            assert struct.unpack_from(">h", refused, 5)[0] == 58
            assert await answers(reader) == []
            assert not listener.asked
            writer.close()

    run(scenario())


def test_a_failed_login_counts_as_a_connection_until_it_is_closed() -> None:
    async def scenario() -> None:
        async with serving(failed_delay_ms=300, max_connections=1) as (server, _):
            reader, writer = await connect(server)
            writer.write(stream_of("plain", "wrong"))
            await until(lambda: server.counters.logins.get("SASL") is not None)
            await until(lambda: server.counters.logins["SASL"].failed == 1)
            other_reader, other = await connect(server)
            other.write(stream_of("plain"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await receive(other_reader)
            await answers(reader)
            assert await receive(other_reader)
            writer.close()
            other.close()

    run(scenario())


def test_a_server_that_stops_does_not_wait_for_the_delay() -> None:
    async def scenario() -> None:
        async with serving(failed_delay_ms=60_000) as (server, _):
            reader, writer = await connect(server)
            writer.write(stream_of("plain", "wrong"))
            await receive(reader)
            await until(lambda: server.counters.logins["SASL"].failed == 1)
            began = time.monotonic()
            await server.close(5)
            assert time.monotonic() - began < 2
            writer.close()

    run(scenario())


@pytest.mark.parametrize("size", [524_289, 2**31 - 1, -1])
def test_a_frame_over_the_limit_of_logins_closes_before_it_arrives(size: int) -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            for before in ((), ("versions",), ("versions", "plain")):
                reader, writer = await connect(server)
                writer.write(stream_of(*before) + struct.pack(">i", size))
                assert len(await answers(reader)) == len(before)
                writer.close()
            assert server.request_memory_bytes == 0

    run(scenario())


def test_after_a_login_requests_may_be_large() -> None:
    async def scenario() -> None:
        async with serving() as (server, listener):
            reader, writer = await connect(server)
            large = message("metadata", 3) + bytes(2 << 20)
            writer.write(stream_of(*LOGIN) + sized(large))
            for _ in range(4):
                await receive(reader)
            assert listener.asked == [("User:alice", 3)]
            writer.close()

    run(scenario())


def test_peers_that_do_not_log_in_in_time_are_closed_and_make_room() -> None:
    async def scenario() -> None:
        async with serving(timeout_ms=400, max_connections=300) as (server, listener):
            rng = random.Random(5)
            silent = [await connect(server) for _ in range(300)]
            for reader, writer in silent[::3]:
                writer.write(stream_of("versions", "plain")[: rng.randrange(1, 60)])
                del reader
            innocent_reader, innocent = await connect(server)
            innocent.write(stream_of(*LOGIN, "metadata"))
            async with asyncio.timeout(5):
                for _ in range(4):
                    await receive(innocent_reader)
            assert listener.asked == [("User:alice", 3)]
            await until(lambda: server.counters.logins["SASL"].late == 300)
            await asyncio.sleep(0.5)
            innocent.write(sized(message("metadata", 9)))
            assert await receive(innocent_reader), "who has logged in stays"
            assert server.request_memory_bytes == 0
            for _, writer in [*silent, (innocent_reader, innocent)]:
                writer.close()

    run(scenario())


def test_a_peer_that_dribbles_is_closed_all_the_same() -> None:
    async def scenario() -> None:
        async with serving(timeout_ms=300) as (server, _):
            reader, writer = await connect(server)
            began = time.monotonic()
            with suppress(ConnectionError):
                for byte in stream_of(*LOGIN):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.05)
                    if reader.at_eof():
                        break
            assert time.monotonic() - began < 3
            assert server.counters.logins["SASL"].late == 1
            writer.close()

    run(scenario())


def test_sessions_that_end_are_closed_at_the_next_request() -> None:
    async def scenario() -> None:
        async with serving(max_reauth_ms={"PLAIN": 200}) as (server, listener):
            reader, writer = await connect(server)
            writer.write(stream_of(*LOGIN, "metadata"))
            for _ in range(4):
                await receive(reader)
            await asyncio.sleep(0.25)
            writer.write(sized(message("metadata", 5)))
            assert await answers(reader) == []
            assert len(listener.asked) == 1
            assert server.counters.logins["SASL"].expired == 1
            writer.close()

    run(scenario())


def test_messages_of_a_reauthentication_are_as_small_as_those_of_a_login() -> None:
    async def scenario() -> None:
        limits: dict[str, Any] = {"max_reauth_ms": {"PLAIN": 60_000}, "max_receive_bytes": 1000}
        async with serving(**limits) as (server, listener):
            for claimed, is_closed in ((1001, True), (1000, False), (100 << 20, True)):
                reader, writer = await connect(server)
                writer.write(stream_of(*LOGIN))
                large = sized(message("metadata", 3) + bytes(5000))
                writer.write(large + sized(message("plain", 4)))
                for _ in range(5):
                    await receive(reader)
                writer.write(struct.pack(">i", claimed))
                if is_closed:
                    assert await answers(reader) == []
                else:
                    writer.write(message("right", 5).ljust(claimed, b"\0"))
                    await receive(reader)
                    writer.write(large)
                    await receive(reader)
                writer.close()
            assert len(listener.asked) == 4, "what is no message of a login may be large, before and after"
            assert server.counters.logins["SASL"].succeeded_again == 1

    run(scenario())


def test_a_connection_without_logins_is_as_before() -> None:
    async def scenario() -> None:
        listener = Listener()
        server = Server("127.0.0.1", 0, listener.handle)
        await server.start()
        reader, writer = await connect(server)
        writer.write(stream_of("metadata"))
        await receive(reader)
        assert listener.asked == [("User:ANONYMOUS", 3)]
        assert not server.counters.logins
        writer.close()
        await server.close(0.1)

    run(scenario())


def test_a_reauthentication_waits_until_what_is_owed_is_answered() -> None:
    async def scenario() -> None:
        async with serving(max_reauth_ms={"PLAIN": 60_000}) as (server, listener):
            owed: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

            def slow(context: RequestContext, frame: memoryview) -> Response | asyncio.Future[Response]:
                answer = listener.handle(context, frame)
                return owed if frame[7] == 9 else answer  # by the last byte of the correlation id

            assert server._shared is not None
            server.set_handler(slow, server._shared.describe, answer_versions)
            reader, writer = await connect(server)
            writer.write(stream_of(*LOGIN))
            for _ in range(3):
                await receive(reader)
            again = sized(message("plain", 10)) + sized(message("right", 11)) + sized(message("metadata", 12))
            writer.write(sized(message("metadata", 9)) + again)
            await until(lambda: len(listener.asked) == 1)
            await asyncio.sleep(0.05)
            assert server.counters.logins["SASL"].succeeded_again == 0
            owed.set_result(Response([struct.pack(">ii", 4, 9)]))
            found = [struct.unpack_from(">i", await receive(reader))[0] for _ in range(4)]
            assert found == [9, 10, 11, 12]
            assert server.counters.logins["SASL"].succeeded_again == 1
            writer.close()

    run(scenario())


def test_a_thousand_reauthentications_are_one_a_second() -> None:
    async def scenario() -> None:
        async with serving(max_reauth_ms={"PLAIN": 60_000}) as (server, _):
            reader, writer = await connect(server)
            writer.write(stream_of(*LOGIN) + sized(message("plain", 3)) + sized(message("right", 4)))
            writer.write(b"".join(sized(message("plain", number)) for number in range(5, 1005)))
            found = [await receive(reader) for _ in range(1005)]
            refused = [one for one in found if one[4:6] == struct.pack(">h", 34)]
            assert len(refused) == 1000
            assert server.counters.logins["SASL"].succeeded_again == 1
            writer.close()

    run(scenario())


def test_ten_thousand_tokens_in_a_row_end_after_eight() -> None:
    async def scenario() -> None:
        async with serving() as (server, listener):
            reader, writer = await connect(server)
            tokens = b"".join(sized(message("wrong", number)) for number in range(10_000))
            with suppress(ConnectionError):
                writer.write(stream_of("scram") + tokens)
                await writer.drain()
            assert len(await answers(reader)) <= 9
            assert server.request_memory_bytes == 0
            assert not listener.asked
            writer.close()

    run(scenario())
