"""A transport that is no socket gets the bytes of file slices as memory, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from service.base.disk import SystemDisk
from service.base.turns import TurnTimes
from service.hot.files import FileSlice, SegmentFile
from service.network.sender import PIECE_BYTES, ResponseSender, SendBudget


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; its peer takes a piece whenever it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = bytearray()
        self.waiting: list[bytes] = []
        self.sender: ResponseSender | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.waiting, "nothing is written into a backlog"
        assert len(data) <= PIECE_BYTES
        self.waiting.append(bytes(data))
        assert self.sender is not None
        self.sender.paused()

    def take(self) -> None:
        self.taken += self.waiting.pop()
        assert self.sender is not None
        self.sender.resumed()


def test_file_slices_go_through_a_transport_that_is_no_socket(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192
    path = tmp_path / "file"
    path.write_bytes(content)
    file = SegmentFile(SystemDisk(), path)
    done: list[Exception | None] = []
    transport = MemoryTransport()
    loop = asyncio.new_event_loop()
    sender = transport.sender = ResponseSender(
        loop, transport, done.append, lambda: None, SendBudget(loop, TurnTimes())
    )
    assert not sender.send([b"head", FileSlice(file, 3, 1_000_000), b"middle", FileSlice(file, 9, 50)])
    while not done:
        transport.take()
    assert done == [None]
    assert transport.taken == b"head" + content[3:1_000_003] + b"middle" + content[9:59]
    sender.close()
    loop.close()
