"""The asyncio shell: listens, feeds `Connection` machines, calls the handler, sends its answers.

A handler is called with the connection's `RequestContext` and the whole request (without its size). It
returns a `Response`, None when the request has no answer (acks=0), or an awaitable of either. A plain result
is written at once and no task is made. A request's memory may be kept as long as needed; keeping it costs
what it says.

- One request at a time per connection, answers in order (as Kafka, which mutes the channel meanwhile).
- `WireError` from a handler: the peer's bytes make no sense; its connection is closed, one rate-limited line
  says why.
- Any other exception is our bug: logged with its traceback, counted, the connection closed.
- An awaitable goes on after its peer has left, unless the handler set `context.cancel_on_disconnect` (long
  polls).

Everything runs on the loop that called `start`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from service.base.disk import words_of
from service.base.errors import ConfigError, StorageError
from service.base.printable import printable, quoted
from service.base.turns import NOTICED_S, Turns
from service.network.admission import Admission
from service.network.buffers import BufferPool
from service.network.connection import Connection, State
from service.network.limited_log import RateLimitedLog
from service.network.metrics import QUICK_S, ApiMetrics, NetworkMetrics
from service.network.sender import Part, PeerLost, Sender
from service.wire.errors import WireError
from service.wire.frames import SIZE_BYTES

_LOG = logging.getLogger(__name__)
_SCRATCH_BYTES = 64 << 10
_NO_API = ApiMetrics()
_FRAME_SIZE = struct.Struct(">i").unpack_from
_BACKLOG = 1024
"""Connections that the kernel keeps for us, and those that are accepted in one go."""


class Response:
    """A whole response frame, its size included, as parts that follow each other on the wire.

    `on_done` is called once when nobody needs the parts any more: they are out, or the connection is gone.
    `on_failed` is called before that when the disk did not give a part, with which the connection ends.
    """

    __slots__ = ("on_done", "on_failed", "parts")

    def __init__(
        self,
        parts: Sequence[Part],
        on_done: Callable[[], None] | None = None,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        self.parts = parts
        self.on_done = on_done
        self.on_failed = on_failed


class RequestContext:
    """Who asks. One per connection; the dispatcher fills in the request's own fields, which the next request
    overwrites.
    """

    __slots__ = (
        "api_key", "api_version", "cancel_on_disconnect", "client_host", "client_id", "client_port",
        "connection_id", "correlation_id", "listener",
    )  # fmt: skip

    def __init__(self, connection_id: int, client_host: str, client_port: int, listener: str) -> None:
        self.connection_id = connection_id
        self.client_host = client_host
        self.client_port = client_port
        self.listener = listener
        self.client_id = ""
        self.api_key = -1
        self.api_version = -1
        self.correlation_id = 0
        self.cancel_on_disconnect = False

    def __str__(self) -> str:
        return (
            f"{self.client_host}:{self.client_port} on {self.listener} (client id {quoted(self.client_id)}, "
            f"API key {self.api_key} version {self.api_version}, correlation id {self.correlation_id})"
        )


Answer = Response | None
Handler = Callable[[RequestContext, memoryview], "Answer | Awaitable[Answer]"]
Describe = Callable[[RequestContext, memoryview | None], str]
"""What a request asks for and who asks, in words: for the few that held the loop. Without the request it was
answered later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what peers may cost; names in brackets are Kafka's configuration keys."""

    max_request_bytes: int = 104857600
    """Greatest request (socket.request.max.bytes)."""
    idle_ms: int = 600_000
    """A connection that moves no byte for so long is closed (connections.max.idle.ms)."""
    request_memory_bytes: int = 256 << 20
    """Memory for requests that are still arriving, over all connections (in the role of
    queued.max.request.bytes).
    """


@dataclass(slots=True)
class _Shared:
    """What all connections of a server have in common."""

    handler: Handler
    limits: Limits
    listener: str
    loop: asyncio.AbstractEventLoop
    pool: BufferPool
    admission: Admission
    counters: NetworkMetrics
    turns: Turns
    describe: Describe
    peers: dict[_Peer, None] = field(default_factory=dict)
    """in the order in which they came"""
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(_SCRATCH_BYTES)))
    warnings: RateLimitedLog = field(init=False)
    errors: RateLimitedLog = field(init=False)
    stopping: bool = False

    def __post_init__(self) -> None:
        self.warnings = RateLimitedLog(_LOG, now=self.loop.time)
        self.errors = RateLimitedLog(_LOG, now=self.loop.time)


class _Peer(asyncio.BufferedProtocol):
    """One connection: its machine, its output and its place in the loop."""

    __slots__ = (
        "_api", "_asked_s", "_connection", "_context", "_eof", "_on_done", "_on_failed", "_pausing",
        "_pending", "_sender",
        "_shared", "_transport", "_turn", "_view", "last_move",
    )  # fmt: skip

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._connection = Connection(shared.pool, shared.limits.max_request_bytes)
        self._api = _NO_API
        self._asked_s = 0.0
        self._view: memoryview | None = None
        self._pending: asyncio.Future[Answer] | None = None
        self._pausing = False
        self._eof = False
        self._turn = True
        self._on_done: Callable[[], None] | None = None
        self._on_failed: Callable[[], None] | None = None
        self.last_move = shared.loop.time()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        shared = self._shared
        self._transport = transport
        self._sender = Sender(shared.loop, transport, self._sent, self._moved)
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
        """Another connection has ended, and this one is next."""
        self._turn = True
        self._moved()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._view = self._connection.free_space()
        return self._shared.scratch if self._view is None else self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._moved()
        self._shared.counters.received_bytes += nbytes
        if self._view is None:
            self._connection.receive(self._shared.scratch[:nbytes])
        else:
            self._view.release()
            self._view = None
            self._connection.filled(nbytes)
        self._serve()

    def eof_received(self) -> bool:
        """The peer sends no more. What it asked for already is still answered, except long polls."""
        self._eof = True
        long_poll = self._pending is not None and self._context.cancel_on_disconnect
        return self._connection.state is not State.READING and not long_poll

    def pause_writing(self) -> None:
        self._sender.paused()

    def resume_writing(self) -> None:
        self._sender.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.peers.pop(self, None)
        if self._turn:
            self._shared.admission.leave()
        else:
            self._shared.admission.give_up(self._admitted)
        self._sender.close()
        self._connection.close()
        self._done()
        if self._pending is not None and self._context.cancel_on_disconnect:
            self._pending.cancel()

    # -- one request after the other

    def _serve(self) -> None:
        """Answer the whole requests that are there; keep the rest."""
        connection, shared = self._connection, self._shared
        context, apis, now = self._context, shared.counters.apis, shared.loop.time
        began = self.last_move
        try:
            while connection.state is State.READING and not self._transport.is_closing():
                request = connection.next_request()
                if request is None:
                    break
                shared.counters.requests += 1
                context.cancel_on_disconnect = False
                answer = shared.handler(context, request)
                # What the dispatcher let through is an API that is served: there are not many.
                api = apis.get(context.api_key) or shared.counters.of(context.api_key)
                self._took(answer, api)
                del answer
                ended = now()
                api.received_bytes += len(request)
                queued_s, handling_s = began - shared.turns.began, ended - began
                if 0 <= queued_s <= QUICK_S and handling_s <= QUICK_S:
                    api.quick += 1
                    api.quick_queued_s += queued_s
                    api.quick_handling_s += handling_s
                else:
                    api.slow(queued_s, handling_s)
                    if handling_s > NOTICED_S:
                        shared.turns.held(handling_s, shared.describe(context, request))
                began = ended
                del request
            self._settle()
        except Exception as e:
            self._failed(e)

    def _took(self, answer: Answer | Awaitable[Answer], api: ApiMetrics) -> None:
        if answer is None:
            self._connection.answered()
        elif type(answer) is Response:
            parts = answer.parts
            # The first part begins with the size of all that follows.
            api.sent_bytes += (
                len(parts[0]) if len(parts) == 1 else _FRAME_SIZE(parts[0])[0] + SIZE_BYTES  # type: ignore[arg-type]
            )
            self._on_done, self._on_failed = answer.on_done, answer.on_failed
            self._connection.answering()
            if self._sender.send(parts):
                self._done()
                self._connection.answered()
        else:
            assert not isinstance(answer, Response)
            self._api, self._asked_s = api, self.last_move
            self._pending = asyncio.ensure_future(answer, loop=self._shared.loop)
            self._pending.add_done_callback(self._resolved)

    def _resolved(self, future: asyncio.Future[Answer]) -> None:
        self._pending = None
        if future.cancelled():
            self._transport.abort()
            return
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        if self._connection.state is State.CLOSED or self._transport.is_closing():
            if error is not None:
                self._failed(error)
            return
        self._moved()
        try:
            if error is not None:
                raise error
            self._api.later.observe(self.last_move - self._asked_s)
            self._took(future.result(), self._api)
        except Exception as e:
            self._failed(e)
            return
        if self._connection.state is State.READING:
            self._next()

    def _sent(self, error: Exception | None) -> None:
        """The sender finished on its own time."""
        if error is not None:
            self._failed(error)
        elif self._connection.state is State.ANSWERING:
            self._done()
            self._connection.answered()
            self._next()

    def _done(self) -> None:
        """The parts of the last answer are not needed any more."""
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done()

    def _next(self) -> None:
        self._serve()
        if (self._eof or self._shared.stopping) and self._connection.state is State.READING:
            self._transport.close()

    def _settle(self) -> None:
        """Keep the rest of the input, and read on or not."""
        if self._transport.is_closing():
            return
        if self._connection.settle():
            if self._pausing:
                self._pausing = False
                self._transport.resume_reading()
            return
        if not self._pausing:
            self._pausing = True
            self._transport.pause_reading()
        if self._connection.state is State.READING:
            self._shared.pool.wait(self._retry_settle)

    def _retry_settle(self) -> None:
        self._shared.loop.call_soon(self._settle)

    def _moved(self) -> None:
        self.last_move = self._shared.loop.time()

    # -- ends

    def _failed(self, error: Exception) -> None:
        """Close this connection for `error`, and say so."""
        shared = self._shared
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
            self._transport.abort()  # half a response is out: nothing that follows could be understood
        else:
            self._transport.close()

    @property
    def waiting(self) -> bool:
        """Whether a handler has its request and has not answered."""
        return self._pending is not None

    def is_answered_by(self, task: asyncio.Future[Answer]) -> bool:
        return self._pending is task

    @property
    def is_at_work(self) -> bool:
        return self._pending is not None and not self._context.cancel_on_disconnect

    def described(self) -> str:
        return self._shared.describe(self._context, None)

    def finish(self) -> None:
        """The server stops: close as soon as nothing is under way. A long poll promised nothing."""
        long_poll = self._pending is not None and self._context.cancel_on_disconnect
        if self._connection.state is State.READING or long_poll:
            self._transport.close()

    def abort(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._transport.abort()


class Server:
    """Listens on one address. `port` is the real one once started. Is an `admission.Door`."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        *,
        limits: Limits | None = None,
        listener: str = "PLAINTEXT",
        admission: Admission | None = None,
        metrics: NetworkMetrics | None = None,
        turns: Turns | None = None,
        describe: Describe | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._handler = handler
        self._limits = limits or Limits()
        self.listener = listener
        self._admission = admission or Admission(sys.maxsize)
        self.counters = metrics or NetworkMetrics()
        self._turns = turns or Turns()
        self._describe = describe or (lambda context, request: str(context))
        self._shared: _Shared | None = None
        self._listening: list[asyncio.Server] = []
        self._kept: list[socket.socket] = []
        """listening sockets while the door is shut"""
        self._shut = False
        self._reopening: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        return len(self._shared.peers) if self._shared else 0

    @property
    def request_memory_bytes(self) -> int:
        """Memory that requests still arriving hold now."""
        return self._shared.pool.in_use_bytes if self._shared else 0

    def client_of(self, task: asyncio.Future[Answer]) -> str | None:
        """Whose request `task` answers, None where it answers none of this server's."""
        for peer in self._shared.peers if self._shared else ():
            if peer.is_answered_by(task):
                return peer.described()
        return None

    def being_answered(self) -> Iterator[str]:
        """Requests whose handlers work on them or wait for the disk or the bucket; long polls are none."""
        return (peer.described() for peer in (self._shared.peers if self._shared else ()) if peer.is_at_work)

    async def bind(self) -> None:
        """Take the address, so that `port` is known; nobody is let in before `start`.

        Raises `ConfigError` with the address and the reason when it cannot be had.
        """
        loop = asyncio.get_running_loop()
        pool = BufferPool(self._limits.request_memory_bytes)
        self._shared = _Shared(
            self._handler,
            self._limits,
            self.listener,
            loop,
            pool,
            self._admission,
            self.counters,
            self._turns,
            self._describe,
        )
        try:
            server = await loop.create_server(
                self._peer, self.host, self.port, backlog=_BACKLOG, start_serving=False
            )
        except OSError as e:
            host = f"[{self.host}]" if ":" in self.host else self.host
            raise ConfigError(f"listeners: {self.listener}://{host}:{self.port}: {words_of(e)}") from e
        self.port = server.sockets[0].getsockname()[1]
        self._listening.append(server)

    def _peer(self) -> _Peer:
        assert self._shared is not None
        return _Peer(self._shared)

    async def start(self) -> None:
        """Serve; binds first if that is not done."""
        if not self._listening:
            await self.bind()
        self._admission.watch(self)
        for server in self._listening:
            await server.start_serving()
        self._sweep()

    def shut(self) -> None:
        """Accept nobody until `open`; the kernel keeps who comes in the socket's queue."""
        self._shut = True
        if self._reopening is None:
            self._pause()

    def open(self) -> None:
        """Accept connections again."""
        self._shut = False
        if self._reopening is None and self._kept and self._shared is not None and not self._shared.stopping:
            self._reopening = self._shared.loop.create_task(self._resume())

    def _pause(self) -> None:
        # Closing a server of asyncio's closes its sockets; through duplicates they go on listening.
        for server in self._listening:
            self._kept += [one.dup() for one in server.sockets]
            server.close()
        self._listening = []

    async def _resume(self) -> None:
        shared = self._shared
        assert shared is not None
        try:
            while self._kept and not self._shut and not shared.stopping:
                sock = self._kept[-1]
                server = await shared.loop.create_server(self._peer, sock=sock, backlog=_BACKLOG)
                self._kept.pop()
                self._listening.append(server)
        except OSError as e:
            shared.errors.log(logging.ERROR, "cannot listen on %s:%d again yet: %s", self.host, self.port, e)
            shared.loop.call_later(1.0, self.open)
        finally:
            self._reopening = None
        if self._shut or shared.stopping:
            self._pause()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop listening, let requests under way finish for `grace_s` seconds, then cut what is left. Long
        polls are ended at once.
        """
        if self._shared is None:
            return
        shared, loop = self._shared, self._shared.loop
        shared.stopping = True
        if self._reopening is not None:
            await self._reopening
        for server in self._listening:
            server.close()
        for kept in self._kept:
            kept.close()
        self._listening, self._kept = [], []
        if self._sweeper is not None:
            self._sweeper.cancel()
        for peer in list(shared.peers):
            peer.finish()
        deadline = loop.time() + grace_s
        while shared.peers and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for peer in list(shared.peers):
            peer.abort()
        while shared.peers:
            await asyncio.sleep(0)

    def _sweep(self) -> None:
        """Close what has been idle too long: a connection with nothing to do, or a reader that does not
        read.
        """
        shared = self._shared
        assert shared is not None
        idle_s = self._limits.idle_ms / 1000
        horizon = shared.loop.time() - idle_s
        for peer in [peer for peer in shared.peers if peer.last_move < horizon and not peer.waiting]:
            shared.counters.idle_closed += 1
            peer.abort()
        self._sweeper = shared.loop.call_later(min(max(idle_s / 8, 0.05), 30.0), self._sweep)
