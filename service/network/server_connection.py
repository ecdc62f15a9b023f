"""One connection of a server: the transport's end of it, its input, and its life.

The input goes to `RequestFramer`, whole requests from there to `request_pipeline`. Reading pauses
while the rest of a request has no memory, or too much has arrived behind a request that is not answered.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from service.network.raw_socket import socket_of
from service.network.request import Answer, Closing, Gate, Later, PeerContext, RequestContext
from service.network.request_framer import READING, RequestFramer
from service.network.request_pipeline import RequestPipeline
from service.network.response_order import FAILED
from service.network.shared import Shared
from service.security.session import Session, anonymous

if TYPE_CHECKING:
    from service.network.tls.identity import TlsIdentity

_READ_BYTES = 256 << 10
"""Most bytes of a large request in one read."""
_SHORT_BYTES = 4 << 10
"""The same while memory for requests is short, and in a turn that is full."""


class ServerConnection(asyncio.BufferedProtocol):
    """One connection. Owned by the event loop."""

    __slots__ = (
        "_connections", "_framer", "_has_place", "_held", "_is_counted", "_plain", "_sender", "_shared",
        "_transport", "_view", "is_paused", "requests",
    )  # fmt: skip

    def __init__(self, shared: Shared, connections: dict[ServerConnection, None]) -> None:
        """`connections`: those of the server, in order of arrival; this one is there from its start to its
        end."""
        self._shared = shared
        self._connections = connections
        logins = shared.logins
        most = shared.limits.max_request_bytes if logins is None else logins.settings.max_receive_bytes
        self._framer = RequestFramer(shared.pool, most, self)
        self._view: memoryview | None = None
        """space in the framer's memory that the transport reads into; None: into `Shared.scratch`"""
        self._has_place = True
        """whether it counts among the admitted connections"""
        self._is_counted = False
        """whether it counts among those of its address"""
        self._held: asyncio.TimerHandle | None = None
        """until when it is not read, as too many came"""
        self._plain: socket.socket | None = None
        """the transport's own socket; None where that opens what is sealed"""
        self.is_paused = False

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        shared = self._shared
        self._transport = transport
        if (own := socket_of(transport)) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = transport.get_extra_info("peername") or ("?", 0)
        shared.counters.accepted += 1
        client_host = str(peer[0])
        client = self._client(client_host, int(peer[1]))
        self.requests = RequestPipeline(shared, transport, self._framer, client, self)
        self._sender = self.requests.sender
        # asyncio gives a socket without reads; it does the same with this one.
        self._plain = getattr(transport, "_sock", None)
        self._connections[self] = None
        arrivals, wait_s = shared.arrivals, 0.0
        if arrivals is not None:
            is_refused, wait_s = arrivals.arrives(shared.listener, client_host)
            if is_refused:
                self._refuse(wait_s)
                return
            self._is_counted = True
        if wait_s:
            transport.pause_reading()
            self._held = shared.loop.call_later(wait_s, self._let_in)
            if shared.rest is not None:
                shared.rest(wait_s)
        if not shared.admission.enter(shared.listener, self._admitted):
            self._has_place = False
            transport.pause_reading()
            shared.counters.waited += 1
            shared.warnings.warning("%s waits: %d connections are open", peer[0], shared.admission.count)
        elif shared.deadlines is not None and self._held is None:
            shared.deadlines.begin(self)
        if shared.stopping:
            transport.abort()

    def secured(self, identity: TlsIdentity) -> None:
        """Give the client its session, unless it has to log in: the TLS handshake is done."""
        context = self.requests.context
        if not isinstance(context, RequestContext):
            return
        context.session = Session(
            identity.principal, context.client_host, context.listener, "SSL", identity.expires_s
        )
        if identity.expires_s is not None:
            self.requests.handler = _until(identity.expires_s, self.requests.handler, self._shared.now)

    def _refuse(self, wait_s: float) -> None:
        """Close without reading, at once or after a throttle: too many connections of its address came."""
        shared, arrivals = self._shared, self._shared.arrivals
        assert arrivals is not None
        self._has_place = False
        shared.warnings.warning(
            "refused %s: too many connections of its address", self.requests.context.client_host
        )
        if not wait_s or shared.stopping:
            self._transport.abort()
            return
        self._transport.pause_reading()
        arrivals.held += 1
        self._held = shared.loop.call_later(wait_s, self._transport.abort)

    def _let_in(self) -> None:
        """Start reading: the time that it waited for has passed."""
        self._held = None
        if self._has_place:
            self._admitted()

    def _client(self, host: str, port: int) -> RequestContext | Gate:
        """Return the client's context, or the gate that leads to one."""
        shared = self._shared
        number, listener = shared.counters.accepted, shared.listener
        if shared.logins is None:
            return RequestContext(number, host, port, listener, anonymous(host, listener))
        return shared.logins.gate(PeerContext(number, host, port, listener))

    def _admitted(self) -> None:
        """Start reading: another connection has ended, and this one is next."""
        self._has_place = True
        self.requests.moved()
        if self._held is not None:
            return  # not yet
        if self._shared.deadlines is not None:
            self._shared.deadlines.begin(self)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        shared, framer = self._shared, self._framer
        # Many peers may be readable in the same turn, and each byte is copied, often to a new page.
        is_full = shared.is_turn_full
        if framer.expected_bytes and not is_full:
            framer.expect()
        space = framer.free_space()
        if space is not None:
            self._view = space[: _SHORT_BYTES if is_full else _READ_BYTES]
            return self._view
        return shared.scratch[:_SHORT_BYTES] if is_full or shared.pool.is_short else shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        is_filled = self._view is not None and nbytes == len(self._view)
        self._arrived(nbytes)
        if is_filled and self._plain is not None and self._shared.turns.ready == 1:
            self._read_on(self._plain)

    def _read_on(self, plain: socket.socket) -> None:
        """Read the next large requests too, if they are there already, as no other peer has sent something: a
        turn of the loop costs as much as a third of what is done for one."""
        shared, began = self._shared, self.requests.last_read
        share_s, is_filled = shared.share_s(began), True
        while is_filled and not (self.is_paused or self._transport.is_closing()):
            if shared.now() - began > share_s:
                return
            space = self.get_buffer(-1)
            if self._view is None:
                return
            try:
                count = plain.recv_into(space)
            except OSError:  # nothing is there; of an error the transport hears next
                count = 0
            is_filled = count == len(space)
            del space
            self._arrived(count)  # of 0 bytes, too: it takes its space back

    def _arrived(self, nbytes: int) -> None:
        shared, requests = self._shared, self.requests
        requests.last_move = requests.last_read = shared.now()
        shared.counters.received_bytes += nbytes
        if self._view is None:
            self._framer.receive(shared.scratch[:nbytes])
        else:
            self._view.release()
            self._view = None
            self._framer.filled(nbytes)
        requests.serve(0)

    def eof_received(self) -> bool:
        """Note the end of the input. Requests already received are answered, except long polls."""
        self.requests.context.has_left = True
        return self.requests.has_unanswered

    def pause_writing(self) -> None:
        self._sender.paused()

    def resume_writing(self) -> None:
        self._sender.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        shared, context = self._shared, self.requests.context
        context.has_left = True
        self._connections.pop(self, None)
        if shared.deadlines is not None:
            shared.deadlines.end(self)
        if self._has_place:
            shared.admission.leave(shared.listener)
        else:
            shared.admission.give_up(self._admitted)
        if shared.arrivals is not None:
            if self._is_counted:
                shared.arrivals.leaves(context.client_host)
            elif self._held is not None:
                shared.arrivals.held -= 1
        if self._held is not None:
            self._held.cancel()
        shared.monitor.gone(self)
        self._framer.close()
        self._framer = shared.closed  # its own machine refers to this object
        self.requests.close()
        if hasattr(self._transport, "_read_ready_cb"):
            # asyncio's transport has a reference cycle through its read method: garbage collection of
            # thousands that end at the same moment would take 20 ms.
            self._transport._read_ready_cb = None
        if shared.on_gone is not None and isinstance(context, RequestContext):
            shared.on_gone(context)

    # -- input

    def settle(self, has_waited: bool = False) -> None:
        """Keep the rest of the input, and resume or pause reading."""
        if self._transport.is_closing() or self.requests.queue.state is FAILED:
            return
        shared, framer = self._shared, self._framer
        if not has_waited and framer.is_full and shared.is_turn_full:
            # A larger buffer costs a copy, and many peers may need one in the same turn.
            self._pause()
            shared.calls.add(self.settle, True)
            return
        settled = framer.settle(has_waited=has_waited)
        if shared.pool.holders:
            shared.monitor.begin()
        if settled:
            if self.is_paused:
                self.is_paused = False
                self._transport.resume_reading()
            return
        self._pause()
        if framer.state is READING:
            shared.pool.wait(self, framer.needed_bytes, self._retry_settle)
            shared.monitor.make_room()

    def _pause(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def _retry_settle(self) -> None:
        self._shared.calls.add(self.settle, True)

    # -- the monitor of slow peers, and the owner of memory

    @property
    def arrived_bytes(self) -> int:
        return self._framer.arrived_bytes

    @property
    def moved_bytes(self) -> int | None:
        return self._sender.moved_bytes

    @property
    def is_waiting_on_us(self) -> bool:
        """True while its next request has to wait for the current one."""
        return self._framer.is_waiting_on_us

    @property
    def has_more(self) -> bool:
        transport = self._transport
        own = socket_of(transport)
        if own is None or transport.get_extra_info("is_held"):
            return True
        try:
            return any(fcntl.ioctl(own.fileno(), termios.FIONREAD, bytes(4)))
        except OSError:
            return True  # a read will report the error

    @property
    def is_stalled(self) -> bool:
        """True if the peer has sent more requests behind a long poll."""
        return self.requests.is_long_poll

    # -- sessions

    @property
    def number(self) -> int:
        """Number of the connection among all of this process, in the order in which they came."""
        return self.requests.context.connection_id

    @property
    def session_context(self) -> RequestContext | None:
        """Context of a client that has a session; None before, and once the connection is closing."""
        context = self.requests.context
        if not isinstance(context, RequestContext) or self._transport.is_closing():
            return None
        if context.session.protocol == "PLAINTEXT" and self._transport.get_extra_info("raw_socket"):
            return None  # the handshake of TLS is under way
        return context

    @property
    def is_logging_in(self) -> bool:
        """True before the end of a client's login."""
        return not isinstance(self.requests.context, RequestContext)

    def logged_in(self) -> None:
        """Note that there is a session."""
        if self._shared.deadlines is not None:
            self._shared.deadlines.end(self)

    def login_is_late(self) -> None:
        """Close the connection: it took too long to log in."""
        shared = self._shared
        if self._transport.is_closing():
            self._transport.abort()  # what it was told last does not get out
        else:
            shared.counters.logins_of(shared.listener).late += 1
            shared.warnings.warning("closed %s: it did not log in in time", self.requests.context)
            self.abort()

    # -- ends

    def cut(self, reason: str) -> None:
        """Close the connection for being too slow, also if it is closing already."""
        if not self._transport.is_closing():  # else what it was told last does not get out
            self._shared.warnings.warning("closed %s: %s", self.requests.context, reason)
        self.abort()

    def end_if_idle(self, horizon: float) -> None:
        """Close the connection if nothing moved since `horizon` and no request is under way."""
        if self.requests.last_move < horizon and not self.requests.is_waiting:
            self._shared.counters.idle_closed += 1
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; the current request is cancelled."""
        self.requests.cancel()
        self._transport.abort()


def _until(
    expires_s: float, handler: Callable[[Any, memoryview], Answer | Later], now: Callable[[], float]
) -> Callable[[Any, memoryview], Answer | Later]:
    """Return a handler that closes the connection at its first request after `expires_s`."""
    return lambda context, frame: handler(context, frame) if now() <= expires_s else Closing(())
