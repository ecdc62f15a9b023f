"""The asyncio shell: listens, feeds `Connection` machines, calls the handler, sends its answers.

A handler is called with the connection's `RequestContext` and the whole request (without its size). It
returns a `Response`, None when the request has no answer (acks=0), or an awaitable of either. A plain result
is written at once and no task is made. A request's memory may be kept as long as needed; keeping it costs
what it says.

- One request at a time per connection, answers in order (as Kafka, which mutes the channel meanwhile). Where
  a `Promise` says that only its answer has to wait, those of the same API behind it are handled meanwhile.
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
import sys
from collections.abc import Iterator

from service.base.disk import os_error_text
from service.base.errors import ConfigError
from service.base.threads import Threads
from service.base.turns import TurnTimes
from service.network.admission import Admission
from service.network.ahead import ReadAhead
from service.network.buffers import BufferPool
from service.network.exchange import Answer, Describe, Gone, Handler, Limits
from service.network.metrics import NetworkMetrics
from service.network.peer import Peer
from service.network.shared import Shared

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 8
"""asyncio accepts in one go as many as it was told that the kernel may keep."""
"""Connections that the kernel keeps for us, and those that are accepted in one go."""


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
        turns: TurnTimes | None = None,
        describe: Describe | None = None,
        on_gone: Gone | None = None,
        threads: Threads | None = None,
    ) -> None:
        """`threads` read what is not in the page cache; without them the loop does."""
        self.host = host
        self.port = port
        self._handler = handler
        self._limits = limits or Limits()
        self.listener = listener
        self._admission = admission or Admission(sys.maxsize)
        self.counters = metrics or NetworkMetrics()
        self._turns = turns or TurnTimes()
        self._describe = describe or (lambda context, request: str(context))
        self._on_gone = on_gone
        self._threads = threads
        self._shared: Shared | None = None
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
        """Memory that requests hold which arrive or wait to be answered."""
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
            ReadAhead(loop, self._threads, self.counters) if self._threads is not None else None,
        )
        try:
            server = await loop.create_server(
                self._peer, self.host, self.port, backlog=_ACCEPTED_AT_ONCE, start_serving=False
            )
        except OSError as e:
            host = f"[{self.host}]" if ":" in self.host else self.host
            raise ConfigError(f"listeners: {self.listener}://{host}:{self.port}: {os_error_text(e)}") from e
        self.port = server.sockets[0].getsockname()[1]
        self._listening.append(server)

    def _peer(self) -> Peer:
        assert self._shared is not None
        return Peer(self._shared)

    def answer_by(self, handler: Handler, describe: Describe) -> None:
        """Who answers, from the `start` on that follows."""
        assert self._shared is not None
        self._shared.handler, self._shared.describe = handler, describe

    async def start(self) -> None:
        """Serve; binds first if that is not done."""
        if not self._listening:
            await self.bind()
        self._admission.watch(self)
        for server in self._listening:
            await server.start_serving()
            _keep_more(server)
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
            self._reopening = self._shared.loop.create_task(self._resume(), name="listener")

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
                server = await shared.loop.create_server(self._peer, sock=sock, backlog=_ACCEPTED_AT_ONCE)
                _keep_more(server)
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
        shared.watch.close()
        for peer in list(shared.peers):
            peer.finish()
        deadline = loop.time() + grace_s
        while shared.peers and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for peer in list(shared.peers):
            peer.abort()
        while shared.peers:
            await asyncio.sleep(0)
        if shared.ahead is not None:
            shared.ahead.close()

    def _sweep(self) -> None:
        """Close what has been idle too long: a connection with nothing to do, or a reader that does not
        read.
        """
        shared = self._shared
        assert shared is not None
        idle_s = self._limits.idle_ms / 1000
        horizon = shared.loop.time() - idle_s
        for peer in shared.peers:
            if peer.last_move < horizon and not peer.waiting:
                shared.calls.add(peer.end_if_idle, horizon)
        self._sweeper = shared.loop.call_later(min(max(idle_s / 8, 0.05), 30.0), self._sweep)


def _keep_more(server: asyncio.Server) -> None:
    """Let the kernel keep more connections than are accepted at once."""
    for one in server.sockets:
        with one.dup() as listening:
            listening.listen(_BACKLOG)
