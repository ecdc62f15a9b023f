"""Over TCP, what stands in memory around a slice of a file goes out with its bytes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

import pytest

from service.network.sender import Outlet, Sender

if not hasattr(socket, "TCP_CORK"):
    pytest.skip("this system cannot hold packets back", allow_module_level=True)

SLICE_BYTES = 100_000


class Watched:
    """A file of `content`; `look` is called before each of its bytes go into the socket."""

    def __init__(self, content: bytes, look: Callable[[], None]) -> None:
        self.content = content
        self._fd = os.memfd_create("content")
        os.write(self._fd, content)
        self._look = look

    def pread(self, size: int, position: int) -> bytes:
        return self.content[position : position + size]

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        self._look()
        return os.sendfile(socket_fd, self._fd, position, size)

    def close(self) -> None:
        os.close(self._fd)


class Range(NamedTuple):
    file: Watched
    position: int
    size: int


async def _pair() -> tuple[asyncio.Transport, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = socket.create_connection(listening.getsockname())
        own, _ = listening.accept()
    own.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=own)
    return transport, reader


def _nothing_has_come(reader: socket.socket) -> bool:
    try:
        reader.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    return False


async def _receive(reader: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < size:
        got += await loop.sock_recv(reader, size - len(got))
    return bytes(got)


async def _send_one_response() -> None:
    transport, reader = await _pair()
    held: list[bool] = []
    file = Watched(os.urandom(SLICE_BYTES), lambda: held.append(_nothing_has_come(reader)))
    done: list[Exception | None] = []
    loop = asyncio.get_running_loop()
    sender = Sender(loop, transport, done.append, lambda: None, Outlet(loop))
    own = transport.get_extra_info("socket")
    try:
        for sent in (1, 2):
            if sender.send([b"head", Range(file, 0, SLICE_BYTES), b"tail"]):
                done.append(None)
            reader.setblocking(False)
            assert await _receive(reader, SLICE_BYTES + 8) == b"head" + file.content + b"tail"
            async with asyncio.timeout(30):
                while len(done) < sent:
                    await asyncio.sleep(0)
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0, "what follows would be held back"
        assert done == [None, None]
        assert held[0], "the head went out by itself"
    finally:
        sender.close()
        transport.abort()
        reader.close()
        file.close()


def test_a_head_goes_out_with_the_bytes_that_follow_it() -> None:
    asyncio.run(_send_one_response())
