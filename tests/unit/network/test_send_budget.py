"""A turn of the loop sends a bounded number of bytes of files, over all peers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from service.base.disk import SystemDisk
from service.base.turns import TurnTimes
from service.hot.files import FileSlice, SegmentFile
from service.network.sender import (
    SHARED_S,
    SHARED_TURN_BYTES,
    SMALL_SLICE_BYTES,
    TURN_BYTES,
    ResponseSender,
    SendBudget,
)

READERS = 8
EACH = TURN_BYTES // 2
SMALL_BUFFER = 64 << 10


class SocketTransport(asyncio.Transport):
    """Only says which socket it is, and writes what fits into it."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__({"socket": own})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.get_extra_info("socket").send(data) == len(data)


class CountedFile(SegmentFile):
    """A file of which is known how much of it went out, and when."""

    sent_by_turn: list[int]

    def send_to(self, socket_fd: int, size: int, position: int) -> int:
        sent = super().send_to(socket_fd, size, position)
        self.sent_by_turn[-1] += sent
        return sent


async def _taken(reader: socket.socket, size: int) -> bytes:
    loop, taken = asyncio.get_running_loop(), bytearray()
    while len(taken) < size:
        piece = await loop.sock_recv(reader, 1 << 20)
        assert piece
        taken += piece
    return bytes(taken)


async def _the_row_is_served() -> None:
    """Check that a waiting sender comes last in the next turn."""
    for _ in range(2):
        await asyncio.sleep(0)


def test_all_readers_together_are_sent_so_much_in_a_turn_and_each_gets_all_of_it(tmp_path: Path) -> None:
    content = bytes(range(256)) * (EACH // 256)
    path = tmp_path / "file"
    path.write_bytes(content)
    file = CountedFile(SystemDisk(), path)
    file.sent_by_turn = [0]

    async def scenario() -> list[bytes]:
        loop = asyncio.get_running_loop()
        outlet = SendBudget(loop, TurnTimes())
        pairs = [socket.socketpair() for _ in range(READERS)]
        ended: list[Any] = []
        senders = []

        def next_turn() -> None:
            if len(ended) < READERS:
                file.sent_by_turn.append(0)
                loop.call_soon(next_turn)

        next_turn()
        for own, other in pairs:
            own.setblocking(False)
            other.setblocking(False)
            sender = ResponseSender(loop, SocketTransport(own), ended.append, lambda: None, outlet)
            senders.append(sender)
            if sender.send([FileSlice(file, 0, EACH)]):
                ended.append(None)
        try:
            async with asyncio.timeout(60):
                return await asyncio.gather(*(_taken(other, EACH) for _, other in pairs))
        finally:
            for sender in senders:
                sender.close()
            for pair in pairs:
                for one in pair:
                    one.close()

    assert asyncio.run(scenario()) == [content] * READERS
    assert max(file.sent_by_turn) <= TURN_BYTES
    assert sum(file.sent_by_turn) == READERS * EACH


def test_a_closed_peer_is_skipped_when_the_send_budget_returns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(EACH))
    file = SegmentFile(SystemDisk(), path)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        outlet = SendBudget(loop, TurnTimes())
        outlet.used(TURN_BYTES)
        pairs = [socket.socketpair() for _ in range(2)]
        ended: list[Any] = []
        for own, _ in pairs:
            own.setblocking(False)
        gone, stays = (
            ResponseSender(loop, SocketTransport(own), ended.append, lambda: None, outlet) for own, _ in pairs
        )
        assert not gone.send([FileSlice(file, 0, SMALL_BUFFER)])
        assert not stays.send([FileSlice(file, 0, SMALL_BUFFER)])
        gone.close()
        await _the_row_is_served()
        assert ended == [None]
        assert stays.taken_bytes == SMALL_BUFFER
        assert gone.taken_bytes == 0
        for pair in pairs:
            for one in pair:
                one.close()

    asyncio.run(scenario())


def test_a_sender_waits_behind_requests_that_arrived_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(EACH))
    file = SegmentFile(SystemDisk(), path)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        outlet = SendBudget(loop, TurnTimes())
        outlet.used(TURN_BYTES)
        pairs = [socket.socketpair() for _ in range(2)]
        for pair in pairs:
            for one in pair:
                one.setblocking(False)
        (own, _), (heard, asking) = pairs
        order: list[str] = []
        sender = ResponseSender(
            loop, SocketTransport(own), lambda _: order.append("row"), lambda: None, outlet
        )
        assert not sender.send([FileSlice(file, 0, SMALL_BUFFER)])

        def hear() -> None:
            heard.recv(1)
            order.append("request")

        loop.add_reader(heard, hear)
        asking.send(b"?")
        await _the_row_is_served()
        loop.remove_reader(heard)
        assert order == ["request", "row"]
        for pair in pairs:
            for one in pair:
                one.close()

    asyncio.run(scenario())


def test_bytes_in_the_socket_buffer_do_not_count_as_received(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(TURN_BYTES))
    file = SegmentFile(SystemDisk(), path)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        outlet = SendBudget(loop, TurnTimes())
        outlet.used(TURN_BYTES)
        own, other = socket.socketpair()
        own.setblocking(False)
        other.setblocking(False)
        sender = ResponseSender(loop, SocketTransport(own), lambda _: None, lambda: None, outlet)
        assert not sender.send([FileSlice(file, 0, TURN_BYTES)])
        assert sender.moved_bytes is None, "it waits for others"
        await _the_row_is_served()
        filled = sender.taken_bytes
        assert 0 < filled < TURN_BYTES
        assert sender.moved_bytes == 0
        await _taken(other, filled + 1)
        assert sender.moved_bytes == sender.taken_bytes - filled
        sender.close()
        own.close()
        other.close()

    asyncio.run(scenario())


class CountedLoop(asyncio.SelectorEventLoop):
    """Counts the turns that it is asked for."""

    asked = 0

    def call_soon(self, *args: Any, **named: Any) -> asyncio.Handle:  # type: ignore[override]
        self.asked += 1
        return super().call_soon(*args, **named)


def test_each_turn_has_its_own_send_budget(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(EACH))
    file = SegmentFile(SystemDisk(), path)
    loop, turns = CountedLoop(), TurnTimes()
    own, other = socket.socketpair()
    own.setblocking(False)
    try:
        outlet = SendBudget(loop, turns)
        sender = ResponseSender(loop, SocketTransport(own), lambda _: None, lambda: None, outlet)
        for turn in range(4):
            turns.began = float(turn)
            assert outlet.room == TURN_BYTES
            assert sender.send([FileSlice(file, 0, SMALL_BUFFER)])
            assert other.recv(SMALL_BUFFER, socket.MSG_WAITALL) == bytes(SMALL_BUFFER)
            assert outlet.room == TURN_BYTES - SMALL_BUFFER
            outlet.used(TURN_BYTES)
        assert loop.asked == 0
    finally:
        sender.close()
        own.close()
        other.close()
        loop.close()


class ClockedLoop(CountedLoop):
    """Loop with a settable time."""

    now = 100.0

    def time(self) -> float:
        return self.now


def test_a_turn_has_less_room_while_somebody_asks_for_little(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(EACH))
    file = SegmentFile(SystemDisk(), path)
    loop, turns = ClockedLoop(), TurnTimes()
    own, other = socket.socketpair()
    own.setblocking(False)
    try:
        outlet = SendBudget(loop, turns)
        sender = ResponseSender(loop, SocketTransport(own), lambda _: None, lambda: None, outlet)

        def room_of_a_turn() -> int:
            turns.began = loop.now
            return outlet.room

        def sent(size: int) -> None:
            assert sender.send([FileSlice(file, 0, size)])
            assert other.recv(size, socket.MSG_WAITALL) == bytes(size)

        loop.now += 1
        assert room_of_a_turn() == TURN_BYTES
        sent(SMALL_BUFFER)
        loop.now += SHARED_S / 10
        assert room_of_a_turn() == TURN_BYTES, "who asks for much is no reason"
        sent(SMALL_SLICE_BYTES)
        assert outlet.room == TURN_BYTES, "it holds from the next turn on"
        loop.now += SHARED_S / 10
        assert room_of_a_turn() == SHARED_TURN_BYTES
        loop.now += SHARED_S * 0.9
        assert room_of_a_turn() == SHARED_TURN_BYTES
        loop.now += SHARED_S * 0.2
        assert room_of_a_turn() == TURN_BYTES
    finally:
        sender.close()
        own.close()
        other.close()
        loop.close()


def test_responses_of_many_small_slices_are_shared_out_over_turns_as_well(tmp_path: Path) -> None:
    each, slices = 300, 2_000
    content = bytes(range(250)) * (each * slices // 250)
    path = tmp_path / "file"
    path.write_bytes(content)
    read_by_turn = [0]

    class ReadFile(SegmentFile):
        """A file of which is known how often it was read, and when."""

        def pread(self, size: int, position: int) -> bytes:
            read_by_turn[-1] += 1
            return super().pread(size, position)

    file = ReadFile(SystemDisk(), path)

    async def scenario() -> list[bytes]:
        loop = asyncio.get_running_loop()
        outlet = SendBudget(loop, TurnTimes())
        pairs = [socket.socketpair() for _ in range(READERS)]
        ended: list[Any] = []
        senders = []

        def next_turn() -> None:
            if len(ended) < READERS:
                read_by_turn.append(0)
                loop.call_soon(next_turn)

        next_turn()
        for own, other in pairs:
            for one in (own, other):
                one.setblocking(False)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            sender = ResponseSender(loop, SocketTransport(own), ended.append, lambda: None, outlet)
            senders.append(sender)
            if sender.send([FileSlice(file, each * n, each) for n in range(slices)]):
                ended.append(None)
        try:
            async with asyncio.timeout(60):
                return await asyncio.gather(*(_taken(other, each * slices) for _, other in pairs))
        finally:
            for sender in senders:
                sender.close()
            for pair in pairs:
                for one in pair:
                    one.close()

    assert asyncio.run(scenario()) == [content] * READERS
    # A read costs as much as 8 KiB that are sent, and 2 MiB are sent in a turn.
    assert max(read_by_turn) <= 256 + 32
    assert sum(read_by_turn) >= READERS * slices
