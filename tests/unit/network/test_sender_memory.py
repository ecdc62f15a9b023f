"""Large memory goes into the socket from where it lies: no transport joins it or keeps a copy of it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from service.base.disk import SystemDisk
from service.base.turns import TurnTimes
from service.hot.files import FileSlice, SegmentFile
from service.network.sender import (
    LEAD_BYTES,
    PIECE_BYTES,
    SMALL_SLICE_BYTES,
    TURN_BYTES,
    Part,
    PeerLost,
    ResponseSender,
    SendBudget,
)

CHUNK = os.urandom(1 << 20)
MOST_JOINED = 2 * SMALL_SLICE_BYTES + LEAD_BYTES


class Protocol(asyncio.Protocol):
    """Tells a sender of its transport's backlog."""

    sender: ResponseSender | None = None

    def pause_writing(self) -> None:
        assert self.sender is not None
        self.sender.paused()

    def resume_writing(self) -> None:
        assert self.sender is not None
        self.sender.resumed()


class SmallWrites(asyncio.Transport):
    """A transport that is given little, as it would keep a copy of what the socket refuses."""

    def __init__(self, inner: asyncio.Transport, most: int) -> None:
        super().__init__({"socket": inner.get_extra_info("socket")})
        self._inner = inner
        self._most = most

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert len(data) <= self._most, "it is to be sent from where it lies"
        self._inner.write(data)

    def abort(self) -> None:
        self._inner.abort()


async def _sender(
    ended: list[Any], budget: SendBudget, most: int = MOST_JOINED
) -> tuple[ResponseSender, SmallWrites, socket.socket]:
    """Return a sender, its transport, and its peer's socket."""
    loop = asyncio.get_running_loop()
    own, peer = socket.socketpair()
    peer.setblocking(False)
    inner, protocol = await loop.create_connection(Protocol, sock=own)
    transport = SmallWrites(inner, most)
    protocol.sender = ResponseSender(loop, transport, ended.append, lambda: None, budget)
    return protocol.sender, transport, peer


def _received(parts: Sequence[Part], size: int, most: int = MOST_JOINED) -> tuple[bytes, list[Any]]:
    """Return what a peer that reads 100,000 bytes at a time gets of a response, and how sending it ended."""

    async def scenario() -> tuple[bytes, list[Any]]:
        loop, ended, taken = asyncio.get_running_loop(), list[Any](), bytearray()
        sender, transport, peer = await _sender(ended, SendBudget(loop, TurnTimes()), most)
        with peer:
            assert not sender.send(parts), "the socket's buffer is smaller"
            async with asyncio.timeout(60):
                while len(taken) < size:
                    taken += await loop.sock_recv(peer, 100_000)
                while not ended:
                    await asyncio.sleep(0)
            sender.close()
            transport.abort()
        return bytes(taken), ended

    return asyncio.run(scenario())


def test_a_head_chunks_and_a_tail_come_in_order() -> None:
    view = memoryview(CHUNK)
    parts: list[bytes | bytearray | memoryview] = [
        b"head",
        view[1:900_001],
        view[:40_000],
        b"tail",
        view[5:10],
        bytearray(CHUNK),
    ]
    whole = b"".join(parts)
    assert _received(parts, len(whole)) == (whole, [None])


def test_files_between_memory_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CHUNK[::-1])
    file = SegmentFile(SystemDisk(), path)
    parts: list[Part] = [
        b"head", FileSlice(file, 0, 100), memoryview(CHUNK), FileSlice(file, 0, 300_000), b"tail"
    ]  # fmt: skip
    whole = b"head" + CHUNK[::-1][:100] + CHUNK + CHUNK[::-1][:300_000] + b"tail"
    assert _received(parts, len(whole)) == (whole, [None])


def test_a_peer_that_goes_away_ends_the_response() -> None:
    async def scenario() -> list[Any]:
        loop, ended = asyncio.get_running_loop(), list[Any]()
        sender, transport, peer = await _sender(ended, SendBudget(loop, TurnTimes()))
        with peer:
            assert not sender.send([b"head", memoryview(CHUNK)])
        async with asyncio.timeout(60):
            while not ended:
                await asyncio.sleep(0)
        sender.close()
        transport.abort()
        return ended

    (error,) = asyncio.run(scenario())
    assert isinstance(error, PeerLost)


def test_a_turn_sends_no_more_memory_than_its_budget() -> None:
    async def scenario() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        budget = SendBudget(loop, TurnTimes())
        sender, transport, peer = await _sender([], budget)
        with peer:
            budget.used(TURN_BYTES - 50_000)
            assert not sender.send([b"head", memoryview(CHUNK)])
            found = sender.taken_bytes, budget.room
        sender.close()
        transport.abort()
        return found

    assert asyncio.run(scenario()) == (50_000, 0)


@pytest.mark.parametrize("size", [SMALL_SLICE_BYTES, SMALL_SLICE_BYTES + 1])
def test_a_chunk_of_the_border_comes_whole(size: int) -> None:
    parts: list[bytes | memoryview] = [b"head", memoryview(CHUNK)[:size], memoryview(CHUNK)]
    whole = b"".join(parts)
    assert _received(parts, len(whole)) == (whole, [None])


def test_without_descriptors_the_transport_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dup(_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("asyncio.trsock.TransportSocket.dup", dup)
    path = tmp_path / "file"
    path.write_bytes(CHUNK[::-1])
    file = SegmentFile(SystemDisk(), path)
    parts: list[Part] = [b"head", memoryview(CHUNK), FileSlice(file, 0, len(CHUNK)), b"tail"]
    whole = b"head" + CHUNK + CHUNK[::-1] + b"tail"
    assert _received(parts, len(whole), PIECE_BYTES) == (whole, [None])
