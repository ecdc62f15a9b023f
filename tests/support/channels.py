"""A channel and a peer of it over real sockets, for tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from service.client.node_channel import Channel, ChannelOptions
from service.wire.api import ApiKey, request_module
from tests.support.peers import Behave, Peer, peer, sound

KEY = ApiKey.ALLOCATE_PRODUCER_IDS
BRISK = ChannelOptions(request_timeout_ms=5_000, connect_timeout_ms=5_000, backoff_ms=10, backoff_max_ms=40)


def ask(number: int) -> Any:
    return request_module(KEY).AllocateProducerIdsRequest(broker_id=1, broker_epoch=number)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


@asynccontextmanager
async def talk(
    behave: Behave = sound, options: ChannelOptions = BRISK
) -> AsyncIterator[tuple[Peer, Channel]]:
    async with peer(behave) as other:
        channel = Channel(other.address, options)
        try:
            yield other, channel
        finally:
            await channel.close()
            assert channel._budget.left_bytes == options.memory_bytes


def answering(data: bytes | None, first: Behave = sound) -> Behave:
    """Answer ApiVersions as `first` does, and every other request with `data`."""
    return lambda header, request: first(header, request) if header.api_key == ApiKey.API_VERSIONS else data


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@asynccontextmanager
async def names(stand_for: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Resolve each host name of `stand_for` to its addresses, in this order."""
    loop = asyncio.get_running_loop()
    original = loop.getaddrinfo

    async def looked_up(host: Any, port: Any, **options: Any) -> list[Any]:
        found = [await original(one, port, **options) for one in stand_for.get(host, [host])]
        return [one for several in found for one in several]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "getaddrinfo", looked_up)
        yield
