"""A transport that seals gets the parts of a response in order, files as memory of one shared buffer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from service.base.disk import SystemDisk
from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.base.turns import TurnTimes
from service.base.types import Buffer
from service.hot.files import FileSlice, SegmentFile
from service.network.metrics import NetworkMetrics
from service.network.sender import PIECE_BYTES, SMALL_SLICE_BYTES, Part, ResponseSender, SendBudget
from service.network.sendfile_prefetch import SendfilePrefetcher

CONTENT = random.Random(3).randbytes(1_000_000)


class SealingTransport(asyncio.Transport):
    """Notes what is written together, as the cipher of each piece is made at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[bytes]] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return True if name == "is_sealed" else None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: Buffer) -> None:
        self.writes.append([bytes(data)])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.writes.append([bytes(one) for one in list_of_data])

    @property
    def taken(self) -> bytes:
        return b"".join(b"".join(one) for one in self.writes)


class FarFile(SegmentFile):
    """Nothing is there until a thread has read it; then it is gone again, and may only be waited for."""

    prefetched = 0

    def fill_nowait(self, space: memoryview, position: int) -> bool:
        return False

    def pread(self, size: int, position: int) -> bytes:
        assert position + size <= self.prefetched, "the loop would wait for the device"
        return super().pread(size, position)

    def prefetch(self, size: int, position: int) -> None:
        self.prefetched = max(self.prefetched, position + size)


def send(parts: list[Part], *, has_threads: bool = False) -> tuple[SealingTransport, Exception | None]:
    """The transport after all is sent, and the error that ended it."""
    transport = SealingTransport()

    async def run() -> Exception | None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Exception | None] = loop.create_future()
        ahead = SendfilePrefetcher(loop, SystemThreads(), NetworkMetrics()) if has_threads else None
        budget = SendBudget(loop, TurnTimes(), ahead)
        sender = ResponseSender(loop, transport, ended.set_result, lambda: None, budget)
        try:
            if sender.send(parts):
                return None
            return await asyncio.wait_for(ended, 30)
        finally:
            sender.close()
            if ahead is not None:
                ahead.close()

    return transport, asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def test_ranges_and_what_is_between_them_come_in_order(path: Path) -> None:
    file = SegmentFile(SystemDisk(), path)
    transport, error = send(
        [b"head", FileSlice(file, 3, 700_000), b"middle", FileSlice(file, 9, 50), b"tail"]
    )
    assert error is None
    assert transport.taken == b"head" + CONTENT[3:700_003] + b"middle" + CONTENT[9:59] + b"tail"
    assert [len(one) for one in transport.writes] == [1, 1, 1], "each is one stretch of memory"
    assert len(transport.writes[0][0]) == PIECE_BYTES


def test_a_head_goes_with_the_beginning_of_large_memory_and_the_rest_is_not_copied() -> None:
    large = CONTENT[:200_000]
    transport, _ = send([b"head", large, b"tail", large[:7]])
    assert transport.taken == b"head" + large + b"tail" + large[:7]
    (pieces,) = transport.writes
    assert [len(one) for one in pieces] == [4 + SMALL_SLICE_BYTES, 200_000 - SMALL_SLICE_BYTES, 11]


def test_many_small_ranges_are_sent_together(path: Path) -> None:
    file = SegmentFile(SystemDisk(), path)
    transport, _ = send([FileSlice(file, at * 100, 100) for at in range(200)])
    assert transport.taken == CONTENT[:20_000]
    assert len(transport.writes) < 10


def test_evicted_pages_are_read_by_a_thread_first(path: Path) -> None:
    file = FarFile(SystemDisk(), path)
    transport, error = send([b"head", FileSlice(file, 0, 900_000)], has_threads=True)
    assert error is None
    assert transport.taken == b"head" + CONTENT[:900_000]


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_file_that_ends_early_ends_the_connection(path: Path, has_threads: bool) -> None:
    file = SegmentFile(SystemDisk(), path)
    parts: list[Part] = [FileSlice(file, 0, PIECE_BYTES), FileSlice(file, 999_000, 2_000)]
    if not has_threads:
        with pytest.raises(StorageError, match="file ends 1000 bytes before"):
            send(parts)
        return
    _, error = send(parts, has_threads=True)
    assert isinstance(error, StorageError)
