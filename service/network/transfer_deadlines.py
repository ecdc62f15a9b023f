"""Deadlines of transfers: whoever sends a request, or receives a response, too slowly is closed.

Four times a second the transfers under way are checked (`server_connection` pauses reading itself).

A request has ``firn.request.read.timeout.ms``, a response ``firn.send.timeout.ms``, each plus time for its
bytes (`transfer_timeout`); peers whose time is up are closed. When memory for requests is short, stalled
peers are closed at once. Without transfers under way there are no checks and no timer. Deadlines in a timing
wheel would move with every byte; checking all transfers is cheaper. A turn of the loop checks
`CHECKED_PER_TURN` of them, and later turns the rest.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from service.base.turn_queues import CallQueue
from service.network.buffers import BufferPool, MemoryOwner
from service.network.metrics import NetworkMetrics
from service.network.transfer_timeout import TransferTimeout

CHECK_S: Final = 0.25
CHECKED_PER_TURN: Final = 250
"""Checks per turn of the loop; these take 0.5 ms."""


class MonitoredConnection(MemoryOwner, Protocol):
    """A connection, as the monitor uses it."""

    @property
    def moved_bytes(self) -> int | None:
        """Bytes of the response that the peer has received; None while the node did not wait for it."""

    def cut(self, reason: str) -> None:
        """Close the connection at once."""


class TransferDeadlines:
    """Deadlines of all transfers of a server. Owned by the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: CallQueue,
        pool: BufferPool,
        read_timeout_s: float,
        send_timeout_s: float,
        metrics: NetworkMetrics,
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._pool = pool
        self._read_timeout_s = read_timeout_s
        self._send_timeout_s = send_timeout_s
        self._sending: dict[MonitoredConnection, TransferTimeout] = {}
        self._holders: list[MemoryOwner] = []
        """holders of memory that this check has still to visit"""
        self._senders: list[MonitoredConnection] = []
        self._now_s = 0.0
        """start of the current check"""
        self._timer: asyncio.TimerHandle | None = None
        self._cut: dict[MemoryOwner, None] = {}
        self._makes_room = False
        self._metrics = metrics

    def begin(self) -> None:
        """Start the timer: a transfer is under way."""
        if self._timer is None:
            self._timer = self._loop.call_later(CHECK_S, self._check)

    def sends(self, peer: MonitoredConnection) -> None:
        """Watch a response to `peer` that was not sent completely at once."""
        self._sending[peer] = TransferTimeout(self._loop.time())
        self.begin()

    def sent(self, peer: MonitoredConnection) -> None:
        """Stop watching the response: it is out, or the peer is gone."""
        self._sending.pop(peer, None)

    def gone(self, peer: MonitoredConnection) -> None:
        self._sending.pop(peer, None)
        self._cut.pop(peer, None)

    def make_room(self) -> None:
        """Close the peers that have stalled longest, if any, because memory is needed."""
        if not self._makes_room:
            self._makes_room = True
            self._calls.add(self._make_room)

    def _make_room(self) -> None:
        self._makes_room = False
        for victim in self._pool.stalled(self._loop.time()):
            if victim not in self._cut:
                self._metrics.ended_for_memory += 1
                self._end(victim, "its request has stalled, and its memory is needed")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, owner: MemoryOwner, reason: str) -> None:
        """Queue the close: thousands may be late in the same check."""
        peer: MonitoredConnection = owner  # type: ignore[assignment]
        self._cut[peer] = None
        self._calls.add(peer.cut, reason)

    def _check(self) -> None:
        self._now_s = self._loop.time()
        self._holders, self._senders = list(self._pool.holders), list(self._sending)
        self._continue_check()

    def _continue_check(self) -> None:
        if self._timer is None:
            return  # the server is closed
        for _ in range(CHECKED_PER_TURN):
            if self._holders:
                self._check_holder(self._holders.pop())
            elif self._senders:
                self._check_sender(self._senders.pop())
            else:
                break
        if self._holders or self._senders:
            self._calls.add(self._continue_check)
            return
        self._timer = None
        self._pool.retry_waiting()
        self._make_room()
        if self._pool.holders or self._sending:
            self.begin()

    def _check_holder(self, owner: MemoryOwner) -> None:
        if owner not in self._pool.holders or not self._pool.is_late(
            owner, self._now_s, self._read_timeout_s
        ):
            return
        if owner not in self._cut:
            self._metrics.late_requests += 1
            self._end(owner, f"only {owner.arrived_bytes} bytes of a request arrived in time")

    def _check_sender(self, peer: MonitoredConnection) -> None:
        pace = self._sending.get(peer)
        if pace is None or peer in self._cut:
            return
        if (moved := peer.moved_bytes) is None:
            self._sending[peer] = TransferTimeout(self._now_s)
            return
        pace.update(self._now_s, moved)
        if pace.is_late(self._send_timeout_s):
            self._metrics.late_responses += 1
            self._end(peer, f"only {moved} bytes of a response were received in time")
