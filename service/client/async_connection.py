"""One asyncio connection to a peer: frames cut out of its bytes, and handed to a `ClientSession`.

The receive buffer grows with the bytes that arrive, not with the size that is claimed. It is used again for
the next response, unless somebody holds a view of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from service.base.futures import retrieve_exception
from service.client.session import ClientSession
from service.network.buffers import has_no_view
from service.network.metrics import ChannelMetrics
from service.network.raw_socket import socket_of
from service.wire.api import APIS
from service.wire.errors import MalformedMessage, WireError
from service.wire.frames import SIZE_BYTES, read_frame_size

if TYPE_CHECKING:
    from service.network.tls.identity import TlsIdentity

_SMALL_BYTES: Final = 16 << 10
_KEPT_BYTES: Final = 1 << 20
"""A buffer of so many bytes is kept; more counts against the budget of all channels."""
_AT_ONCE_ELEMENTS: Final = 256


class PeerFailed(ConnectionError):
    """The peer sent bytes that cannot be parsed, a response beyond the limit, or refused the login."""


def garbage_from(name: str, error: WireError) -> PeerFailed:
    """Return the error of a connection to `name` whose bytes are not the protocol."""
    return PeerFailed(f"{name} answers with garbage: {error}")


class ConnectionLimits(NamedTuple):
    """Bounds on what one connection may cost."""

    most_in_flight: int
    max_response_bytes: int


class ReceiveBudget:
    """Memory that the responses arriving on several connections may take together."""

    def __init__(self, budget_bytes: int) -> None:
        self.left_bytes = budget_bytes


class PendingCall:
    """A response that somebody waits for."""

    __slots__ = ("answer", "api_key", "timer", "version")

    def __init__(self, api_key: int, version: int, answer: asyncio.Future[Any]) -> None:
        self.api_key = api_key
        self.version = version
        self.answer = answer
        self.timer: asyncio.TimerHandle | None = None


class AsyncConnection(asyncio.BufferedProtocol):
    """One connection. Owned by the event loop; `set_up` comes before `send`."""

    def __init__(
        self,
        session: ClientSession,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        budget: ReceiveBudget,
        metrics: ChannelMetrics,
        on_lost: Callable[[AsyncConnection, Exception], None],
    ) -> None:
        self.session = session
        self._name = session.name
        self._loop = loop
        self._most = limits.most_in_flight
        self._max_bytes = limits.max_response_bytes
        self._budget = budget
        self._metrics = metrics
        self._on_lost = on_lost
        self._buffer = bytearray(_SMALL_BYTES)
        self._spare: bytearray | None = None
        """of the last response, if somebody held a view of it when it was whole; seldom still at the next"""
        self._view: memoryview | None = None
        self._end = 0
        self._error: Exception | None = None
        self._set_up_frame: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport
        self.pending: deque[PendingCall] = deque()
        self.writable = asyncio.Event()
        self.writable.set()
        self.room = asyncio.Event()
        """for one more request in flight"""
        self.room.set()
        self.is_open = False

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if (own := socket_of(transport)) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.is_open = True

    def secured(self, identity: TlsIdentity) -> None:
        """Do nothing: whoever connects waits for it."""

    def get_buffer(self, sizehint: int) -> memoryview:
        # Never beyond the response that is arriving: so no byte is ever moved.
        stop = SIZE_BYTES if self._end < SIZE_BYTES else min(len(self._buffer), SIZE_BYTES + self._size())
        self._view = memoryview(self._buffer)[self._end : stop]
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self._view is not None:
            self._view.release()
            self._view = None
        self._end += nbytes
        self._metrics.received_bytes += nbytes
        if not self.is_open:
            return
        try:
            self._arrived()
        except WireError as e:
            self.end(garbage_from(self._name, e))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over(self._error or exc or ConnectionResetError(f"{self._name} closed the connection"))

    # -- responses

    def _size(self) -> int:
        return read_frame_size(self._buffer, 0, self._max_bytes)

    def _arrived(self) -> None:
        if self._end < SIZE_BYTES:
            return
        whole = SIZE_BYTES + self._size()
        if not self.session.in_flight:
            raise MalformedMessage(f"{whole - SIZE_BYTES} bytes that answer no request")
        if self._end == whole:
            with memoryview(self._buffer) as view:
                self._take_frame(view[SIZE_BYTES:whole])
            self._reset_buffer()
        elif self._end == len(self._buffer):
            self._grow(min(whole, 2 * len(self._buffer)))

    def _grow(self, size: int) -> None:
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) >= size and has_no_view(spare) and self._charge(len(spare)):
            spare[: self._end] = self._buffer[: self._end]
            self._buffer = spare
        elif self._charge(size):
            self._buffer.extend(bytes(size - len(self._buffer)))
        else:
            raise MalformedMessage(f"no memory is left for a response of {self._size()} bytes")

    def _charge(self, size: int) -> bool:
        """Charge the budget for a larger buffer; False if it has too little left."""
        more = _charged(size) - _charged(len(self._buffer))
        if more > self._budget.left_bytes:
            return False
        self._budget.left_bytes -= more
        return True

    def _reset_buffer(self) -> None:
        """Make room for the next response: in this buffer, unless somebody holds a view of it; then it
        becomes the spare. To begin small for each of a follower's responses would cost as much as writing
        them (new pages each time)."""
        self._end, self._spare = 0, None
        self._budget.left_bytes += _charged(len(self._buffer))
        if has_no_view(self._buffer):
            del self._buffer[_KEPT_BYTES:]
        else:
            self._spare, self._buffer = self._buffer, bytearray(_SMALL_BYTES)

    def _take_frame(self, frame: memoryview) -> None:
        if not self.session.is_ready:
            waiting = self._set_up_frame
            if waiting is None or waiting.done():
                raise MalformedMessage(f"{len(frame)} bytes that answer no request")
            waiting.set_result(bytes(frame))
            return
        pending = self.pending[0]
        is_wanted = not pending.answer.done()
        message = self.session.receive(frame, _AT_ONCE_ELEMENTS, is_wanted=is_wanted)
        self.pending.popleft()
        self.room.set()
        if pending.timer is not None:
            pending.timer.cancel()
        if is_wanted:
            pending.answer.set_result(message)

    # -- requests

    @property
    def is_ready(self) -> bool:
        """Return whether a request can be sent now."""
        return self.is_open and self.room.is_set() and self.writable.is_set()

    async def exchange(self, outgoing: bytes) -> bytes:
        """Send bytes of the session's set-up; return the frame that answers them. Raises the connection's
        end."""
        self._raise_if_closed()
        self._set_up_frame = self._loop.create_future()
        self._write(outgoing)
        return await self._set_up_frame

    def send(self, api_key: int, version: int, message: Any, deadline: float) -> PendingCall:
        """Send a request; its `answer` is the response, or how the connection ended. Raises `ValueError` for
        a message that `version` cannot carry."""
        self._raise_if_closed()
        frame = self.session.request(api_key, version, message)
        pending = PendingCall(api_key, version, self._loop.create_future())
        pending.answer.add_done_callback(retrieve_exception)
        pending.timer = self._loop.call_at(deadline, self._late, pending)
        self.pending.append(pending)
        if len(self.pending) >= self._most:
            self.room.clear()
        self._write(frame)
        return pending

    def _write(self, frame: bytes) -> None:
        self._metrics.sent_bytes += len(frame)
        self._metrics.calls += 1
        self._transport.write(frame)

    def _raise_if_closed(self) -> None:
        if not self.is_open:
            raise ConnectionResetError(f"{self._name} closed the connection")

    def _late(self, pending: PendingCall) -> None:
        self._metrics.timed_out += 1
        name = APIS[pending.api_key].name
        now = self._loop.time()
        for one in self.pending:  # others may be due, too
            is_late = one is pending or (one.timer is not None and one.timer.when() <= now)
            if is_late and not one.answer.done():
                one.answer.set_exception(TimeoutError(f"no answer to {APIS[one.api_key].name} in time"))
        self.end(ConnectionResetError(f"{self._name} did not answer {name} in time"))

    def end(self, error: Exception) -> None:
        """Close the connection at once: what is in flight fails with `error`."""
        if self.is_open:
            self._error = error
            self._over(error)
            self._transport.abort()

    def _over(self, error: Exception) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.writable.set()  # who waits finds it closed
        self.room.set()
        self._budget.left_bytes += _charged(len(self._buffer))
        self._buffer, self._spare, self._end = bytearray(_SMALL_BYTES), None, 0
        self._on_lost(self, error)
        if self._set_up_frame is not None and not self._set_up_frame.done():
            self._set_up_frame.set_exception(copy_of(error))
        while self.pending:
            pending = self.pending.popleft()
            if pending.timer is not None:
                pending.timer.cancel()
            if not pending.answer.done():
                pending.answer.set_exception(copy_of(error))


def _charged(size: int) -> int:
    """Bytes of the budget that a buffer of `size` bytes takes."""
    return max(0, size - _KEPT_BYTES)


def copy_of(error: Exception) -> Exception:
    """Return an equal error, so that each of several callers raises and marks its own."""
    with suppress(TypeError):
        return type(error)(*error.args)
    return OSError(str(error))
