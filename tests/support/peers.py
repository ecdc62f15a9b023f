"""A peer that answers as its test says, over whatever network the loop has: sound, slow or hostile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_request,
    parse_request_header,
    response_frame,
    response_module,
)


class Address(NamedTuple):
    host: str
    port: int


Behave = Callable[[RequestHeader, Any], "bytes | Awaitable[bytes | None] | None"]
"""What goes out for a request; None: nothing."""


def api_versions(keys: Mapping[ApiKey, tuple[int, int]] | None = None) -> Any:
    """The canonical answer: all that we know, or `keys`."""
    module = response_module(ApiKey.API_VERSIONS)
    ranges = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
    served = ranges if keys is None else {int(key): one for key, one in keys.items()}
    return module.ApiVersionsResponse(
        error_code=0,
        api_keys=tuple(
            module.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in served.items()
        ),
        throttle_time=0,
    )


def allocated(first: int) -> Any:
    """AllocateProducerIds, as an answer that is told from others by `first`."""
    return response_module(ApiKey.ALLOCATE_PRODUCER_IDS).AllocateProducerIdsResponse(
        throttle_time=0, error_code=0, producer_id_start=first, producer_id_len=1000
    )


def sound(header: RequestHeader, request: Any) -> bytes | None:
    """Answers ApiVersions and AllocateProducerIds, the latter with the broker's epoch."""
    if header.api_key == ApiKey.API_VERSIONS:
        return bytes(response_frame(header, api_versions()))
    if header.api_key == ApiKey.ALLOCATE_PRODUCER_IDS:
        return bytes(response_frame(header, allocated(request.broker_epoch)))
    return None


class Peer:
    """Listens, and answers each whole request with what `behave` says, in order."""

    def __init__(self, behave: Behave = sound) -> None:
        self.behave = behave
        self.accepted = 0
        self.asked: list[tuple[int, Any]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._server: Any = None
        self.address = Address("", 0)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Peer:
        self._server = await asyncio.start_server(self._serve, host, port)
        self.address = Address(host, self._server.sockets[0].getsockname()[1])
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header = parse_request_header(frame)
                request = decode_request(header, frame)
                if header.api_key != ApiKey.API_VERSIONS:
                    self.asked.append((header.api_key, request))
                answer = self.behave(header, request)
                data = await answer if isinstance(answer, Awaitable) else answer
                if data is not None:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    def drop(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.close()
        self._writers = []

    async def stop(self) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()


@asynccontextmanager
async def peer(behave: Behave = sound) -> AsyncIterator[Peer]:
    one = await Peer(behave).start()
    try:
        yield one
    finally:
        await one.stop()
