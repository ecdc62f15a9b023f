"""Requests that are taken several at a time: order of responses, what is counted, and what is read on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from service.base.turns import TurnTimes
from service.network.request import AnsweredRun, PeerLimits, RequestContext
from service.network.server import Server
from service.network.server_connection import ServerConnection
from service.wire.frames import frame
from tests.support.echo_server import Echo, connect, receive, run


class Runs:
    """Takes requests that begin with "e" and are no longer than `most_bytes`, one to nine at a time; their
    responses are themselves, made upper case."""

    def __init__(self) -> None:
        self.random = random.Random(3)
        self.taken: list[int] = []
        self.most_bytes = 1000

    def __call__(self, context: RequestContext, data: memoryview, start: int, end: int) -> AnsweredRun | None:
        most, count, answers, at = self.random.randint(0, 9), 0, bytearray(), start
        while count < most and end - at > 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4])
            if stop > end or stop - at > 4 + self.most_bytes or data[at + 4] != ord("e"):
                break
            answers += bytes(data[at:stop]).upper()
            at, count = stop, count + 1
        if not count:
            return None
        data[start:at] = bytes(at - start)  # it may write there
        context.api_key = 7
        self.taken.append(count)
        return AnsweredRun(count, at, (bytes(answers),), len(answers))


def test_answers_come_in_order_of_the_requests_taken_at_once_or_not() -> None:
    async def scenario() -> None:
        rng, echo, runs = random.Random(5), Echo(), Runs()

        def handler(context: RequestContext, request: memoryview) -> Any:
            context.api_key = 1
            return echo(context, request)

        server = Server("127.0.0.1", 0, echo)
        await server.bind()
        server.set_handler(handler, lambda context, request: "", runs=runs)
        await server.start()
        reader, writer = await connect(server)
        requests = [
            (rng.choice("eeeeeeeelfn") + "x" * rng.choice([0, 7, 7, 7, 900, 3000, 70_000])).encode()
            for _ in range(600)
        ]

        async def send() -> None:
            stream, at = b"".join(map(frame, requests)), 0
            while at < len(stream):
                piece = rng.choice([1, 3, 100, 9000, 200_000])
                writer.write(stream[at : at + piece])
                await writer.drain()
                at += piece

        sending = asyncio.create_task(send())
        for request in requests:
            if request[:1] not in b"fn":
                answer = await receive(reader)
                assert answer in (request, request.upper())
                assert answer == request or request[:1] == b"e"
            elif request[:1] == b"f":
                await receive(reader)
        await sending
        assert sum(runs.taken) > 100
        assert max(runs.taken) > 1
        counted = server.counters.apis[7]
        assert counted.handling().observed == counted.total().observed == sum(runs.taken)
        assert counted.queued.snapshot().observed == sum(runs.taken)
        assert server.counters.requests == 600
        assert counted.sent_bytes == counted.received_bytes + 4 * sum(runs.taken)
        assert server.request_memory_bytes == 0
        writer.close()
        await server.close(grace_s=0.2)
        echo.file.close()

    run(scenario())


@pytest.mark.parametrize("ready", [1, 2])
def test_large_requests_are_read_on_only_while_no_other_peer_waits(
    ready: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"buffer_updated": 0, "_arrived": 0}

    def counted(name: str) -> None:
        method = getattr(ServerConnection, name)

        def count(peer: ServerConnection, nbytes: int) -> None:
            told[name] += 1
            method(peer, nbytes)

        monkeypatch.setattr(ServerConnection, name, count)

    for name in told:
        counted(name)

    async def scenario() -> None:
        echo, turns = Echo(), TurnTimes()
        turns.ready = ready
        server = Server("127.0.0.1", 0, echo, turns=turns)
        await server.start()
        reader, writer = await connect(server)
        requests = [b"e" + bytes([number]) * 200_000 for number in range(40)]
        for request in requests:
            writer.write(frame(request))
        for request in requests:
            assert await receive(reader) == request
        assert server.request_memory_bytes == 0
        writer.close()
        await server.close(grace_s=0.2)
        echo.file.close()

    run(scenario())
    assert (told["_arrived"] > told["buffer_updated"]) == (ready == 1)


@pytest.mark.parametrize("most", [1000, 200_000])
def test_the_limit_of_a_request_holds_for_those_taken_at_once(most: int) -> None:
    async def scenario() -> None:
        echo, runs = Echo(), Runs()
        runs.most_bytes = 1 << 30
        server = Server("127.0.0.1", 0, echo, limits=PeerLimits(max_request_bytes=most))
        await server.bind()
        server.set_handler(echo, lambda context, request: "", runs=runs)
        await server.start()
        reader, writer = await connect(server)
        for _ in range(20):
            writer.write(frame(b"e" + bytes(most - 1)))
            assert len(await receive(reader)) == most
        writer.write(frame(b"e" + bytes(most)))
        with contextlib.suppress(ConnectionResetError):
            assert not await reader.read()
        assert server.counters.wire_errors == 1
        writer.close()
        await server.close(grace_s=0.2)
        echo.file.close()

    run(scenario())
