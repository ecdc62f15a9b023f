"""Asyncio server: listens, feeds the connections' state machines, calls the handler, sends responses.

A handler is called with the connection's `RequestContext` and the whole request (without its size). It
returns a `Response`, None if the request has no response (acks=0), or an awaitable of either. A plain result
is written at once, without a task. A handler may keep the request's memory as long as needed.

- One request at a time per connection, responses in order (as Kafka, which mutes the channel meanwhile). If
  only the response of a `PendingResponse` has to wait, requests of the same API behind it are handled
  meanwhile.
- `WireError` from a handler: the peer's bytes are malformed; its connection is closed with a rate-limited
  warning.
- Any other exception is a bug: it is logged with its traceback and counted, and the connection is closed.
- An awaitable continues after its peer has left, unless the handler set `context.cancel_on_disconnect` (long
  polls).

Everything runs on the loop that called `start`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from service.base.disk import os_error_text
from service.base.errors import ConfigError
from service.base.threads import Threads
from service.base.turns import TurnTimes
from service.network.admission import Admission
from service.network.buffers import BufferPool
from service.network.connection_quotas import ConnectionQuotas
from service.network.metrics import NetworkMetrics
from service.network.request import Answer, Describe, Gone, Handler, PeerLimits, RunHandler
from service.network.sendfile_prefetch import SendfilePrefetcher
from service.network.server_connection import ServerConnection
from service.network.shared import Shared

if TYPE_CHECKING:  # a node without logins and TLS does not load them
    from service.network.authenticating import AnswerVersions, ListenerLogins
    from service.network.tls.listener import TlsListener
    from service.network.tls.shell import TlsTransport

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 8
"""`_BACKLOG`: connections that the kernel queues. `_ACCEPTED_AT_ONCE`: connections accepted in one go, which
asyncio takes from the same number as the kernel's queue."""


class Server:
    """Server of one address, an `admission.Acceptor`. `port` is the real one once bound."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        *,
        limits: PeerLimits | None = None,
        listener: str = "PLAINTEXT",
        admission: Admission | None = None,
        metrics: NetworkMetrics | None = None,
        turns: TurnTimes | None = None,
        describe: Describe | None = None,
        on_gone: Gone | None = None,
        threads: Threads | None = None,
        arrivals: ConnectionQuotas | None = None,
        logins: ListenerLogins | None = None,
        tls: TlsListener | None = None,
    ) -> None:
        """`threads` prefetch what is not in the page cache; without them the loop reads it. `arrivals` limits
        new connections. `logins`: where clients have to log in. `tls`: where connections are encrypted."""
        self.host = host
        self.port = port
        self._handler = handler
        self._limits = limits or PeerLimits()
        self.listener = listener
        self._admission = admission or Admission(lambda: sys.maxsize)
        self.counters = metrics or NetworkMetrics()
        self._turns = turns or TurnTimes()
        self._describe = describe or (lambda context, request: str(context))
        self._on_gone = on_gone
        self._threads = threads
        self.tls = tls
        self._arrivals = arrivals
        self._logins = logins
        if logins is not None:
            logins.handler = handler
        self._shared: Shared | None = None
        self._connections: dict[ServerConnection, None] = {}
        """in order of arrival"""
        self._listening: list[asyncio.Server] = []
        self._kept: list[socket.socket] = []
        """listening sockets while accepting is paused"""
        self._shut = False
        """whether all connections that may be open are"""
        self._rests: asyncio.TimerHandle | None = None
        """until when no connection is accepted, as too many came"""
        self._reopening: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections(self) -> list[ServerConnection]:
        """Return the open connections, in the order in which they came."""
        return list(self._connections)

    @property
    def request_memory_bytes(self) -> int:
        """Bytes of memory that requests hold while they arrive or wait for their response."""
        return self._shared.pool.in_use_bytes if self._shared else 0

    def client_of(self, task: asyncio.Future[Answer]) -> str | None:
        """Return the description of the request that `task` answers, or None."""
        for connection in self._connections:
            if connection.requests.is_answered_by(task):
                return connection.requests.described()
        return None

    def being_answered(self) -> Iterator[str]:
        """Yield the requests that handlers work on, or that wait for disk or bucket, without long polls."""
        return (one.requests.described() for one in self._connections if one.requests.is_at_work)

    async def bind(self) -> None:
        """Bind the address, so that `port` is known; `start` begins to accept.

        Raises `ConfigError` with the address and the reason of a failure.
        """
        loop = asyncio.get_running_loop()
        pool = BufferPool(self._limits.request_memory_bytes)
        self._shared = Shared(
            self._handler,
            self._limits,
            self.listener,
            loop,
            pool,
            self._admission,
            self.counters,
            self._turns,
            self._describe,
            self._on_gone,
            SendfilePrefetcher(loop, self._threads, self.counters) if self._threads is not None else None,
            None,
            self._arrivals,
            self._rest,
            self._logins,
        )
        if self.tls is not None:
            self.tls.start(loop)
        try:
            server = await loop.create_server(
                self._connection, self.host, self.port, backlog=_ACCEPTED_AT_ONCE, start_serving=False
            )
        except OSError as e:
            host = f"[{self.host}]" if ":" in self.host else self.host
            raise ConfigError(f"listeners: {self.listener}://{host}:{self.port}: {os_error_text(e)}") from e
        self.port = server.sockets[0].getsockname()[1]
        self._listening.append(server)

    def _connection(self) -> ServerConnection | TlsTransport:
        assert self._shared is not None
        connection = ServerConnection(self._shared, self._connections)
        if self.tls is None:
            return connection
        from service.network.tls.shell import TlsTransport

        return TlsTransport(self._shared.loop, self.tls, connection)

    def set_handler(
        self,
        handler: Handler,
        describe: Describe,
        answer_versions: AnswerVersions | None = None,
        on_gone: Gone | None = None,
        runs: RunHandler | None = None,
    ) -> None:
        """Set the handler, before `start`; where clients log in, what answers their ApiVersions before; what
        is called when a connection has ended; what answers requests from received
        bytes."""
        assert self._shared is not None
        self._shared.handler, self._shared.describe, self._shared.runs = handler, describe, runs
        if on_gone is not None:
            self._shared.on_gone = on_gone
        if self._logins is not None and answer_versions is not None:
            self._logins.handler, self._logins.answer_versions = handler, answer_versions

    async def start(self) -> None:
        """Accept connections; bind first if necessary."""
        if not self._listening:
            await self.bind()
        self._admission.watch(self)
        for server in self._listening:
            await server.start_serving()
            _extend_backlog(server)
        self._sweep()

    def shut(self) -> None:
        """Stop accepting until `open`; the kernel queues connections meanwhile."""
        self._shut = True
        if self._reopening is None:
            self._pause()

    def open(self) -> None:
        """Accept connections again."""
        self._shut = False
        self._reopen()

    def _rest(self, pause_s: float) -> None:
        """Accept nothing for so long."""
        assert self._shared is not None
        if self._rests is not None:
            self._rests.cancel()
        self._rests = self._shared.loop.call_later(pause_s, self._rested)
        if self._reopening is None:
            self._pause()

    def _rested(self) -> None:
        self._rests = None
        self._reopen()

    @property
    def _is_closed(self) -> bool:
        return self._shut or self._rests is not None

    def _reopen(self) -> None:
        if self._is_closed or self._shared is None or self._shared.stopping:
            return
        if self._reopening is None and self._kept:
            self._reopening = self._shared.loop.create_task(self._resume(), name="listener")

    def _pause(self) -> None:
        # Closing an asyncio server closes its sockets; duplicates keep them listening.
        for server in self._listening:
            self._kept += [one.dup() for one in server.sockets]
            server.close()
        self._listening = []

    async def _resume(self) -> None:
        shared = self._shared
        assert shared is not None
        try:
            while self._kept and not self._is_closed and not shared.stopping:
                sock = self._kept[-1]
                server = await shared.loop.create_server(
                    self._connection, sock=sock, backlog=_ACCEPTED_AT_ONCE
                )
                _extend_backlog(server)
                self._kept.pop()
                self._listening.append(server)
        except OSError as e:
            shared.errors.log(logging.ERROR, "cannot listen on %s:%d again yet: %s", self.host, self.port, e)
            shared.loop.call_later(1.0, self._reopen)
        finally:
            self._reopening = None
        if self._is_closed or shared.stopping:
            self._pause()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop listening, let requests under way finish for `grace_s` seconds, then abort the rest. Long
        polls end at once.
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
        for timer in (self._sweeper, self._rests):
            if timer is not None:
                timer.cancel()
        shared.monitor.close()
        if shared.deadlines is not None:
            shared.deadlines.close()
        for connection in list(self._connections):
            connection.requests.finish()
        deadline = loop.time() + grace_s
        while self._connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            await asyncio.sleep(0)
        if shared.ahead is not None:
            shared.ahead.close()

    def _sweep(self) -> None:
        """Close connections that have been idle too long, also those whose peer does not read."""
        shared = self._shared
        assert shared is not None
        self._admission.reconsider()  # its limits may have changed
        idle_s = self._limits.idle_ms / 1000
        horizon = shared.loop.time() - idle_s
        for connection in self._connections:
            requests = connection.requests
            if requests.last_move < horizon and not requests.is_waiting:
                shared.calls.add(connection.end_if_idle, horizon)
        self._sweeper = shared.loop.call_later(min(max(idle_s / 8, 0.05), 30.0), self._sweep)


def _extend_backlog(server: asyncio.Server) -> None:
    """Let the kernel queue more connections than asyncio accepts at once."""
    for one in server.sockets:
        with one.dup() as listening:
            listening.listen(_BACKLOG)
