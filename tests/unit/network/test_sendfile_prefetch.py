"""Pages that are not resident are read by a thread before they are sent, and other peers do not wait."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import service.base.disk
from service.base.disk import DiskError, Open, SystemDisk
from service.base.threads import SystemThreads
from service.base.turns import TurnTimes
from service.hot.files import FileSlice, SegmentFile
from service.network.metrics import NetworkMetrics
from service.network.sender import PIECE_BYTES, Part, ResponseSender, SendBudget
from service.network.sendfile_prefetch import AHEAD_BYTES, SendfilePrefetcher

SIZE = 3 * AHEAD_BYTES + 12_345
CONTENT = random.Random(1).randbytes(SIZE)


class FarFile(SegmentFile):
    """A file of which the loop may touch what a thread has read, and what was `near` before."""

    def begin(self, *near: range) -> FarFile:
        self.pages = {page for some in near for page in some}
        self.loop_thread = threading.get_ident()
        self.may_read = threading.Event()
        self.may_read.set()
        self.refuses_from = SIZE + 1
        self.read_by_threads = 0
        return self

    def _are_near(self, size: int, position: int) -> bool:
        return self.pages.issuperset(range(position >> 12, (position + size - 1 >> 12) + 1))

    def pread_nowait(self, size: int, position: int) -> Any:
        assert threading.get_ident() == self.loop_thread
        return super().pread_nowait(size, position) if self._are_near(size, position) else None

    def is_resident(self, size: int, position: int) -> bool:
        return self._are_near(size, position)

    def pread(self, size: int, position: int) -> bytes:
        assert self._are_near(size, position), "the loop would wait for the device"
        return super().pread(size, position)

    def prefetch(self, size: int, position: int) -> None:
        assert threading.get_ident() != self.loop_thread
        assert self.may_read.wait(60)
        if position >= self.refuses_from:
            raise DiskError("reading", self.path, 5)
        super().prefetch(size, position)
        self.pages.update(range(position >> 12, (position + size - 1 >> 12) + 1))
        self.read_by_threads += size

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        sent = super().send_to(socket_fd, size, position)
        assert self._are_near(max(sent, 1), position), "the loop would wait for the device"
        return sent


class _Peer(asyncio.Protocol):
    """Tells its sender what the transport says, as a connection does."""

    sender: ResponseSender

    def pause_writing(self) -> None:
        self.sender.paused()

    def resume_writing(self) -> None:
        self.sender.resumed()


class Reader:
    """A sender, and the socket at its other end."""

    def __init__(self, sender: ResponseSender, other: socket.socket, transport: asyncio.Transport) -> None:
        self.sender, self.other, self.transport = sender, other, transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_sent(self, error: Exception | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    async def take(self, parts: list[Part], size: int) -> bytes:
        """`parts` are sent; the bytes that come."""
        if self.sender.send(parts):
            self.ended.set_result(None)
        loop, taken = asyncio.get_running_loop(), bytearray()
        while len(taken) < size:
            piece = await loop.sock_recv(self.other, 1 << 20)
            assert piece
            taken += piece
        await self.ended
        return bytes(taken)


class Scene:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "file"
        self._path.write_bytes(CONTENT)
        loop = asyncio.get_running_loop()
        self.metrics = NetworkMetrics()
        self.ahead = SendfilePrefetcher(loop, SystemThreads(), self.metrics)
        self.outlet = SendBudget(loop, TurnTimes(), self.ahead)

    def file(self, *near: range) -> FarFile:
        return FarFile(SystemDisk(), self._path).begin(*near)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        loop, own, other = asyncio.get_running_loop(), *socket.socketpair()
        own.setblocking(False)
        other.setblocking(False)
        transport, peer = await loop.create_connection(_Peer, sock=own)
        found: list[Reader] = []
        sender = ResponseSender(loop, transport, lambda e: found[0].on_sent(e), lambda: None, self.outlet)
        peer.sender = sender
        found.append(Reader(sender, other, transport))
        try:
            yield found[0]
        finally:
            sender.close()
            transport.abort()
            other.close()


def run(folder: Path, scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        scene = Scene(folder)
        try:
            await asyncio.wait_for(scenario(scene), 60)
        finally:
            scene.ahead.close()

    asyncio.run(in_time())


def _pieces(source: random.Random, file: FarFile) -> Iterator[tuple[Part, bytes]]:
    for _ in range(source.randrange(1, 8)):
        size = source.choice((1, 100, 5_000, 70_000, 300_000, AHEAD_BYTES, 2 * AHEAD_BYTES + 77))
        if source.random() < 0.4:
            data = source.randbytes(min(size, 400_000))
            yield data, data
        else:
            at = source.randrange(SIZE - size)
            yield FileSlice(file, at, size), CONTENT[at : at + size]


@pytest.mark.parametrize("seed", range(20))
def test_all_bytes_come_in_order_and_the_loop_reads_none_from_the_device(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)

    async def scenario(scene: Scene) -> None:
        pages = SIZE >> 12
        near = [range(at, at + source.randrange(1, 200)) for at in source.sample(range(pages), 3)]
        file = scene.file(*near[: source.randrange(4)])
        pieces = list(_pieces(source, file))
        expected = b"".join(data for _, data in pieces)
        async with scene.reader() as reader:
            assert await reader.take([part for part, _ in pieces], len(expected)) == expected

    run(tmp_path, scenario)


def test_resident_pages_are_sent_without_a_thread(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        file = scene.file(range((SIZE >> 12) + 1))
        async with scene.reader() as reader:
            parts: list[Part] = [
                b"head",
                FileSlice(file, 0, SIZE),
                b"middle",
                FileSlice(file, 5, 900),
                b"end",
            ]
            expected = b"head" + CONTENT + b"middle" + CONTENT[5:905] + b"end"
            assert await reader.take(parts, len(expected)) == expected
        assert scene.metrics.device_reads == file.read_by_threads == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize("size", [900, 40_000, SIZE])
def test_a_slow_read_delays_no_other_reader(tmp_path: Path, size: int) -> None:
    async def scenario(scene: Scene) -> None:
        far, near = scene.file(), scene.file(range((SIZE >> 12) + 1))
        far.may_read.clear()
        async with scene.reader() as late, scene.reader() as prompt:
            waits = asyncio.create_task(late.take([b"head", FileSlice(far, 0, size)], 4 + size))
            for _ in range(3):
                prompt.ended = asyncio.get_running_loop().create_future()
                assert await prompt.take([FileSlice(near, 0, SIZE)], SIZE) == CONTENT
            assert late.sender.busy
            assert not waits.done()
            assert late.sender.moved_bytes is None, "it is not the peer that is waited for"
            far.may_read.set()
            assert await waits == b"head" + CONTENT[:size]

    run(tmp_path, scenario)


def test_readahead_does_not_delay_the_response(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        file = scene.file()
        async with scene.reader() as reader:
            assert await reader.take([FileSlice(file, 0, 50_000)], 50_000) == CONTENT[:50_000]
        while not file.is_resident(AHEAD_BYTES, 50_000):
            await asyncio.sleep(0.001)
        async with scene.reader() as reader:
            assert await reader.take([FileSlice(file, 50_000, 900_000)], 900_000) == CONTENT[50_000:950_000]
        assert scene.metrics.device_reads == 1

    run(tmp_path, scenario)


def test_a_failed_readahead_fails_only_the_reader_of_its_pages(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        file = scene.file()
        file.refuses_from = 50_000
        async with scene.reader() as reader:
            assert await reader.take([FileSlice(file, 0, 50_000)], 50_000) == CONTENT[:50_000]
        async with scene.reader() as reader:
            assert not reader.sender.send([FileSlice(file, 50_000, 900_000)])
            with pytest.raises(DiskError):
                await reader.ended

    run(tmp_path, scenario)


@pytest.mark.parametrize("size", [900, SIZE])
def test_a_device_that_fails_ends_that_answer(tmp_path: Path, size: int) -> None:
    async def scenario(scene: Scene) -> None:
        file = scene.file()
        file.refuses_from = 0
        async with scene.reader() as reader:
            assert not reader.sender.send([b"head", FileSlice(file, 0, size)])
            with pytest.raises(DiskError):
                await reader.ended

    run(tmp_path, scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_peer_closed_during_a_prefetch_is_sent_nothing(tmp_path: Path, fails: bool) -> None:
    async def scenario(scene: Scene) -> None:
        file = scene.file()
        file.may_read.clear()
        async with scene.reader() as reader:
            assert not reader.sender.send([FileSlice(file, 0, SIZE)])
            reader.sender.close()
            file.refuses_from = 0 if fails else SIZE + 1
            file.may_read.set()
            async with scene.reader() as other:
                assert await other.take([FileSlice(scene.file(), 0, SIZE)], SIZE) == CONTENT
            assert not reader.ended.done()

    run(tmp_path, scenario)


def test_a_file_that_is_shorter_than_it_was_is_an_error(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        file = scene.file()
        async with scene.reader() as reader:
            assert not reader.sender.send([FileSlice(file, SIZE - 1000, PIECE_BYTES)])
            taking = asyncio.create_task(asyncio.get_running_loop().sock_recv(reader.other, 1 << 20))
            with pytest.raises(Exception, match="bytes before the slice"):
                await reader.ended
            assert (await taking)[:1000] == CONTENT[-1000:]

    run(tmp_path, scenario)


@pytest.mark.parametrize("can_tell", [True, False])
def test_the_system_says_what_it_would_have_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_tell: bool
) -> None:
    if not can_tell:
        monkeypatch.setattr(service.base.disk, "is_cached", lambda *_: None)
    path, disk = tmp_path / "file", SystemDisk()
    path.write_bytes(CONTENT)
    fd = disk.open(path, Open.WRITE)
    try:
        assert disk.is_resident(fd, SIZE, 0)
        assert disk.is_resident(fd, SIZE - 5_000, 5_000)
        assert not disk.is_resident(fd, mmap.PAGESIZE, SIZE), "the file ends"
        assert disk.pread_nowait(fd, 5_000, 77) == CONTENT[77:5_077]
        assert disk.pread_nowait(fd, 100, SIZE - 50) is None, "the file ends"
        disk.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if disk.is_resident(fd, AHEAD_BYTES, AHEAD_BYTES):
            pytest.skip("this file system keeps its pages, or cannot tell")
        disk.prefetch(fd, AHEAD_BYTES, AHEAD_BYTES)
        assert disk.is_resident(fd, AHEAD_BYTES, AHEAD_BYTES)
        assert disk.pread_nowait(fd, AHEAD_BYTES, AHEAD_BYTES) == CONTENT[AHEAD_BYTES : 2 * AHEAD_BYTES]
        disk.prefetch(fd, AHEAD_BYTES, SIZE - 50)
        assert disk.pread_nowait(fd, 50, SIZE - 50) == CONTENT[-50:]
    finally:
        disk.close(fd)
    for read in (disk.pread_nowait, disk.prefetch, disk.is_resident):
        with pytest.raises(DiskError, match="reading"):
            read(fd, 1, 0)
