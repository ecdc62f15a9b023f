"""Limits of the server: memory of requests, number of connections, idle time."""

from __future__ import annotations

import asyncio
import os
import struct
from contextlib import suppress

from service.network.admission import Admission
from service.network.request import PeerLimits
from service.wire.frames import frame
from tests.support.echo_server import connect, receive, run, serving
from tests.support.waiting import until


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
        async with serving(admission=Admission(lambda: 2)) as (server, _):
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
        admission = Admission(lambda: 2)
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
        async with serving(admission=Admission(lambda: 2)) as (server, _):
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


def test_a_peer_that_disconnects_in_the_queue_is_skipped() -> None:
    async def scenario() -> None:
        async with serving(admission=Admission(lambda: 1)) as (server, _):
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
