"""One connection as a pure machine: bytes in, whole requests out, one at a time and in order. [P]

`Connection.state` moves as the table `MOVES` says; an illegal move raises. The shell (`server`) puts
received bytes in with `receive` or straight into `free_space`, takes requests with `next_request` while the
state is READING, tells `answering` and `answered`, and calls `settle` at the end of each event so that what
is left of a request is kept in memory that this connection owns. Works for any split of the bytes.

Kafka mutes a channel until its request is answered (``SocketServer``); here bytes of later requests are
taken in up to `PIPELINE_BYTES`, which costs less than switching the socket's interest off and on for every
request.
"""

from __future__ import annotations

from enum import IntEnum

from service.base.errors import InvariantError
from service.network.buffers import MIN_BUFFER_BYTES, BufferPool, Memory, Owner
from service.wire.frames import SIZE_BYTES, read_frame_size

PIPELINE_BYTES = 64 << 10


class State(IntEnum):
    """Where the connection is with its current request."""

    READING = 0
    HANDLING = 1
    ANSWERING = 2
    CLOSED = 3


READING, HANDLING, ANSWERING, CLOSED = State

MOVES = {
    READING: frozenset({HANDLING, CLOSED}),
    HANDLING: frozenset({ANSWERING, READING, CLOSED}),
    ANSWERING: frozenset({READING, CLOSED}),
    CLOSED: frozenset({CLOSED}),
}

_NOTHING = memoryview(b"")
_NEEDED_BYTES = 256 << 10
"""What a request that had to wait for memory gets, if it is as large."""


class Connection:
    """Framing and request order of one connection. Used by one thread only."""

    __slots__ = ("_end", "_max_request_bytes", "_owned", "_owner", "_pool", "_start", "_view", "state")

    def __init__(self, pool: BufferPool, max_request_bytes: int, owner: Owner | None = None) -> None:
        """Memory of `pool` is held in the name of `owner`, or of the connection itself."""
        self.state = READING
        self._pool = pool
        self._owner: Owner = owner or self
        self._max_request_bytes = max_request_bytes
        self._owned: Memory | None = None
        self._view = _NOTHING
        self._start = 0
        self._end = 0

    def free_space(self) -> memoryview | None:
        """Where the next bytes of an unfinished request belong; None when any buffer of the shell's will do.

        Release the view before the next call of another method. Never reaches beyond the request it is for.
        """
        if self._owned is None:
            return None
        stop = len(self._owned)
        if self._end - self._start >= SIZE_BYTES and self.state is READING:
            stop = min(stop, self._start + SIZE_BYTES + self._frame_size())
        return memoryview(self._owned)[self._end : stop]

    def filled(self, count: int) -> None:
        """`count` bytes were put into `free_space`."""
        self._end += count

    def receive(self, data: memoryview) -> None:
        """Bytes in a buffer of the shell's, which is free for other use after `settle`. Only while nothing
        is kept.
        """
        if self._owned is not None:
            raise InvariantError("bytes are kept: put the next ones into free_space")
        self._view, self._start, self._end = data, 0, len(data)

    def next_request(self) -> memoryview | None:
        """The next whole request without its size, writable, or None. It is now HANDLING.

        Raises `FrameError`: the connection is lost then.
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
            return memoryview(self._owned)[start:stop]
        # The shell's buffer is used again at once; copying a request that fits it is cheap.
        return memoryview(bytearray(self._view[start:stop]))

    def answering(self) -> None:
        """The answer is being sent."""
        self._move(ANSWERING)

    def answered(self) -> None:
        """The answer is out, or there is none, or it is owed: the next request may be taken."""
        if self.state is HANDLING:
            self.state = READING
        else:
            self._move(READING)

    def close(self) -> None:
        """No more requests; memory goes back."""
        self._move(CLOSED)
        self._drop()
        self._pool.leave(self._owner)

    @property
    def arrived_bytes(self) -> int:
        """Bytes here of the request that is arriving."""
        return self._end - self._start

    @property
    def is_full(self) -> bool:
        """Whether the memory that the connection holds has no room for the rest of a request."""
        return self._owned is not None and self._end == len(self._owned)

    @property
    def is_excused(self) -> bool:
        """The next request cannot go on before this one is answered."""
        return self.state is not READING

    @property
    def has_more(self) -> bool:
        """Of sockets the connection knows nothing; its owner does."""
        return True

    @property
    def is_standing(self) -> bool:
        """Of long polls the connection knows nothing; its owner does."""
        return False

    @property
    def needed_bytes(self) -> int:
        """Size of the buffer that is waited for: once there is one, it should not have to wait again soon."""
        left = self._end - self._start
        whole = SIZE_BYTES + self._frame_size() if left >= SIZE_BYTES else MIN_BUFFER_BYTES
        return min(whole, max(4 * left, _NEEDED_BYTES))

    def settle(self, *, has_waited: bool = False) -> bool:
        """Keep what is left in memory of our own, with room for more.

        False: stop reading for now, because the budget or the pipeline is full; settle again when memory
        came back (`has_waited`) or the current request is answered.
        """
        left = self._end - self._start
        if left == 0 or self.state is CLOSED:
            self._drop()
            return True
        crowded = self.state is not READING and left >= PIPELINE_BYTES
        owned = self._owned
        if owned is None:
            wanted = left if crowded else self._wanted(left)
            self._keep(self._pool.take(wanted, self._owner) or self._pool.take(left, self._owner, force=True))
        elif self._end == len(owned) and not crowded:
            wanted = self.needed_bytes if has_waited else self._wanted(left)
            self._keep(self._pool.take(self._start + wanted, self._owner, held=owned))
        return not crowded and self._owned is not None and self._end < len(self._owned)

    def _wanted(self, left: int) -> int:
        """Bytes of memory to have for the `left` bytes at hand: little while little has come."""
        if self.state is not READING:
            return min(PIPELINE_BYTES, max(4 * left, MIN_BUFFER_BYTES))
        trusted = max(self._pool.wanted(left), MIN_BUFFER_BYTES)
        return trusted if left < SIZE_BYTES else min(SIZE_BYTES + self._frame_size(), trusted)

    def _keep(self, buffer: Memory | None) -> None:
        """Move what is left into `buffer`, where that is another one; a request that was handed out keeps the
        old one alive by its view.
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
            self._pool.give(old, self._owner, done=False)

    def _frame_size(self) -> int:
        if self._owned is None:
            return read_frame_size(self._view, self._start, self._max_request_bytes)
        with memoryview(self._owned) as data:
            return read_frame_size(data, self._start, self._max_request_bytes)

    def _drop(self) -> None:
        if self._owned is not None:
            self._pool.give(self._owned, self._owner)
        self._owned = None
        self._view = _NOTHING
        self._start = self._end = 0

    def _move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"connection cannot go from {self.state.name} to {state.name}")
        self.state = state
