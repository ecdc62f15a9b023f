"""The connection machine and its memory: any split of the bytes, bounded growth, legal moves only."""

from __future__ import annotations

import random
import struct

import pytest

from service.base.errors import InvariantError
from service.network.buffers import MIN_BUFFER_BYTES, BufferPool, Memory, MemoryOwner
from service.network.request_framer import PIPELINE_BYTES, ConnectionState, RequestFramer
from service.wire.errors import FrameError
from service.wire.frames import frame

LIMIT = 1 << 20


class CountingPool(BufferPool):
    """Notes how large the buffers are whose bytes are copied into larger ones."""

    def __init__(self) -> None:
        super().__init__(64 << 20)
        self.copied: list[int] = []

    def release(self, buffer: Memory, owner: MemoryOwner, *, done: bool = True) -> None:
        if not done:
            self.copied.append(len(buffer))
        super().release(buffer, owner, done=done)


class Shell:
    """The server's part without a socket: puts bytes where the machine wants them."""

    def __init__(
        self, pool: BufferPool | None = None, answer_at_once: bool = True, limit: int = LIMIT
    ) -> None:
        self.pool = pool or BufferPool(64 << 20)
        self.connection = RequestFramer(self.pool, limit)
        self.scratch = memoryview(bytearray(64 << 10))
        self.requests: list[bytes] = []
        self.reading = True
        self.expects = False
        self.answer_at_once = answer_at_once

    def put(self, data: bytes) -> int:
        """Deliver as the transport does; the number of bytes that were taken."""
        taken = 0
        while taken < len(data) and self.reading:
            if self.expects:
                self.connection.expect()
            space = self.connection.free_space()
            if space is None:
                count = min(len(self.scratch), len(data) - taken)
                self.scratch[:count] = data[taken : taken + count]
                self.connection.receive(self.scratch[:count])
            else:
                assert len(space) > 0
                count = min(len(space), len(data) - taken)
                space[:count] = data[taken : taken + count]
                space.release()
                self.connection.filled(count)
            taken += count
            self.serve()
        return taken

    def serve(self) -> None:
        while (request := self.connection.next_request()) is not None:
            self.requests.append(bytes(request))
            assert not request.readonly
            del request
            if self.answer_at_once:
                self.connection.answered()
        self.reading = self.connection.settle()
        self.scratch[:] = b"\xee" * len(self.scratch)  # the shell's buffer is somebody else's now


def test_a_large_request_is_not_copied_as_it_grows() -> None:
    """A copy is a step of the loop that is as long as a peer makes it."""
    pool = CountingPool()
    shell = Shell(pool, limit=30 << 20)
    message = random.Random(1).randbytes(20 << 20)
    shell.put(frame(message))
    assert shell.requests == [message]
    assert max(pool.copied) <= 2 << 20
    assert pool.in_use_bytes == 0
    assert pool.holders == {}


@pytest.mark.parametrize("has_waited", [False, True])
@pytest.mark.parametrize("first", [0, 100])
def test_whole_requests_that_wait_for_their_turn_are_kept(has_waited: bool, first: int) -> None:
    """The server settles while nothing is being handled, where the turn was used up meanwhile."""
    requests = [bytes(first), *(bytes([number]) * (32 << 10) for number in range(100))]
    framer = RequestFramer(BufferPool(64 << 20), LIMIT)
    framer.receive(memoryview(bytearray(b"".join(map(frame, requests)))))
    found: list[bytes] = []
    while (request := framer.next_request()) is not None:
        found.append(bytes(request))
        request.release()
        framer.settle()
        framer.answered()
        framer.settle(has_waited=has_waited)
    assert found == requests


def test_a_large_request_like_the_last_one_is_read_into_its_place() -> None:
    pool = CountingPool()
    shell = Shell(pool)
    shell.expects = True
    requests = [random.Random(number).randbytes(200_000) for number in range(3)]
    shell.put(frame(requests[0]))
    assert pool.copied == [262_144] or not pool.copied
    pool.copied.clear()
    for request in requests[1:]:
        shell.connection.expect()
        space = shell.connection.free_space()
        assert space is not None
        assert len(space) == 200_004
        space.release()
        assert pool.in_use_bytes == 262_144
        assert shell.put(frame(request)) == 200_004
        assert pool.in_use_bytes == 0
    assert not pool.copied
    assert shell.requests == requests


def test_nothing_is_expected_behind_a_small_request_or_while_memory_is_short() -> None:
    pool = BufferPool(2 << 20)
    shell = Shell(pool)
    shell.put(frame(bytes(200_000)) + frame(bytes(100)))
    shell.connection.expect()
    assert shell.connection.free_space() is None
    shell.put(frame(bytes(200_000)))
    held = pool.acquire(512 << 10, RequestFramer(pool, LIMIT))
    assert held is not None
    shell.connection.expect()
    assert shell.connection.free_space() is None


def test_memory_in_which_nothing_arrives_is_not_a_request_that_is_late() -> None:
    pool = BufferPool(64 << 20)
    shell = Shell(pool)
    shell.put(frame(bytes(200_000)))
    shell.connection.expect()
    for now_s in range(0, 1000, 10):
        assert not pool.is_late(shell.connection, now_s, 30)
    shell.put(frame(bytes(200_000))[:50])
    assert any(pool.is_late(shell.connection, now_s, 30) for now_s in range(1000, 2000, 10))
    shell.connection.close()
    assert pool.in_use_bytes == 0
    assert not pool.holders


def test_memory_that_somebody_looks_at_stays_where_it_is() -> None:
    """A request that was handed out is a view of it; the rest behind it moves to other memory."""
    pool = BufferPool(64 << 20)
    owner = RequestFramer(pool, LIMIT)
    held = pool.acquire(3 << 20, owner)
    assert held is not None
    held[:5] = b"bytes"
    with memoryview(held) as request:
        other = pool.acquire(9 << 20, owner, held=held)
        assert other is not None
        assert other is not held
        assert bytes(request[:5]) == b"bytes"
    pool.release(held, owner, done=False)
    assert pool.in_use_bytes == 9 << 20
    assert pool.acquire(12 << 20, owner, held=other) is other
    assert (len(other), pool.in_use_bytes) == (12 << 20, 12 << 20)


@pytest.mark.parametrize("expects", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_requests_come_out_whole_for_any_split_of_the_bytes(seed: int, expects: bool) -> None:
    rng = random.Random(seed)
    sent = [rng.randbytes(rng.choice([0, 1, 5, 100, 5000, 70_000, 300_000])) for _ in range(40)]
    stream = b"".join(map(frame, sent))
    shell = Shell()
    shell.expects = expects
    at = 0
    while at < len(stream):
        step = rng.choice([1, 2, 3, 7, 1000, 65_536, 200_000])
        at += shell.put(stream[at : at + step])
    assert shell.requests == sent
    assert shell.pool.in_use_bytes == 0


def test_requests_come_out_of_single_bytes() -> None:
    sent = [b"", b"a", b"bc" * 3000]
    shell = Shell()
    for byte in b"".join(map(frame, sent)):
        shell.put(bytes([byte]))
    assert shell.requests == sent


def test_the_next_request_waits_for_the_answer() -> None:
    shell = Shell(answer_at_once=False)
    shell.put(frame(b"one") + frame(b"two"))
    assert shell.requests == [b"one"]
    assert shell.connection.state is ConnectionState.HANDLING
    shell.connection.answering()
    shell.serve()
    assert shell.requests == [b"one"]
    shell.connection.answered()
    shell.serve()
    assert shell.requests == [b"one", b"two"]


def test_a_busy_connection_takes_in_a_bounded_number_of_bytes() -> None:
    shell = Shell(answer_at_once=False)
    stream = b"".join(frame(b"%03d" % i * 100) for i in range(900))
    taken = shell.put(stream)
    assert not shell.reading
    assert PIPELINE_BYTES <= taken <= 2 * PIPELINE_BYTES
    assert shell.pool.in_use_bytes <= 2 * PIPELINE_BYTES
    shell.answer_at_once = True
    shell.connection.answered()
    shell.serve()
    while taken < len(stream):
        taken += shell.put(stream[taken:])
    assert shell.requests == [b"%03d" % i * 100 for i in range(900)]


@pytest.mark.parametrize("size", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_a_size_out_of_bounds_is_an_error(size: int) -> None:
    with pytest.raises(FrameError):
        Shell().put(struct.pack(">i", size))


def test_memory_follows_the_bytes_that_came_and_not_the_size_that_was_claimed() -> None:
    shell = Shell()
    shell.put(struct.pack(">i", LIMIT) + b"ten bytes!")
    assert shell.pool.in_use_bytes == MIN_BUFFER_BYTES
    shell.put(bytes(30_000))
    assert shell.pool.in_use_bytes <= 4 * 30_014 + MIN_BUFFER_BYTES
    shell.put(bytes(LIMIT - 30_010))
    assert len(shell.requests[0]) == LIMIT
    assert shell.pool.in_use_bytes == 0


def test_a_request_that_is_kept_is_not_overwritten_by_later_ones() -> None:
    pool = BufferPool(64 << 20)
    shell = Shell(pool, answer_at_once=False)
    big = b"x" * 200_000
    space_filler = frame(big)
    kept: list[memoryview] = []
    for _ in range(3):
        at = 0
        while at < len(space_filler):
            piece = space_filler[at : at + 50_000]
            space = shell.connection.free_space()
            if space is None:
                shell.connection.receive(memoryview(bytearray(piece)))
                at += len(piece)
            else:
                count = min(len(space), len(piece))
                space[:count] = piece[:count]
                space.release()
                shell.connection.filled(count)
                at += count
            request = shell.connection.next_request()
            shell.connection.settle()
        assert request is not None
        kept.append(request)
        shell.connection.answered()
    kept[0][:] = b"y" * 200_000
    assert kept[1] == kept[2] == big


def test_an_illegal_move_raises() -> None:
    connection = RequestFramer(BufferPool(1 << 20), LIMIT)
    with pytest.raises(InvariantError, match="READING to ANSWERING"):
        connection.answering()
    connection.close()
    connection.close()
    with pytest.raises(InvariantError):
        connection.answered()


class Holder:
    """Holder of memory, without a connection."""

    def __init__(self, arrived_bytes: int = 0) -> None:
        self.arrived_bytes = arrived_bytes
        self.is_waiting_on_us = False
        self.is_stalled = False
        self.has_more = True


def test_over_budget_one_connection_goes_on_and_the_others_wait_for_it() -> None:
    pool = BufferPool(256 << 10)
    stream = frame(b"z" * 500_000)
    shells = [Shell(pool) for _ in range(4)]
    taken = [shell.put(stream[:400_000]) for shell in shells]
    assert [shell.reading for shell in shells].count(True) == 1
    assert pool.in_use_bytes <= (256 << 10) + (1 << 20) + 4 * (128 << 10)
    # As each is done, one of those that wait is privileged next: all get through.
    for _ in range(4):
        [running] = [i for i, shell in enumerate(shells) if shell.reading and not shell.requests]
        shells[running].put(stream[taken[running] :])
        assert shells[running].requests == [b"z" * 500_000]
        for i, shell in enumerate(shells):
            if not shell.reading and not any(s.reading and not s.requests for s in shells):
                shell.serve()
                if shell.reading:
                    taken[i] += shell.put(stream[taken[i] : 400_000])
    assert pool.in_use_bytes == 0
    assert not pool.holders


def test_a_waiting_connection_is_called_when_memory_is_released() -> None:
    pool = BufferPool(8192)
    first, second = Holder(), Holder()
    a = pool.acquire(8192, first)
    assert a is not None
    b = pool.acquire(100_000, first, held=a)
    assert b is not None, "the first one over the budget is privileged"
    pool.release(a, first, done=False)
    assert pool.acquire(8192, second) is None
    called: list[str] = []
    pool.wait(second, 8192, lambda: called.append("second"))
    assert not called
    pool.release(b, first)
    assert called == ["second"]
    assert pool.acquire(8192, second) is not None


def test_only_so_many_try_again_as_there_is_room_for() -> None:
    pool = BufferPool(64 << 10)
    big, others = Holder(), [Holder() for _ in range(100)]
    held = pool.acquire(64 << 10, big)
    assert held is not None
    pool.acquire(4096, Holder())  # privileged
    called: list[int] = []
    for number, one in enumerate(others):
        assert pool.acquire(16 << 10, one) is None
        pool.wait(one, 16 << 10, lambda number=number: called.append(number))  # type: ignore[misc]
    pool.release(held, big)
    assert called == [0, 1, 2], "64 KiB, of which 4 are somebody's"
    pool.leave(others[3])
    assert called == [0, 1, 2, 4, 5, 6]


def test_a_silent_connection_loses_its_place_in_the_queue() -> None:
    pool = BufferPool(64 << 10)
    held = pool.acquire(64 << 10, Holder())
    assert held is not None
    privileged = Holder()
    pool.acquire(4096, privileged)
    silent, honest = Holder(), Holder()
    silent.has_more = False
    called: list[Holder] = []
    for one in (silent, honest):
        assert pool.acquire(40_000, one) is None
        pool.wait(one, 40_000, lambda one=one: called.append(one))  # type: ignore[misc]
    pool.release(held, next(iter(pool.holders)))
    assert called == [honest]
    pool.retry_waiting()
    assert called == [honest]
    silent.has_more = True
    pool.retry_waiting()
    assert called == [honest, silent]


def test_a_peer_gets_twice_what_it_sent_when_memory_is_not_plentiful() -> None:
    pool = BufferPool(4 << 20)
    assert pool.wanted(65_536) == 1 << 20
    pool.acquire(300_000, Holder())
    assert pool.wanted(65_536) == 128 << 10
    shell = Shell(pool)
    before = pool.in_use_bytes
    shell.put(struct.pack(">i", LIMIT) + bytes(100_000))
    assert pool.in_use_bytes - before <= 256 << 10


def late_of(pool: BufferPool, now_s: float) -> list[MemoryOwner]:
    """Return the holders that have used up their 30 s."""
    return [owner for owner in list(pool.holders) if pool.is_late(owner, now_s, 30)]


def test_only_stalled_connections_count_as_late() -> None:
    pool = BufferPool(1 << 20)
    silent, drip, brisk, busy, standing = (Holder(50_000) for _ in range(5))
    busy.is_waiting_on_us = standing.is_waiting_on_us = standing.is_stalled = True
    for one in (brisk, drip, silent, busy, standing):
        assert pool.acquire(100_000, one) is not None
    assert late_of(pool, 0.0) == []
    for second in range(1, 3):
        drip.arrived_bytes += 1
        brisk.arrived_bytes += 40_000
        assert late_of(pool, float(second)) == []
    assert pool.stalled(2.0) == [], "nobody needs their memory"
    newcomer = Holder()
    pool.wait(newcomer, 1000, lambda: None)
    assert len(pool.stalled(2.0)) == 1, "one has enough"
    pool.wait(newcomer, 1_000_000, lambda: None)
    assert set(pool.stalled(2.0)) == {silent, drip, standing}


def test_a_request_has_its_time_and_more_for_what_has_come() -> None:
    pool = BufferPool(1 << 30)
    drip, brisk, busy = Holder(), Holder(), Holder()
    busy.is_waiting_on_us = True
    for one in (drip, brisk, busy):
        pool.acquire(4096, one)
    late: dict[Holder, int] = {}
    for second in range(200):
        for found in late_of(pool, float(second)):
            assert isinstance(found, Holder)
            late.setdefault(found, second)
        drip.arrived_bytes += 1
        brisk.arrived_bytes += 33_000
    assert late == {drip: 31}
    pool.begin(drip)
    assert late_of(pool, 200.0) == [], "that was another request"


def test_unreferenced_buffers_are_reused() -> None:
    pool = BufferPool(1 << 20)
    owner = Holder()
    buffer = pool.acquire(10_000, owner)
    assert buffer is not None
    identity = id(buffer)
    pool.release(buffer, owner)
    again = pool.acquire(10_000, owner)
    assert id(again) == identity
    assert again is not None
    seen = memoryview(again)[5:10]
    pool.release(again, owner)
    assert id(pool.acquire(10_000, owner)) != identity
    assert len(seen) == 5
