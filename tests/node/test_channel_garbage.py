"""A channel whose peer breaks the protocol."""

from __future__ import annotations

import asyncio
import struct
import time
from random import Random
from typing import Any

import pytest

from service.client.node_channel import Channels, PeerFailed
from service.wire.api import ApiKey, RequestHeader, response_frame
from service.wire.frames import frame
from tests.support.channels import BRISK, KEY, answering, ask, run, talk
from tests.support.peers import allocated, peer, sound
from tests.support.waiting import until

HEAD = struct.pack(">i", 2)  # the correlation id of the first request after ApiVersions
HOSTILE = {
    "negative size": struct.pack(">i", -5),
    "huge size": struct.pack(">i", (100 << 20) + 1),
    "nothing": frame(b""),
    "too short for a correlation id": frame(b"\0\0"),
    "another correlation id": frame(struct.pack(">i", 77) + bytes(40)),
    "no body": frame(HEAD),
    "cut body": frame(HEAD + bytes(5)),
    "endless tags": frame(HEAD + b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "an answer and bytes behind it": None,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_garbage_costs_the_connection_and_is_told_by_name(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        data = HOSTILE[kind]

        def hostile(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS:
                return sound(header, request)
            good = bytes(response_frame(header, allocated(1)))
            return good + frame(b"more") if data is None else data

        async with talk(hostile) as (other, channel):
            if data is not None:
                with pytest.raises(PeerFailed, match="garbage"):
                    await channel.call(KEY, 0, ask(1))
            else:
                assert (await channel.call(KEY, 0, ask(1))).producer_id_start == 1
                await until(lambda: channel._connection is None)
            assert channel.metrics.garbage == 1
            other.behave = sound
            assert (await channel.call(KEY, 0, ask(9))).producer_id_start == 9

    run(scenario())
    assert any("garbage" in one.message for one in caplog.records)


def test_a_size_that_is_a_lie_costs_no_memory() -> None:
    async def scenario() -> None:
        async with talk(answering(struct.pack(">i", 90 << 20) + HEAD), BRISK) as (_, channel):
            call = asyncio.create_task(channel.call(KEY, 0, ask(1), timeout_ms=200))
            await until(lambda: channel._connection is not None and channel._connection._end == 8)
            assert channel._connection is not None
            assert len(channel._connection._buffer) < 64 << 10
            with pytest.raises(TimeoutError):
                await call

    run(scenario())


def test_answers_of_all_peers_share_one_budget() -> None:
    async def scenario() -> None:
        body = HEAD + bytes(3 << 20)
        options = BRISK._replace(memory_bytes=1 << 20)
        async with peer(answering(frame(body))) as other:
            channels = Channels(options)
            with pytest.raises(PeerFailed, match="no memory"):
                await channels.call(other.address, KEY, 0, ask(1))
            assert channels._budget.left_bytes == options.memory_bytes
            await channels.close()

    run(scenario())


def test_a_byte_at_a_time_is_an_answer_if_it_is_there_in_time() -> None:
    async def scenario() -> None:
        async def slow(header: RequestHeader, request: Any) -> bytes | None:
            data = sound(header, request) or b""
            if header.api_key == ApiKey.API_VERSIONS:
                return data
            writer = other._writers[-1]
            for at in range(len(data)):
                writer.write(data[at : at + 1])
                await writer.drain()
                await asyncio.sleep(pause_s)
            return None

        pause_s = 0.001
        async with talk(slow) as (other, channel):
            assert (await channel.call(KEY, 0, ask(4))).producer_id_start == 4
            pause_s = 0.1
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await channel.call(KEY, 0, ask(4), timeout_ms=300)
            assert time.monotonic() - began < 2

    run(scenario())


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(bytes(6)), None])
def test_a_peer_that_does_not_answer_api_versions_is_refused(greeting: bytes | None) -> None:
    """Silence, another protocol, half an answer, and a connection that is closed at once."""

    async def scenario() -> None:
        def odd(header: RequestHeader, request: Any) -> bytes | None:
            if greeting is None:
                other.drop()
            return greeting

        async with talk(odd, BRISK._replace(connect_timeout_ms=200)) as (other, channel):
            with pytest.raises(TimeoutError if greeting == b"" else ConnectionError) as caught:
                await channel.call(KEY, 0, ask(1))
            assert not isinstance(caught.value, ConnectionRefusedError)
            assert channel._connection is None

    run(scenario())


def test_random_bytes_never_break_a_channel() -> None:
    async def scenario() -> None:
        random = Random(14)
        good = bytes(response_frame(RequestHeader(KEY, 0, 2, "", 0), allocated(1)))

        def damaged(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.API_VERSIONS:
                return sound(header, request)
            data = bytearray(good)
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.randrange(256)
            return bytes(data)

        options = BRISK._replace(backoff_ms=0, backoff_max_ms=0)
        async with talk(damaged, options) as (other, channel):
            for _ in range(150):
                try:
                    await channel.call(KEY, 0, ask(1), timeout_ms=20)
                except OSError:
                    channel.disconnect("for the next one")
                else:
                    channel.disconnect("for the next one")
            other.behave = sound
            assert (await channel.call(KEY, 0, ask(3))).producer_id_start == 3

    run(scenario())
