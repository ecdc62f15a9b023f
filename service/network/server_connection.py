"""One connection of a server: its requests in order, the handler's responses, its share of the loop."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from service.base.errors import StorageError
from service.base.metrics import SECONDS
from service.base.printable import printable
from service.base.turns import NOTICED_S
from service.network.connection import ANSWERING, CLOSED, READING, RequestFramer
from service.network.metrics import QUICK_S, ApiMetrics
from service.network.request import (
    Answer,
    Later,
    PendingResponse,
    RequestContext,
    Response,
    Throttled,
)
from service.network.sender import Part, PeerLost, ResponseSender
from service.network.shared import FULL_S, Shared
from service.wire.errors import WireError
from service.wire.frames import SIZE_BYTES

_LOG = logging.getLogger("service.network.peer")
_MOST_IN_A_TURN = 256
"""Most requests that one peer has pipelined that are handled before other peers' requests."""
_LENT_BYTES = 64 << 10
"""Least size of a request whose memory is counted until it is answered."""
_READ_BYTES = 256 << 10
"""Most bytes of a large request in one read."""
_SHORT_BYTES = 4 << 10
"""The same while memory for requests is short, and in a turn that is full."""
_MOST_DEFERRED = 64
"""Weight of pending responses to one peer at which its next request waits."""
_NO_API = ApiMetrics()
_FRAME_SIZE = struct.Struct(">i").unpack_from


class _Deferred(NamedTuple):
    """Pending response to a request that others of the same API have followed."""

    promise: PendingResponse
    api: ApiMetrics
    asked_s: float


class ServerConnection(asyncio.BufferedProtocol):
    """One connection: its state machine, its output and its share of the loop."""

    __slots__ = (
        "_api", "_asked_s", "_behind", "_connection", "_context", "_deferred", "_deferred_key",
        "_deferred_weight", "_held", "_is_due", "_is_full", "_mute", "_on_done", "_on_failed", "_pausing",
        "_pending", "_sender", "_shared", "_transport", "_turn", "_view", "last_move",
    )  # fmt: skip

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._connection = RequestFramer(shared.pool, shared.limits.max_request_bytes, self)
        self._api = _NO_API
        self._asked_s = 0.0
        self._view: memoryview | None = None
        self._pending: asyncio.Future[Answer] | PendingResponse | None = None
        self._mute: asyncio.TimerHandle | None = None
        self._deferred: deque[_Deferred] | None = None
        """pending responses before that of the current request, which is of the same API or waits"""
        self._deferred_key, self._deferred_weight = b"", 0
        self._is_due = self._is_full = False
        self._held: memoryview | None = None
        """request of another API, to be handled when no response is pending"""
        self._behind: tuple[Answer, ApiMetrics] | WireError | None = None
        """response to the current request, or its error, to be sent when no response is pending"""
        self._pausing = False
        self._turn = True
        self._on_done: Callable[[], None] | None = None
        self._on_failed: Callable[[], None] | None = None
        self.last_move = shared.now()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        shared = self._shared
        self._transport = transport
        self._sender = ResponseSender(shared.loop, transport, self._sent, self._moved, shared.outlet)
        if (own := transport.get_extra_info("socket")) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = transport.get_extra_info("peername") or ("?", 0)
        shared.counters.accepted += 1
        self._context = RequestContext(shared.counters.accepted, str(peer[0]), int(peer[1]), shared.listener)
        shared.peers[self] = None
        if not shared.admission.enter(self._admitted):
            self._turn = False
            transport.pause_reading()
            shared.counters.waited += 1
            shared.warnings.warning("%s waits: %d connections are open", peer[0], shared.admission.count)
        if shared.stopping:
            transport.abort()

    def _admitted(self) -> None:
        """Start reading: another connection has ended, and this one is next."""
        self._turn = True
        self._moved()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        shared = self._shared
        # Many peers may be readable in the same turn, and each byte is copied, often to a new page.
        is_full = shared.is_turn_full
        space = self._connection.free_space()
        if space is not None:
            self._view = space[: _SHORT_BYTES if is_full else _READ_BYTES]
            return self._view
        return shared.scratch[:_SHORT_BYTES] if is_full or shared.pool.is_short else shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._moved()
        self._shared.counters.received_bytes += nbytes
        if self._view is None:
            self._connection.receive(self._shared.scratch[:nbytes])
        else:
            self._view.release()
            self._view = None
            self._connection.filled(nbytes)
        self._serve(0)

    def eof_received(self) -> bool:
        """Note the end of the input. Requests already received are answered, except long polls."""
        self._context.has_left = True
        if self._mute is not None and not self._connection.arrived_bytes and not self._sender.busy:
            return False  # nothing is left to answer
        return bool(self._deferred) or (self._connection.state is not READING and not self._ends_with_peer)

    def pause_writing(self) -> None:
        self._sender.paused()

    def resume_writing(self) -> None:
        self._sender.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.has_left = True
        self._shared.peers.pop(self, None)
        if self._turn:
            self._shared.admission.leave()
        else:
            self._shared.admission.give_up(self._admitted)
        self._shared.monitor.gone(self)
        self._sender.close()
        self._connection.close()
        self._connection = self._shared.closed  # its own machine refers to this object
        self._done()
        if self._mute is not None:
            self._mute.cancel()
        if self._pending is not None and self._ends_with_peer:
            self._pending.cancel()
        self._drop_deferred()
        if hasattr(self._transport, "_read_ready_cb"):
            # asyncio's transport has a reference cycle through its read method: garbage collection of
            # thousands that end at the same moment would take 20 ms.
            self._transport._read_ready_cb = None
        if self._shared.on_gone is not None:
            self._shared.on_gone(self._context)

    # -- one request after the other

    def _serve(self, answered: int) -> None:
        """Handle the received whole requests, as many as a turn may take; keep the rest. `answered`: number
        of this peer's requests that this turn has handled."""
        connection, shared = self._connection, self._shared
        start = began = self.last_move
        share_s = 0.0
        try:
            while connection.state is READING and not self._transport.is_closing():
                request = connection.next_request()
                if request is None:
                    break
                if answered:
                    if answered == 1:
                        share_s = shared.share_s(began)
                    if answered >= _MOST_IN_A_TURN or began - start > share_s:
                        shared.more.add(self._answer_next, request)
                        break
                elif began - shared.turns.began > FULL_S:
                    shared.calls.add(self._answer_next, request)
                    break
                answered += 1
                began = self._answer(request, began)
                del request
            self._settle()
            if connection.arrived_bytes and self._pending is not None and self._context.hurry is not None:
                self._context.hurry()
        except Exception as e:
            self._failed(e)

    def _answer(self, request: memoryview, began: float) -> float:
        """Call the handler and count its time since `began`; return the time of its end."""
        shared, context = self._shared, self._context
        if self._deferred and request[:2] != self._deferred_key:
            self._held = request
            return began
        context.cancel_on_disconnect = context.ends_with_peer = False
        context.hurry = None
        answer = shared.handler(context, request)
        # The dispatcher has accepted the API, so it is one of few.
        api = shared.counters.apis.get(context.api_key) or shared.counters.of(context.api_key)
        self._handle_answer(answer, api)
        del answer
        ended = shared.now()
        size = len(request)
        api.received_bytes += size
        if size >= _LENT_BYTES and isinstance(self._pending, asyncio.Future):
            # Its memory is held until it is answered, even if the peer leaves before.
            shared.pool.lend(size)
            self._pending.add_done_callback(lambda _: shared.pool.returned(size))
        # `Histogram.observe`, inlined: most requests cost less than twenty of its calls.
        queued_s, handling_s = began - shared.turns.began, ended - began
        api.queued.counts[bisect_left(SECONDS, queued_s)] += 1
        if queued_s > 0:  # negative if turns are not measured
            api.queued.total += queued_s
        if handling_s <= QUICK_S:
            api.quick += 1
            api.quick_s += handling_s
        else:
            api.slow.observe(handling_s)
            if handling_s > NOTICED_S:
                shared.turns.note_holder(handling_s, shared.describe(context, request))
        return ended

    def _answer_next(self, request: memoryview) -> None:
        """Handle `request` in a later turn, unless the connection has ended."""
        if self._transport.is_closing():
            return
        self._moved()
        try:
            self.last_move = self._answer(request, self.last_move)
        except Exception as e:
            self._failed(e)
        else:
            self._next()

    def _handle_answer(self, answer: Answer | Later, api: ApiMetrics) -> None:
        if answer is None:
            self._connection.answered()
        elif self._deferred and isinstance(answer, Response):
            self._behind = answer, api
        elif type(answer) is Response:
            parts = answer.parts
            # The first part begins with the frame's size.
            api.sent_bytes += _FRAME_SIZE(parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            self._on_done, self._on_failed = answer.on_done, answer.on_failed
            if self._sender.send(parts):
                self._done()
                self._connection.answered()
            else:
                self._connection.answering()
                self._shared.monitor.sends(self)
        elif isinstance(answer, Throttled):
            self._throttle(answer, api)
        elif isinstance(answer, PendingResponse):
            if answer.done():
                self._handle_answer(answer.result(), api)
            elif answer.weight:
                self._defer(answer, api)
            else:
                self._api, self._asked_s = api, self.last_move
                self._pending = answer
                answer.when_done(self._completed)
        else:
            assert not isinstance(answer, Response)
            self._api, self._asked_s = api, self.last_move
            self._pending = asyncio.ensure_future(answer, loop=self._shared.loop)
            self._pending.add_done_callback(self._resolve)

    # -- several requests under way, answered in order

    def _defer(self, promise: PendingResponse, api: ApiMetrics) -> None:
        """Let the next request be handled before the response to this one."""
        if self._deferred is None:
            self._deferred = deque()
        self._deferred.append(_Deferred(promise, api, self.last_move))
        self._deferred_key = self._context.api_key.to_bytes(2)
        self._deferred_weight += promise.weight
        promise.when_done(self._deferred_is_done)
        if self._deferred_weight < _MOST_DEFERRED:
            self._connection.answered()
        else:
            self._is_full = True

    def _deferred_is_done(self, promise: PendingResponse) -> None:
        """Schedule the sending of responses: the caller may complete more of them, to be sent together."""
        if not self._is_due and self._deferred and self._deferred[0].promise is promise:
            self._is_due = True
            self._shared.calls.add(self._send_deferred)

    def _send_deferred(self) -> None:
        self._is_due = False
        if self._transport.is_closing() or not self._deferred:
            return
        self._moved()
        try:
            if not self._sender.busy:
                self._send_those_done(self._deferred)
            if self._is_full and self._deferred_weight < _MOST_DEFERRED:
                self._is_full = False
                self._connection.answered()
                self._next()
            elif not self._deferred and not self._sender.busy:
                self._none_deferred()
        except Exception as e:
            self._failed(e)

    def _send_those_done(self, deferred: deque[_Deferred]) -> None:
        parts: list[Part] = []
        while deferred and deferred[0].promise.done():
            promise, api, asked_s = deferred.popleft()
            self._deferred_weight -= promise.weight
            answer = promise.result()
            assert answer is not None, "a request without a response is never pending"
            api.later.observe(self.last_move - asked_s)
            api.sent_bytes += _FRAME_SIZE(answer.parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            parts += answer.parts
        if parts and not self._sender.send(parts):
            self._shared.monitor.sends(self)

    def _none_deferred(self) -> None:
        """Continue with the request behind the pending responses."""
        behind, self._behind = self._behind, None
        held, self._held = self._held, None
        if isinstance(behind, WireError):
            self._failed(behind)
        elif behind is not None:
            self._handle_answer(*behind)
            if self._connection.state is READING:
                self._next()
        elif held is not None:
            self._answer_next(held)
        elif self._connection.state is READING:
            self._close_if_done()

    def _drop_deferred(self) -> None:
        for one in self._deferred or ():
            one.promise.cancel()
        self._deferred = self._held = self._behind = None

    def _throttle(self, answer: Throttled, api: ApiMetrics) -> None:
        """Send `answer` now and handle the next request later; until then read no more than can be kept."""
        self._connection.answering()
        self._mute = self._shared.loop.call_later(answer.mute_s, self._unmute)
        if answer.parts:
            api.sent_bytes += _FRAME_SIZE(answer.parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            if not self._sender.send(answer.parts):
                self._shared.monitor.sends(self)

    def _unmute(self) -> None:
        self._mute = None
        if self._connection.state is ANSWERING and not self._sender.busy:
            self._moved()
            self._connection.answered()
            self._next()

    def _resolve(self, future: asyncio.Future[Answer]) -> None:
        """Send the response, in a later turn if this one is full: one event may complete many."""
        if self._shared.is_turn_full:
            self._shared.calls.add(self._resolved, future)
        else:
            self._resolved(future)

    def _resolved(self, future: asyncio.Future[Answer]) -> None:
        self._pending = None
        if future.cancelled():
            self._transport.abort()
            return
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        if self._answered(future) and self._connection.state is READING:
            self._next()

    def _answered(self, later: asyncio.Future[Answer] | PendingResponse) -> bool:
        """Send the response of `later`; return False if the connection has ended."""
        try:
            if self._connection.state is CLOSED or self._transport.is_closing():
                if (answer := later.result()) is not None and answer.on_done is not None:
                    answer.on_done()
                return False
            self._moved()
            answer = later.result()
            self._api.later.observe(self.last_move - self._asked_s)
            self._handle_answer(answer, self._api)
        except Exception as e:
            self._failed(e)
            return False
        return True

    def _completed(self, promise: PendingResponse) -> None:
        """Send the response, in a later call if a request or the end of the connection follows."""
        shared = self._shared
        has_more = (
            self._connection.arrived_bytes or self._context.has_left or shared.stopping or self._pausing
        )
        if has_more or shared.is_turn_full:
            shared.calls.add(self._completed_later, promise)
        else:
            self._pending = None
            self._answered(promise)

    def _completed_later(self, promise: PendingResponse) -> None:
        self._pending = None
        if self._answered(promise) and self._connection.state is READING:
            self._next()

    def _sent(self, error: Exception | None) -> None:
        """Continue after the sender has sent a backlog, or failed."""
        if error is not None:
            self._failed(error)
        elif self._connection.state is ANSWERING:
            self._shared.monitor.sent(self)
            self._done()
            if self._mute is None:
                self._connection.answered()
                self._next()
        elif self._deferred is not None:
            self._shared.monitor.sent(self)
            if self._deferred:
                self._send_deferred()
            else:
                self._none_deferred()

    def _done(self) -> None:
        """Release the parts of the last response."""
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done()

    def _next(self) -> None:
        self._serve(1)
        if self._connection.state is READING:
            self._close_if_done()

    def _close_if_done(self) -> None:
        """Close the connection if no more requests come, or the server stops, and all are answered."""
        if (self._context.has_left or self._shared.stopping) and not self._deferred and not self._sender.busy:
            self._transport.close()

    def _settle(self, has_waited: bool = False) -> None:
        """Keep the rest of the input, and resume or pause reading."""
        if self._transport.is_closing() or isinstance(self._behind, WireError):
            return
        shared = self._shared
        if not has_waited and self._connection.is_full and shared.is_turn_full:
            # A larger buffer costs a copy, and many peers may need one in the same turn.
            if not self._pausing:
                self._pausing = True
                self._transport.pause_reading()
            shared.calls.add(self._settle, True)
            return
        settled = self._connection.settle(has_waited=has_waited)
        if shared.pool.holders:
            shared.monitor.begin()
        if settled:
            if self._pausing:
                self._pausing = False
                self._transport.resume_reading()
            return
        if not self._pausing:
            self._pausing = True
            self._transport.pause_reading()
        if self._connection.state is READING:
            shared.pool.wait(self, self._connection.needed_bytes, self._retry_settle)
            shared.monitor.make_room()

    def _retry_settle(self) -> None:
        self._shared.calls.add(self._settle, True)

    def _moved(self) -> None:
        self.last_move = self._shared.now()

    # -- ends

    def _failed(self, error: Exception) -> None:
        """Close this connection for `error`, and log it."""
        shared = self._shared
        if isinstance(error, WireError) and self._deferred and not self._transport.is_closing():
            self._behind = error  # earlier requests are answered first
            self._transport.pause_reading()
            return
        if isinstance(error, WireError):
            shared.counters.wire_errors += 1
            shared.warnings.warning("closed %s: %s", self._context, printable(error))
        elif isinstance(error, PeerLost):
            _LOG.debug("lost %s: %s", self._context, error)
        else:
            if isinstance(error, StorageError) and self._on_failed is not None:
                self._on_failed()
            shared.counters.handler_errors += 1
            shared.errors.log(logging.ERROR, "request of %s failed", self._context, error=error)
        if self._sender.busy:
            self._transport.abort()  # half a response is out: the peer could not parse what follows
        else:
            self._transport.close()

    def cut(self, reason: str) -> None:
        """Close the connection for being too slow, unless it has ended."""
        if self._transport.is_closing():
            return
        self._shared.warnings.warning("closed %s: %s", self._context, reason)
        self.abort()

    @property
    def arrived_bytes(self) -> int:
        return self._connection.arrived_bytes

    @property
    def moved_bytes(self) -> int | None:
        return self._sender.moved_bytes

    @property
    def is_waiting_on_us(self) -> bool:
        """True while its next request has to wait for the current one."""
        return self._connection.is_waiting_on_us

    @property
    def has_more(self) -> bool:
        own = self._transport.get_extra_info("socket")
        if own is None:
            return True
        try:
            return any(fcntl.ioctl(own.fileno(), termios.FIONREAD, bytes(4)))
        except OSError:
            return True  # a read will report the error

    @property
    def is_stalled(self) -> bool:
        """True if the peer has sent more requests behind a long poll."""
        return self._pending is not None and self._context.cancel_on_disconnect

    @property
    def _ends_with_peer(self) -> bool:
        """True if the current request is cancelled when its peer leaves: a long poll, or a long request that
        has changed nothing."""
        context = self._context
        return self._pending is not None and (context.cancel_on_disconnect or context.ends_with_peer)

    @property
    def waiting(self) -> bool:
        """True if a handler has a request without a response, or the next one is throttled."""
        return self._pending is not None or self._mute is not None or bool(self._deferred)

    def is_answered_by(self, task: asyncio.Future[Answer]) -> bool:
        return self._pending is task

    @property
    def is_at_work(self) -> bool:
        return bool(self._deferred) or (self._pending is not None and not self._context.cancel_on_disconnect)

    def described(self) -> str:
        return self._shared.describe(self._context, None)

    def finish(self) -> None:
        """Close, because the server stops, as soon as no request is under way. Long polls end at once."""
        long_poll = self._pending is not None and self._context.cancel_on_disconnect
        if self._mute is not None:
            self._mute.cancel()
            self._unmute()
        elif long_poll:
            self._transport.close()
        elif self._connection.state is READING:
            self._close_if_done()

    def end_if_idle(self, horizon: float) -> None:
        """Close the connection if nothing moved since `horizon` and no request is under way."""
        if self.last_move < horizon and not self.waiting:
            self._shared.counters.idle_closed += 1
            self.abort()

    def abort(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._transport.abort()
