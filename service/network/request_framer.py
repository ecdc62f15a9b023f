"""State machine of one connection: bytes in, whole requests out, one at a time and in order. [P]

`RequestFramer.state` moves by the table `MOVES`; an illegal move raises. The shell (`server_connection` and
`request_pipeline`) passes received bytes to `receive` or writes them into `free_space`, gets requests from
`next_request` while the state is READING, reports `answering` and `answered`, and calls `settle` at the end
of each event, which keeps the rest of a request in memory of this connection. Any split of the bytes works.

Kafka mutes a channel until its request is answered (``SocketServer``). Here bytes of later requests are
accepted up to `PIPELINE_BYTES`, which costs less than toggling the socket's read interest for every request.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from service.base.errors import InvariantError
from service.network.buffers import MIN_BUFFER_BYTES, BufferPool, Memory, MemoryOwner
from service.wire.frames import SIZE_BYTES, read_frame_size

PIPELINE_BYTES = 64 << 10
_SIZE = struct.Struct(">i").unpack_from


class ConnectionState(IntEnum):
    """State of the connection with its current request."""

    READING = 0
    HANDLING = 1
    ANSWERING = 2
    CLOSED = 3


READING, HANDLING, ANSWERING, CLOSED = ConnectionState

MOVES = {
    READING: frozenset({HANDLING, CLOSED}),
    HANDLING: frozenset({ANSWERING, READING, CLOSED}),
    ANSWERING: frozenset({READING, CLOSED}),
    CLOSED: frozenset({CLOSED}),
}

_NOTHING = memoryview(b"")
_LARGE_BYTES = 32 << 10
"""Least size of a request for which a connection has memory as soon as the next one begins to arrive."""
_RUN_REQUEST_BYTES = 128 << 10
"""More than any request has that is taken together with others."""
_NEEDED_BYTES = 256 << 10
"""Buffer size of a request that had to wait for memory, if the request is as large."""


class RequestFramer:
    """Framing and order of requests of one connection. For one thread."""

    __slots__ = (
        "_end", "_max_request_bytes", "_owned", "_owner", "_pool", "_start", "_view", "expected_bytes",
        "state",
    )  # fmt: skip

    def __init__(self, pool: BufferPool, max_request_bytes: int, owner: MemoryOwner | None = None) -> None:
        """Memory of `pool` is held in the name of `owner`, or of the connection itself."""
        self.state = READING
        self._pool = pool
        self._owner: MemoryOwner = owner or self
        self._max_request_bytes = max_request_bytes
        self._owned: Memory | None = None
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self.expected_bytes = 0
        """size of the last request, if it was large: the next one may be as large"""

    def limit(self, max_request_bytes: int) -> None:
        """Accept requests up to this size from the next one on."""
        self._max_request_bytes = max_request_bytes

    def free_space(self) -> memoryview | None:
        """Return the space for the next bytes of an incomplete request; None if the shell may use its own.

        Release the view before the next call of another method. The space ends where the request does.
        """
        if self._owned is None:
            return None
        stop = len(self._owned)
        if not self._end and self.expected_bytes:
            stop = min(stop, self.expected_bytes)
        elif self._end - self._start >= SIZE_BYTES and self.state is READING:
            stop = min(stop, self._start + SIZE_BYTES + self._frame_size())
        return memoryview(self._owned)[self._end : stop]

    def expect(self) -> None:
        """Have memory for a request like the last one, if that was large: some of it has arrived.

        It is read into its place then, instead of into a buffer that is too small for it first.
        """
        if self.expected_bytes and self._owned is None and self.state is READING:
            self._owned = self._pool.acquire_expected(self.expected_bytes, self._owner)

    def filled(self, count: int) -> None:
        """Note that `count` bytes were written into `free_space`."""
        self._end += count

    def receive(self, data: memoryview) -> None:
        """Read bytes from a buffer of the shell's, which is free again after `settle`. Not while bytes are
        kept.
        """
        if self._owned is not None:
            raise InvariantError("bytes are kept: write the next ones into free_space")
        self._view, self._start, self._end = data, 0, len(data)

    def whole_input(self) -> tuple[memoryview, int, int] | None:
        """Return the input at hand as (bytes, start, end), from the size of the next request on, if that is
        there as a whole, for one that takes several at once. None while a limit may forbid those behind it.
        `took` tells how much was handled."""
        start, end, most = self._start, self._end, self._max_request_bytes
        if end - start < SIZE_BYTES or most < _RUN_REQUEST_BYTES:
            return None
        data = self._view if self._owned is None else memoryview(self._owned)
        if 0 < _SIZE(data, start)[0] <= min(end - start - SIZE_BYTES, most):
            return data, start, end
        return None

    def took(self, position: int, count: int) -> None:
        """Note that `count` requests, up to `position`, are being answered: the state is then HANDLING."""
        size = position - self._start
        self._start = position
        self._move(HANDLING)
        if self._owned is not None:
            self._pool.begin(self._owner)
            self.expected_bytes = size if count == 1 and size >= _LARGE_BYTES else 0
        else:
            self.expected_bytes = 0

    def next_request(self) -> memoryview | None:
        """Return the next whole request, without its size and writable, or None. The state is then HANDLING.

        Raises `FrameError`, after which the connection must be closed.
        """
        if self.state is not READING or self._end - self._start < SIZE_BYTES:
            return None
        size = self._frame_size()
        start = self._start + SIZE_BYTES
        stop = start + size
        if stop > self._end:
            return None
        self._start = stop
        self.state = HANDLING
        if self._owned is not None:
            self._pool.begin(self._owner)
            self.expected_bytes = stop - start + SIZE_BYTES if size >= _LARGE_BYTES else 0
            return memoryview(self._owned)[start:stop]
        self.expected_bytes = 0
        # The shell reuses its buffer at once; copying a request that fits it is cheap.
        return memoryview(bytearray(self._view[start:stop]))

    def answering(self) -> None:
        """Note that the response is being sent."""
        self._move(ANSWERING)

    def answered(self) -> None:
        """Note that the response is out, or there is none, or comes later: the next request may be
        handled."""
        if self.state is HANDLING:
            self.state = READING
        else:
            self._move(READING)

    def close(self) -> None:
        """Accept no more requests; return memory."""
        self._move(CLOSED)
        self._drop()
        self._pool.leave(self._owner)

    @property
    def arrived_bytes(self) -> int:
        """Number of bytes received of the current request."""
        return self._end - self._start

    @property
    def is_full(self) -> bool:
        """True if the connection's buffer has no room for the rest of a request."""
        return self._owned is not None and self._end == len(self._owned)

    @property
    def is_waiting_on_us(self) -> bool:
        """True while a request is not answered: the next one cannot be handled."""
        return self.state is not READING

    @property
    def has_more(self) -> bool:
        """True: this machine has no socket to ask; its owner has."""
        return True

    @property
    def is_stalled(self) -> bool:
        """False: this machine knows no long polls; its owner does."""
        return False

    @property
    def needed_bytes(self) -> int:
        """Size of the buffer to wait for; generous, so that the next wait is not soon."""
        left = self._end - self._start
        whole = SIZE_BYTES + self._frame_size() if left >= SIZE_BYTES else MIN_BUFFER_BYTES
        return max(left, min(whole, max(4 * left, _NEEDED_BYTES)))  # whole ones may wait for their turn

    def drain(self) -> bool:
        """Forget the input if all of it was handled and no memory is held, and return whether that is so:
        `settle` has nothing to do then."""
        if self._start != self._end or self._owned is not None:
            return False
        self._view = _NOTHING
        self._start = self._end = 0
        return True

    def settle(self, *, has_waited: bool = False) -> bool:
        """Keep the rest of the input in memory of this connection, with room for more.

        Returns False to stop reading, because the budget or the pipeline is full. Call it again when memory
        is free (`has_waited`) or the current request is answered.
        """
        left = self._end - self._start
        if left == 0 or self.state is CLOSED:
            self._drop()
            return True
        crowded = self.state is not READING and left >= PIPELINE_BYTES
        owned = self._owned
        if owned is None:
            wanted = left if crowded else self._wanted(left)
            self._keep(
                self._pool.acquire(wanted, self._owner) or self._pool.acquire(left, self._owner, force=True)
            )
        elif self._end == len(owned) and not crowded:
            wanted = self.needed_bytes if has_waited else self._wanted(left)
            self._keep(self._pool.acquire(self._start + wanted, self._owner, held=owned))
        return not crowded and self._owned is not None and self._end < len(self._owned)

    def _wanted(self, left: int) -> int:
        """Return the size of memory for the `left` bytes at hand; small while few bytes have arrived."""
        if self.state is not READING:
            return min(PIPELINE_BYTES, max(4 * left, MIN_BUFFER_BYTES))
        trusted = max(self._pool.wanted(left), MIN_BUFFER_BYTES)
        if left < SIZE_BYTES:
            return trusted
        return max(left, min(SIZE_BYTES + self._frame_size(), trusted))  # as in `needed_bytes`

    def _keep(self, buffer: Memory | None) -> None:
        """Move the rest of the input into `buffer`, if it is another one. Views of requests keep the old
        buffer alive.
        """
        if buffer is None or buffer is self._owned:
            return
        left = self._end - self._start
        old = self._owned
        with (
            memoryview(self._view if old is None else old) as source,
            source[self._start : self._end] as rest,
        ):
            buffer[:left] = rest
        self._owned, self._view, self._start, self._end = buffer, _NOTHING, 0, left
        if old is not None:
            self._pool.release(old, self._owner, done=False)

    def _frame_size(self) -> int:
        if self._owned is None:
            return read_frame_size(self._view, self._start, self._max_request_bytes)
        with memoryview(self._owned) as data:
            return read_frame_size(data, self._start, self._max_request_bytes)

    def _drop(self) -> None:
        if self._owned is not None:
            self._pool.release(self._owned, self._owner)
        self._owned = None
        self._view = _NOTHING
        self._start = self._end = 0

    def _move(self, state: ConnectionState) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"connection cannot go from {self.state.name} to {state.name}")
        self.state = state
