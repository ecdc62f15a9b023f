"""Requests that are handled before the one ahead of them is answered: in order, bounded, and for all ends."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.network.request import Answer, Later, Owed, PendingResponse, RequestContext, Response
from service.network.server import Server
from service.wire.errors import MalformedMessage
from service.wire.frames import frame
from tests.support.waiting import until
from tests.unit.network.test_pending_responses import connect, receive, run

ROOM = 64
OWED, OWED_LATER, PLAIN, LATER, NOTHING, WRONG = b"o", b"t", b"p", b"l", b"n", b"x"


class Overtaken(PendingResponse):
    """An answer behind which others may be asked for."""

    __slots__ = ("weight",)

    def __init__(self, weight: int = 1) -> None:
        super().__init__()
        self.weight = weight


class Host:
    """The first two bytes are the API, the third one says how it is answered."""

    def __init__(self) -> None:
        self.open: deque[tuple[PendingResponse, bytes]] = deque()
        self.handled: list[bytes] = []
        self.weight = 1
        self.answer_bytes = 0

    def __call__(self, context: RequestContext, request: memoryview) -> Answer | Later:
        raw = bytes(request)
        context.api_key = int.from_bytes(raw[:2])
        self.handled.append(raw)
        kind = raw[2:3]
        if kind == OWED:
            promise = Overtaken(self.weight)
            self.open.append((promise, raw))
            return promise
        if kind == OWED_LATER:
            return self._owed_later(raw)
        if kind == WRONG:
            raise MalformedMessage("not that")
        if kind == LATER:
            return self._later(raw)
        return None if kind == NOTHING else Response([frame(raw)])

    async def _later(self, raw: bytes) -> Answer:
        await asyncio.sleep(0)
        return Response([frame(raw)])

    async def _owed_later(self, raw: bytes) -> Answer:
        """The request takes a task, and is owed only then."""
        await asyncio.sleep(0)
        promise = Overtaken(self.weight)
        self.open.append((promise, raw))
        await asyncio.sleep(0)  # it may be kept before the connection knows of it
        return Owed(promise)

    def keep(self, at: int = 0) -> None:
        promise, raw = self.open[at]
        del self.open[at]
        promise.set_result(Response([frame(raw + bytes(self.answer_bytes))]))


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, Host]]:
    host = Host()
    server = Server("127.0.0.1", 0, host)
    await server.start()
    try:
        yield server, host
    finally:
        await server.close(grace_s=0.2)
        assert server.connection_count == 0


def asked(kind: bytes, number: int = 0, api: int = 0) -> bytes:
    return api.to_bytes(2) + kind + number.to_bytes(4)


def test_all_are_handled_before_the_first_is_answered_and_answered_in_order() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            reader, writer = await connect(server)
            requests = [asked(OWED, number) for number in range(10)]
            writer.write(b"".join(map(frame, requests)))
            await until(lambda: len(host.open) == 10)
            assert len(list(server.being_answered())) == 1
            while host.open:
                host.keep(len(host.open) - 1)  # the last one first
            assert [await receive(reader) for _ in requests] == requests
            assert sum(server.counters.apis[0].later.counts) == 10
            writer.close()

    run(scenario())


def test_a_request_that_took_a_task_is_owed_in_its_place() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            reader, writer = await connect(server)
            requests = [asked(OWED, 1), asked(OWED_LATER, 2), asked(OWED_LATER, 3), asked(OWED, 4)]
            writer.write(b"".join(map(frame, requests)))
            await until(lambda: len(host.open) == 4)
            assert host.handled == requests
            while host.open:
                host.keep(len(host.open) - 1)
            assert [await receive(reader) for _ in requests] == requests
            assert sum(server.counters.apis[0].later.counts) == 4
            assert server.counters.apis[0].total().observed == 4
            writer.close()

    run(scenario())


def test_an_answer_that_is_owed_to_a_gone_peer_is_dropped() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            _, writer = await connect(server)
            writer.write(frame(asked(OWED_LATER, 1)))
            await until(lambda: len(host.handled) == 1)
            writer.transport.abort()
            await until(lambda: bool(host.open))
            await asyncio.sleep(0.01)
            host.keep()
            await until(lambda: server.connection_count == 0)
            assert server.counters.handler_errors == 0

    run(scenario())


def test_another_api_waits_until_no_response_is_pending() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            reader, writer = await connect(server)
            requests = [asked(OWED, 1), asked(PLAIN, 2, api=3), asked(OWED, 3), asked(PLAIN, 4)]
            writer.write(b"".join(map(frame, requests)))
            await until(lambda: len(host.open) == 1)
            await asyncio.sleep(0.01)
            assert host.handled == requests[:1]
            host.keep()
            await until(lambda: len(host.open) == 1)
            assert await receive(reader) == requests[0]
            assert await receive(reader) == requests[1]
            await until(lambda: host.handled == requests)
            host.keep()
            assert [await receive(reader) for _ in range(2)] == requests[2:]
            writer.close()

    run(scenario())


def test_no_more_is_owed_than_there_is_room_for() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            for host.weight, most in ((1, ROOM), (10, -(-ROOM // 10)), (1000, 1)):
                reader, writer = await connect(server)
                requests = [asked(OWED, number) for number in range(3 * ROOM)]
                writer.write(b"".join(map(frame, requests)))
                for request in requests:
                    left = len(requests) - requests.index(request)
                    await until(lambda left=left, most=most: len(host.open) == min(most, left))  # type: ignore[misc]
                    host.keep()
                    assert await receive(reader) == request
                writer.close()

    run(scenario())


def test_any_mixture_is_answered_in_order() -> None:
    async def scenario() -> None:
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        async with serving() as (server, host):
            reader, writer = await connect(server)
            kinds = (OWED, OWED, OWED, OWED_LATER, PLAIN, LATER, NOTHING)
            requests = [asked(rng.choice(kinds), n, rng.choice((0, 0, 0, 3))) for n in range(600)]

            async def keep() -> None:
                while True:
                    for _ in range(rng.randrange(4)):
                        if host.open:
                            host.keep(rng.randrange(len(host.open)))
                    await asyncio.sleep(0)

            keeping = asyncio.create_task(keep())
            for request in requests:
                writer.write(frame(request))
                if rng.random() < 0.2:
                    await asyncio.sleep(0)
            told = [one for one in requests if one[2:3] != NOTHING]
            assert [await receive(reader) for _ in told] == told, f"seed {seed}"
            assert host.handled == requests, f"seed {seed}"
            keeping.cancel()
            writer.close()

    run(scenario())


def test_nonsense_ends_the_connection_once_those_before_it_are_answered() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            for nonsense in (
                frame(asked(WRONG)),
                frame(asked(WRONG, api=3)),
                b"\xff\xff\xff\xff",
                b"\x7f" * 9,
            ):
                reader, writer = await connect(server)
                writer.write(frame(asked(OWED, 1)) + frame(asked(OWED, 2)) + nonsense)
                await until(lambda: len(host.open) == 2)
                host.keep()
                assert await receive(reader) == asked(OWED, 1)
                host.keep()
                assert await receive(reader) == asked(OWED, 2)
                assert await reader.read() == b""
                writer.close()
            assert server.counters.wire_errors == 4

    run(scenario())


def test_a_half_closed_peer_is_answered_and_a_gone_one_forgotten() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            reader, writer = await connect(server)
            writer.write(frame(asked(OWED, 1)) + frame(asked(OWED, 2)) + frame(asked(PLAIN, 3, api=3)))
            await until(lambda: len(host.open) == 2)
            writer.transport.abort()
            await asyncio.sleep(0.01)
            host.keep()
            host.keep()
            await until(lambda: server.connection_count == 0)
            reader, writer = await connect(server)
            requests = [asked(OWED, 1), asked(OWED, 2), asked(PLAIN, 3, api=3)]
            writer.write(b"".join(map(frame, requests)))
            writer.write_eof()
            await until(lambda: len(host.open) == 2)
            await asyncio.sleep(0.01)
            host.keep()
            host.keep()
            assert [await receive(reader) for _ in requests] == requests
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_a_server_that_closes_answers_what_it_owes() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            reader, writer = await connect(server)
            writer.write(frame(asked(OWED, 1)) + frame(asked(OWED, 2)))
            await until(lambda: len(host.open) == 2)
            closing = asyncio.create_task(server.close(grace_s=5))
            await asyncio.sleep(0.01)
            host.keep()
            host.keep()
            assert [await receive(reader) for _ in range(2)] == [asked(OWED, 1), asked(OWED, 2)]
            assert await reader.read() == b""
            await closing
            writer.close()

    run(scenario())


def test_a_peer_that_does_not_read_is_owed_no_more_than_there_is_room_for() -> None:
    async def scenario() -> None:
        async with serving() as (server, host):
            host.answer_bytes = 1 << 20
            reader, writer = await connect(server)
            requests = [asked(OWED, number) for number in range(3 * ROOM)]
            writer.write(b"".join(map(frame, requests)))
            for _ in range(50):
                while host.open:
                    host.keep()
                await asyncio.sleep(0.001)
            assert len(host.handled) <= 2 * ROOM + 8

            async def keep() -> None:
                while True:
                    while host.open:
                        host.keep()
                    await asyncio.sleep(0.001)

            keeping = asyncio.create_task(keep())
            assert [(await receive(reader))[:7] for _ in requests] == requests
            keeping.cancel()
            writer.close()

    run(scenario())
