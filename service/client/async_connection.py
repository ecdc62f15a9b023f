"""One connection to a peer that we ask: frames cut out of its bytes, and matched with what was asked.

The buffer of a connection grows with the bytes that arrive, not with the size that is claimed. It is used
again for the next answer, unless somebody holds a view of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from service.network.buffers import is_unseen
from service.network.metrics import ChannelMetrics
from service.wire.api import APIS, ApiKey, decode_response, encode_request, refused_api_versions
from service.wire.errors import WireError
from service.wire.frames import SIZE_BYTES, read_frame_size
from service.wire.primitives import ManyElements

_SMALL_BYTES: Final = 16 << 10
_KEPT_BYTES: Final = 1 << 20
"""A buffer of so many bytes is kept; what is beyond that counts against the budget of all channels."""
_AT_ONCE_ELEMENTS: Final = 256
_CORRELATION_BYTES: Final = 4


class PeerFailed(ConnectionError):
    """The peer's bytes make no sense, or are more than are taken."""


class Bounds(NamedTuple):
    """What one connection may cost."""

    most_in_flight: int
    max_response_bytes: int


class Memory:
    """What the answers that are arriving may cost together."""

    def __init__(self, budget_bytes: int) -> None:
        self.left_bytes = budget_bytes


class Sent:
    """A request that is in flight."""

    __slots__ = ("answer", "api_key", "correlation_id", "timer", "version")

    def __init__(self, api_key: int, version: int, correlation_id: int, answer: asyncio.Future[Any]) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.answer = answer
        self.timer: asyncio.TimerHandle | None = None


class Many(NamedTuple):
    """A whole answer with many elements, which is read in slices."""

    frame: memoryview


class Link(asyncio.BufferedProtocol):
    """One connection: frames cut out of its bytes and matched with what was asked."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        bounds: Bounds,
        memory: Memory,
        metrics: ChannelMetrics,
        on_lost: Callable[[Link, Exception], None],
    ) -> None:
        self._name = name
        self._loop = loop
        self._most = bounds.most_in_flight
        self._max_bytes = bounds.max_response_bytes
        self._memory = memory
        self._metrics = metrics
        self._on_lost = on_lost
        self._buffer = bytearray(_SMALL_BYTES)
        self._spare: bytearray | None = None
        """of the last answer, if somebody had a view of it when it was whole; hardly any more at the next"""
        self._view: memoryview | None = None
        self._end = 0
        self._error: Exception | None = None
        self._correlation_id = 0
        self._transport: asyncio.Transport
        self.sent: deque[Sent] = deque()
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
        if (own := transport.get_extra_info("socket")) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        # Never beyond the answer that is arriving: so nothing is ever moved.
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
            self.end(PeerFailed(f"{self._name} answers with garbage: {e}"))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over(self._error or exc or ConnectionResetError(f"{self._name} closed the connection"))

    # -- answers

    def _size(self) -> int:
        return read_frame_size(self._buffer, 0, self._max_bytes)

    def _arrived(self) -> None:
        if self._end < SIZE_BYTES:
            return
        whole = SIZE_BYTES + self._size()
        if not self.sent:
            raise PeerBabbles(f"{whole - SIZE_BYTES} bytes that nobody asked for")
        if self._end == whole:
            with memoryview(self._buffer) as view:
                self._answered(view[SIZE_BYTES:whole])
            self._begin_anew()
        elif self._end == len(self._buffer):
            self._grow(min(whole, 2 * len(self._buffer)))

    def _grow(self, size: int) -> None:
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) >= size and is_unseen(spare) and self._take(len(spare)):
            spare[: self._end] = self._buffer[: self._end]
            self._buffer = spare
        elif self._take(size):
            self._buffer.extend(bytes(size - len(self._buffer)))
        else:
            raise PeerBabbles(f"an answer of {self._size()} bytes, for which there is no memory")

    def _take(self, size: int) -> bool:
        """Charge for a buffer that is larger than this one."""
        more = _charge(size) - _charge(len(self._buffer))
        if more > self._memory.left_bytes:
            return False
        self._memory.left_bytes -= more
        return True

    def _begin_anew(self) -> None:
        """The next answer goes into the same buffer. One that somebody holds a view of is the spare: to begin
        small for each of a follower's answers would cost as much as writing them (pages to be had anew)."""
        self._end, self._spare = 0, None
        self._memory.left_bytes += _charge(len(self._buffer))
        if is_unseen(self._buffer):
            del self._buffer[_KEPT_BYTES:]
        else:
            self._spare, self._buffer = self._buffer, bytearray(_SMALL_BYTES)

    def _answered(self, frame: memoryview) -> None:
        sent = self.sent[0]
        if len(frame) < _CORRELATION_BYTES:
            raise PeerBabbles(f"an answer of {len(frame)} bytes")
        correlation_id = int.from_bytes(frame[:_CORRELATION_BYTES], "big", signed=True)
        if correlation_id != sent.correlation_id:
            raise PeerBabbles(f"answer to request {correlation_id}, {sent.correlation_id} was sent")
        message: Any = None
        if not sent.answer.done():  # else nobody waits for it any more
            if sent.api_key == ApiKey.API_VERSIONS and refused_api_versions(frame) is not None:
                message = OlderVersions(refused_api_versions(frame) or 0)
            else:
                try:
                    _, message = decode_response(sent.api_key, sent.version, frame, _AT_ONCE_ELEMENTS)
                except ManyElements:
                    message = Many(frame)
        self.sent.popleft()
        self.room.set()
        if sent.timer is not None:
            sent.timer.cancel()
        if not sent.answer.done():
            sent.answer.set_result(message)

    # -- requests

    def send(self, api_key: int, version: int, client_id: str, message: Any, deadline: float) -> Sent:
        """Write the request; its `answer` comes, or the link's end. Raises `ValueError` for a message that
        `version` cannot carry."""
        if not self.is_open:
            raise ConnectionResetError(f"{self._name} closed the connection")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = encode_request(api_key, version, self._correlation_id, client_id, message)
        sent = Sent(api_key, version, self._correlation_id, self._loop.create_future())
        sent.answer.add_done_callback(seen)
        sent.timer = self._loop.call_at(deadline, self._late, sent)
        self.sent.append(sent)
        if len(self.sent) >= self._most:
            self.room.clear()
        self._metrics.sent_bytes += len(frame)
        self._metrics.calls += 1
        self._transport.write(frame)
        return sent

    def _late(self, sent: Sent) -> None:
        self._metrics.timed_out += 1
        if not sent.answer.done():
            sent.answer.set_exception(TimeoutError(f"no answer to {APIS[sent.api_key].name} in time"))
        self.end(ConnectionResetError(f"{self._name} did not answer {APIS[sent.api_key].name} in time"))

    def end(self, error: Exception) -> None:
        """Give the connection up: what is in flight fails with `error`."""
        if self.is_open:
            self._error = error
            self._over(error)
            self._transport.abort()

    def _over(self, error: Exception) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.writable.set()  # whoever waits looks again, and finds it closed
        self.room.set()
        self._memory.left_bytes += _charge(len(self._buffer))
        self._buffer, self._spare, self._end = bytearray(_SMALL_BYTES), None, 0
        self._on_lost(self, error)
        while self.sent:
            sent = self.sent.popleft()
            if sent.timer is not None:
                sent.timer.cancel()
            if not sent.answer.done():
                sent.answer.set_exception(again(error))


def _charge(size: int) -> int:
    """What a buffer of `size` bytes takes of the budget."""
    return max(0, size - _KEPT_BYTES)


class PeerBabbles(WireError):
    """Bytes that are no answer to what was asked."""


class OlderVersions(NamedTuple):
    """KIP-511: the peer knows ApiVersions up to this version."""

    newest: int


def seen(answer: asyncio.Future[Any]) -> None:
    """For whoever asked may have gone when it fails: that is nobody's error."""
    if not answer.cancelled():
        answer.exception()


def again(error: Exception) -> Exception:
    """The same error for one more of those that it concerns: each raises, and marks, its own."""
    with suppress(TypeError):
        return type(error)(*error.args)
    return OSError(str(error))
