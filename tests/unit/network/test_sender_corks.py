"""Bytes in memory before and after a file slice are sent in its TCP packets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

import pytest

from service.base.turns import TurnTimes
from service.network.sender import LEAD_BYTES, SMALL_SLICE_BYTES, TURN_BYTES, ResponseSender, SendBudget
from tests.support.near_file import NearFile

if not hasattr(socket, "TCP_CORK"):
    pytest.skip("this system cannot hold packets back", allow_module_level=True)

SLICE_BYTES = 300_000


class Watched(NearFile):
    """A file of `content`; `look` is called before each of its bytes go into the socket."""

    def __init__(self, content: bytes, look: Callable[[], None]) -> None:
        self.content = content
        self._fd = os.memfd_create("content")
        os.write(self._fd, content)
        self._look = look
        self.read_bytes = 0

    def pread(self, size: int, position: int) -> bytes:
        self.read_bytes += size
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


def _come(reader: socket.socket) -> int:
    """Bytes that the reader could take now, as far as they matter."""
    try:
        return len(reader.recv(SMALL_SLICE_BYTES + 1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


async def _receive(reader: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < size:
        got += await loop.sock_recv(reader, size - len(got))
    return bytes(got)


async def _send_responses() -> None:
    transport, reader = await _pair()
    come: list[int] = []
    file = Watched(os.urandom(SLICE_BYTES), lambda: come.append(_come(reader)))
    done: list[Exception | None] = []
    loop = asyncio.get_running_loop()
    sender = ResponseSender(loop, transport, done.append, lambda: None, SendBudget(loop, TurnTimes()))
    own = transport.get_extra_info("socket")
    try:
        for sent in (1, 2):
            come.clear()
            if sender.send([b"head", Range(file, 0, SLICE_BYTES), b"tail"]):
                done.append(None)
            assert come[0] > SMALL_SLICE_BYTES, "the head went out with little or nothing behind it"
            assert file.read_bytes == sent * LEAD_BYTES, "the rest is not for memory"
            reader.setblocking(False)
            assert await _receive(reader, SLICE_BYTES + 8) == b"head" + file.content + b"tail"
            async with asyncio.timeout(30):
                while len(done) < sent:
                    await asyncio.sleep(0)
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0, "what follows would be held back"
        assert done == [None, None]
    finally:
        sender.close()
        transport.abort()
        reader.close()
        file.close()


async def _find_no_room() -> None:
    transport, reader = await _pair()
    reader.setblocking(False)
    file = Watched(os.urandom(SLICE_BYTES), lambda: None)
    loop = asyncio.get_running_loop()
    outlet = SendBudget(loop, TurnTimes())
    large = ResponseSender(loop, transport, lambda _: None, lambda: None, outlet)
    try:
        outlet.used(TURN_BYTES)
        assert not large.send([b"head", Range(file, 0, SLICE_BYTES), b"tail"])
        assert large.taken_bytes == 0, "the head went out by itself"
        assert await _receive(reader, SLICE_BYTES + 8) == b"head" + file.content + b"tail"
        outlet.used(TURN_BYTES)
        assert large.send([b"head", Range(file, 0, 9), b"tail"]), "what is small waits for nobody"
    finally:
        large.close()
        transport.abort()
        reader.close()
        file.close()


def test_a_head_goes_out_with_the_first_bytes_that_follow_it() -> None:
    asyncio.run(_send_responses())


def test_a_head_waits_for_room_with_the_bytes_that_follow_it() -> None:
    asyncio.run(_find_no_room())
