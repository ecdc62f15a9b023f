"""Requests of one connection: each is handled in turn, and the responses are sent in order.

The framer (`request_framer`) gives whole requests, one at a time; the handler answers at once, later by a
future or a `PendingResponse`, or after a pause (`Throttled`), or for the last time (`Closing`). Where clients
log in, a `Gate` handles the messages until there is a session. `response_order` says in which order responses
go out and whether a request may be handled while others are pending; this module calls, sends and keeps the
timer.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from bisect import bisect_left
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from service.base.errors import StorageError
from service.base.metrics import SECONDS
from service.base.printable import printable
from service.base.turns import NOTICED_S
from service.network.metrics import QUICK_S, SWIFT_S, ApiMetrics
from service.network.request import (
    Answer,
    Closing,
    Gate,
    Later,
    LoggedIn,
    Owed,
    PeerContext,
    PendingResponse,
    RequestContext,
    Response,
    Throttled,
    TokensFollow,
)
from service.network.request_framer import ANSWERING, CLOSED, READING, RequestFramer
from service.network.request_runs import answer_run
from service.network.response_order import EMPTY, FULL, Queued, ResponseOrder
from service.network.sender import Part, PeerLost, ResponseSender
from service.network.shared import FULL_S, Shared
from service.network.transfer_deadlines import MonitoredConnection
from service.wire.errors import Unanswered, WireError
from service.wire.frames import SIZE_BYTES

_LOG = logging.getLogger("service.network")
_MOST_IN_A_TURN = 256
"""Most requests that one peer has pipelined that are handled before other peers' requests."""
_LENT_BYTES = 64 << 10
"""Least size of a request whose memory is counted until it is answered."""
_LEFT_S: Final = 5.0
"""Longest throttle behind which the requests of a peer that has left are handled."""
_NO_API = ApiMetrics()
_FRAME_SIZE = struct.Struct(">i").unpack_from


class PipelineOwner(MonitoredConnection, Protocol):
    """The connection, as its pipeline uses it."""

    is_paused: bool
    """reading waits for memory, for a response or for a later turn"""

    def logged_in(self) -> None:
        """Note that there is a session."""

    def settle(self) -> None:
        """Keep the rest of the input, and resume or pause reading."""


class RequestPipeline:
    """Requests and responses of one connection. Owned by the event loop."""

    __slots__ = (
        "_api", "_asked_s", "_framer", "_gate", "_is_due", "_mute", "_on_done", "_owner", "_pending",
        "_shared", "_transport", "context", "handler", "last_move", "last_read", "on_failed", "queue",
        "sender",
    )  # fmt: skip

    def __init__(
        self,
        shared: Shared,
        transport: asyncio.Transport,
        framer: RequestFramer,
        client: RequestContext | Gate,
        owner: PipelineOwner,
    ) -> None:
        """`client`: its context, or the gate that it has to pass before it has one."""
        self._shared = shared
        self._transport = transport
        self._framer = framer
        self._owner: PipelineOwner | None = owner
        """None once the connection has ended: else the two would keep each other from being freed"""
        # Each handler takes its own kind of context: here and in `_handle_answer` the two are set together.
        self.handler: Callable[[Any, memoryview], Answer | Later]
        self.context: PeerContext
        self._gate: Gate | None
        """None where sessions do not end"""
        if isinstance(client, RequestContext):
            self.context, self.handler, self._gate = client, shared.handler, None
        else:
            self.context, self.handler, self._gate = client.context, client.handle, client
        self.sender = ResponseSender(shared.loop, transport, self._sent, self.moved, shared.outlet)
        self.queue: ResponseOrder[PendingResponse, memoryview | tuple[Answer, ApiMetrics] | WireError] = (
            ResponseOrder()
        )
        """responses before that of the current request"""
        self._is_due = False
        """whether `_send_queued` is to be called"""
        self._pending: asyncio.Future[Answer] | PendingResponse | None = None
        """response to the current request"""
        self._api = _NO_API
        self._asked_s = 0.0
        self._mute: asyncio.TimerHandle | None = None
        self._on_done: Callable[[], None] | None = None
        self.on_failed: Callable[[], None] | None = None
        """called when the last response cannot be sent as a file cannot be read"""
        self.last_move = self.last_read = shared.now()
        """when bytes moved, and when some were read"""

    def moved(self) -> None:
        """Note that bytes have moved."""
        self.last_move = self._shared.now()

    # -- one request after the other

    def serve(self, answered: int) -> None:
        """Handle the received whole requests, as many as a turn may take; keep the rest. `answered`: number
        of this peer's requests that this turn has handled."""
        framer, shared = self._framer, self._shared
        start = began = self.last_move
        share_s: float | None = None
        runs = shared.runs if self.handler is shared.handler else None
        try:
            while framer.state is READING and not self._transport.is_closing():
                if not answered:
                    is_late = began - shared.turns.began > FULL_S
                elif not framer.arrived_bytes:
                    break
                else:
                    if share_s is None:
                        share_s = shared.share_s(began)
                    is_late = answered >= _MOST_IN_A_TURN or began - start > share_s
                if runs is not None and not is_late and not self.queue.pending:
                    run = answer_run(runs, shared, framer, self, began)
                    if run is not None:
                        answered += run.requests
                        began = self.last_move = run.ended_s
                        if framer.state is ANSWERING:
                            self._watch_send()
                        continue
                request = framer.next_request()
                if request is None:
                    break
                if is_late:
                    (shared.more if answered else shared.calls).add(self._answer_next, request)
                    break
                answered += 1
                began = self._answer(request, began)
                del request
            owner = self._owner
            if framer.drain() and (owner is None or not owner.is_paused):
                return
            if owner is not None:
                owner.settle()
            if framer.arrived_bytes and self._pending is not None and self.context.hurry is not None:
                self.context.hurry()
        except Exception as e:
            self.failed(e)

    def _answer(self, request: memoryview, began: float) -> float:
        """Call the handler and count its time since `began`; return the time of its end."""
        shared, context, queue = self._shared, self.context, self.queue
        if queue.pending and request[:2] != queue.api_key:
            queue.block(request)
            return began
        context.cancel_on_disconnect = context.ends_with_peer = False
        context.hurry = context.meter = None
        answer = self.handler(context, request)
        # The dispatcher has accepted the API, so it is one of few.
        api = shared.counters.apis.get(context.api_key) or shared.counters.of(context.api_key)
        is_answered = self._handle_answer(answer, api)
        del answer
        if context.meter is not None:
            context.meter.pause()  # type: ignore[unreachable]  # the handler has set it
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
        whole_s = handling_s
        if queued_s > 0:  # negative if turns are not measured
            api.queued.total += queued_s
            whole_s += queued_s
        if not is_answered:
            pass  # `later` has its whole time
        elif whole_s <= SWIFT_S:
            api.swift += 1
            api.swift_s += whole_s
        else:
            api.lengthy.observe(whole_s)
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
        self.last_move = self._shared.now()
        try:
            self.last_move = self._answer(request, self.last_move)
        except Exception as e:
            self.failed(e)
        else:
            self._next()

    def _handle_answer(self, answer: Answer | Later, api: ApiMetrics) -> bool:
        """Send `answer`, or note that it comes later; return whether it was sent."""
        if answer is None:
            self._framer.answered()
        elif self.queue.pending and isinstance(answer, Response):
            self._asked_s = self._shared.turn_began_s(self.last_move)
            self.queue.block((answer, api))
            return False
        elif type(answer) is Response:
            parts = answer.parts
            # The first part begins with the frame's size.
            api.sent_bytes += _FRAME_SIZE(parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            self._on_done, self.on_failed = answer.on_done, answer.on_failed
            if self.sender.send(parts):
                self._release()
                self._framer.answered()
            else:
                self._framer.answering()
                self._watch_send()
        elif isinstance(answer, PendingResponse):
            if answer.done():
                return self._handle_answer(answer.result(), api)
            asked_s = self._shared.turn_began_s(self.last_move)
            if answer.weight:
                self._enqueue(answer, api, asked_s)
                return False
            self._api, self._asked_s = api, asked_s
            self._pending = answer
            answer.when_done(self._completed)
            return False
        elif isinstance(answer, Throttled):
            self._throttle(answer, api)
        elif isinstance(answer, Closing):
            self._close_later(answer)
        elif isinstance(answer, LoggedIn):
            self.context, self.handler = answer.context, answer.handler
            self._framer.limit(self._shared.limits.max_request_bytes)
            if answer.handler is self._shared.handler:
                self._gate = None
            if self._owner is not None:
                self._owner.logged_in()
            return self._handle_answer(Response(answer.parts), api)
        elif isinstance(answer, TokensFollow):
            self._framer.limit(answer.most_bytes)
            return self._handle_answer(Response(answer.parts), api)
        else:
            assert not isinstance(answer, Response)
            self._api, self._asked_s = api, self._shared.turn_began_s(self.last_move)
            meter = self.context.meter
            if meter is not None and isinstance(answer, Coroutine):
                answer = meter.follow(answer)
            self._pending = asyncio.ensure_future(answer, loop=self._shared.loop)
            self._pending.add_done_callback(self._resolve)
            return False
        return True

    def _next(self) -> None:
        self.serve(1)
        if self._framer.state is READING:
            self._close_if_done()

    def _close_if_done(self) -> None:
        """Close the connection if no more requests come, or the server stops, and all are answered."""
        is_last = self.context.has_left or self._shared.stopping
        if is_last and not self.queue.pending and not self.sender.busy:
            self._transport.close()

    # -- several requests under way, answered in order

    def _enqueue(self, response: PendingResponse, api: ApiMetrics, asked_s: float) -> None:
        """Let the next request be handled before the response to this one, which came at `asked_s`."""
        queue = self.queue
        queue.add(response, api, asked_s, self.context.api_key.to_bytes(2))
        response.when_done(self._queued_is_done)
        if queue.state is not FULL:
            self._framer.answered()

    def _queued_is_done(self, response: PendingResponse) -> None:
        """Schedule the sending of responses: the caller may complete more of them, to be sent together."""
        pending = self.queue.pending
        if not self._is_due and pending and pending[0].response is response:
            self._is_due = True
            self._shared.calls.add(self._send_queued)

    def _send_queued(self) -> None:
        self._is_due = False
        queue = self.queue
        if self._transport.is_closing() or not queue.pending:
            return
        self.last_move = self._shared.now()
        was_full = queue.state is FULL
        try:
            if not self.sender.busy:
                self._send_those(queue.take_done())
            if was_full and queue.state is not FULL:
                self._framer.answered()
                self._next()
            elif not queue.pending and not self.sender.busy:
                self._go_on_behind()
        except Exception as e:
            self.failed(e)

    def _send_those(self, done: list[Queued[PendingResponse]]) -> None:
        parts: list[Part] = []
        for response, api, asked_s in done:
            answer = response.result()
            assert answer is not None, "a request without a response is never pending"
            api.later.observe(self.last_move - asked_s)
            api.sent_bytes += _FRAME_SIZE(answer.parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            parts += answer.parts
        if parts and not self.sender.send(parts):
            self._watch_send()

    def _go_on_behind(self) -> None:
        """Continue with what waits behind the queue, now that nothing is pending."""
        if self.queue.state is EMPTY:
            if self._framer.state is READING:
                self._close_if_done()
            return
        behind = self.queue.take_behind()
        if isinstance(behind, WireError):
            self.failed(behind)
        elif isinstance(behind, memoryview):
            self._answer_next(behind)
        elif behind is not None:
            self._handle_answer(*behind)
            behind[1].later.observe(self.last_move - self._asked_s)
            if self._framer.state is READING:
                self._next()

    # -- a response that comes later

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
        if self._answered(future) and self._framer.state is READING:
            self._next()

    def _completed(self, response: PendingResponse) -> None:
        """Send the response, in a later call if a request or the end of the connection follows."""
        shared, owner = self._shared, self._owner
        has_more = (
            self._framer.arrived_bytes
            or self.context.has_left
            or shared.stopping
            or (owner is not None and owner.is_paused)
        )
        if has_more or shared.is_turn_full:
            shared.calls.add(self._completed_later, response)
        else:
            self._pending = None
            self._answered(response)

    def _completed_later(self, response: PendingResponse) -> None:
        self._pending = None
        if self._answered(response) and self._framer.state is READING:
            self._next()

    def _answered(self, later: asyncio.Future[Answer] | PendingResponse) -> bool:
        """Send the response of `later`; return False if the connection has ended."""
        try:
            answer = later.result()
            if self._framer.state is CLOSED or self._transport.is_closing():
                if answer is not None and answer.on_done is not None:
                    answer.on_done()
                return False
            self.last_move = self._shared.now()
            if isinstance(answer, Owed):
                if not answer.response.done():
                    self._enqueue(answer.response, self._api, self._asked_s)
                    return True
                answer = answer.response.result()
            api, asked_s = self._api, self._asked_s
            if self._handle_answer(answer, api):
                api.later.observe(self.last_move - asked_s)
            else:
                self._asked_s = asked_s
        except Exception as e:
            self.failed(e)
            return False
        return True

    # -- sending

    def _throttle(self, answer: Throttled, api: ApiMetrics) -> None:
        """Send `answer` now and handle the next request later; until then read no more than can be kept."""
        self._framer.answering()
        self._mute = self._shared.loop.call_later(answer.mute_s, self._unmute)
        if answer.parts:
            api.sent_bytes += _FRAME_SIZE(answer.parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            if not self.sender.send(answer.parts):
                self._watch_send()

    def _unmute(self) -> None:
        self._mute = None
        if self._gate is not None:
            self._gate.unmuted(self.last_read)
        if self._framer.state is ANSWERING and not self.sender.busy:
            self.last_move = self._shared.now()
            self._framer.answered()
            self._next()

    def _close_later(self, answer: Closing) -> None:
        """Read no more and drop what came; send `answer` and close when its time has come."""
        self._transport.pause_reading()
        self._framer.close()
        if self._owner is not None:
            self._owner.is_paused = False  # nobody resumes
        if answer.delay_s > 0:
            self._mute = self._shared.loop.call_later(
                answer.delay_s, _say_last, self.sender, self._transport, answer
            )
        else:
            _say_last(self.sender, self._transport, answer)

    def _watch_send(self) -> None:
        """Let the monitor watch a response that was not sent completely at once."""
        if self._owner is not None:
            self._shared.monitor.sends(self._owner)

    def _sent(self, error: Exception | None) -> None:
        """Continue after the sender has sent a backlog, or failed."""
        if error is not None:
            self.failed(error)
            return
        if self._owner is not None:
            self._shared.monitor.sent(self._owner)
        if self._framer.state is ANSWERING:
            self._release()
            if self._mute is None:
                self._framer.answered()
                self._next()
        elif self.queue.pending:
            self._send_queued()
        else:
            self._go_on_behind()

    def _release(self) -> None:
        """Release the parts of the last response."""
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done()

    # -- ends

    def failed(self, error: Exception) -> None:
        """Close this connection for `error`, and log it."""
        shared = self._shared
        if isinstance(error, WireError) and self.queue.pending and not self._transport.is_closing():
            self.queue.fail(error)  # earlier requests are answered first
            self._transport.pause_reading()
            return
        if isinstance(error, WireError):
            shared.counters.wire_errors += 1
            # A node that stops owes no answer, and is well.
            level = logging.INFO if isinstance(error, Unanswered) else logging.WARNING
            shared.warnings.log(level, "closed %s: %s", self.context, printable(error))
        elif isinstance(error, PeerLost):
            _LOG.debug("lost %s: %s", self.context, error)
        else:
            if isinstance(error, StorageError) and self.on_failed is not None:
                self.on_failed()
            shared.counters.handler_errors += 1
            shared.errors.log(logging.ERROR, "request of %s failed", self.context, error=error)
        if self.sender.busy:
            self._transport.abort()  # half a response is out: the peer could not parse what follows
        else:
            self._transport.close()

    def finish(self) -> None:
        """Close, because the server stops, as soon as no request is under way. Long polls end at once."""
        if self._mute is not None:
            self._mute.cancel()
            self._unmute()
            if self._framer.state is CLOSED:
                self._transport.close()
        elif self.is_long_poll:
            self._transport.close()
        elif self._framer.state is READING:
            self._close_if_done()

    def cancel(self) -> None:
        """Cancel the current request, if its response is pending."""
        if self._pending is not None:
            self._pending.cancel()

    def close(self) -> None:
        """Release what requests hold, as the connection is gone. A request under way goes on, unless it ends
        with its peer."""
        self.sender.close()
        self._framer, self._owner = self._shared.closed, None
        self._release()
        if self._mute is not None:
            self._mute.cancel()
        if self._ends_with_peer:
            self.cancel()
        self.queue.close()

    @property
    def has_unanswered(self) -> bool:
        """True if requests are to be answered although the peer sends no more; long polls are not, nor those
        behind a long throttle."""
        if self._mute is not None and not self.sender.busy:
            wait_s = self._mute.when() - self._shared.now()
            if not self._framer.arrived_bytes or wait_s > _LEFT_S:
                return False
        return bool(self.queue.pending) or (self._framer.state is not READING and not self._ends_with_peer)

    @property
    def is_long_poll(self) -> bool:
        """True while the current request waits for news, and ends when another one comes."""
        return self._pending is not None and self.context.cancel_on_disconnect

    @property
    def _ends_with_peer(self) -> bool:
        """True if the current request is cancelled when its peer leaves: a long poll, or a long request that
        has changed nothing."""
        context = self.context
        return self._pending is not None and (context.cancel_on_disconnect or context.ends_with_peer)

    @property
    def is_waiting(self) -> bool:
        """True if a handler has a request without a response, or the next one is throttled."""
        return self._pending is not None or self._mute is not None or bool(self.queue.pending)

    @property
    def is_at_work(self) -> bool:
        """True if a handler works on a request, or waits for disk or bucket; not for a long poll."""
        return bool(self.queue.pending) or (
            self._pending is not None and not self.context.cancel_on_disconnect
        )

    def is_answered_by(self, task: asyncio.Future[Answer]) -> bool:
        return self._pending is task

    def described(self) -> str:
        return self._shared.describe(self.context, None)


def _say_last(sender: ResponseSender, transport: asyncio.Transport, answer: Closing) -> None:
    if answer.parts and not transport.is_closing() and not sender.send(answer.parts):
        transport.abort()
    else:
        transport.close()
