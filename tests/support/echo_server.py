"""A server whose handler echoes, waits, sends files or fails, by the first byte of the request."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from service.network.admission import Admission
from service.network.request import PeerLimits, RequestContext, Response
from service.network.server import Server
from service.wire.errors import MalformedMessage
from service.wire.frames import frame
from tests.support.near_file import NearFile

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
