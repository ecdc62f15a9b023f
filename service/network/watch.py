"""Looks four times a second at who sends a request or takes a response, and ends those that do not get on.

A request has ``firn.request.read.timeout.ms``, a response ``firn.send.timeout.ms``, each and more for the
bytes that did move (`pace`). When memory for requests is needed and there is none, who has stalled goes at
once. Nothing is looked at, and no timer set, while nobody is in the middle of anything. There is no deadline
for each of them to be put into a wheel: it moves with every byte, and a look at all is cheaper than that. A
turn looks at `LOOKED_AT` of them, and more in later turns.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from service.base.turn_queues import CallQueue
from service.network.buffers import BufferPool, Owner
from service.network.metrics import NetworkMetrics
from service.network.pace import Pace

LOOK_S: Final = 0.25
LOOKED_AT: Final = 250
"""0.5 ms."""


class Peer(Owner, Protocol):
    """A connection, as the watch sees it."""

    @property
    def moved_bytes(self) -> int | None:
        """Bytes of the response that it has taken; None where it was not waited for yet."""

    def cut(self, reason: str) -> None:
        """End it now."""


class Watch:
    """Over all connections of a server. Owned by the loop."""

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
        self._sending: dict[Peer, Pace] = {}
        self._holders: list[Owner] = []
        """who is still to be looked at"""
        self._senders: list[Peer] = []
        self._now_s = 0.0
        """when the present look began"""
        self._timer: asyncio.TimerHandle | None = None
        self._cut: dict[Owner, None] = {}
        self._makes_room = False
        self._metrics = metrics

    def begin(self) -> None:
        """Somebody is in the middle of something."""
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def sends(self, peer: Peer) -> None:
        """A response to `peer` has begun, and it did not take all of it at once."""
        self._sending[peer] = Pace(self._loop.time())
        self.begin()

    def sent(self, peer: Peer) -> None:
        """The response is out, or the peer is gone."""
        self._sending.pop(peer, None)

    def gone(self, peer: Peer) -> None:
        self._sending.pop(peer, None)
        self._cut.pop(peer, None)

    def make_room(self) -> None:
        """Memory is needed: end those who hold some and have not gone on for longest, if any have stalled."""
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

    def _end(self, owner: Owner, reason: str) -> None:
        """In the row of what many want at once: the time of thousands may be up in the same look."""
        peer: Peer = owner  # type: ignore[assignment]
        self._cut[peer] = None
        self._calls.add(peer.cut, reason)

    def _look(self) -> None:
        self._now_s = self._loop.time()
        self._holders, self._senders = list(self._pool.holders), list(self._sending)
        self._look_on()

    def _look_on(self) -> None:
        if self._timer is None:
            return  # the server has closed
        for _ in range(LOOKED_AT):
            if self._holders:
                self._look_at_holder(self._holders.pop())
            elif self._senders:
                self._look_at_sender(self._senders.pop())
            else:
                break
        if self._holders or self._senders:
            self._calls.add(self._look_on)
            return
        self._timer = None
        self._pool.look_at_line()
        self._make_room()
        if self._pool.holders or self._sending:
            self.begin()

    def _look_at_holder(self, owner: Owner) -> None:
        if owner not in self._pool.holders or not self._pool.is_late(
            owner, self._now_s, self._read_timeout_s
        ):
            return
        if owner not in self._cut:
            self._metrics.late_requests += 1
            self._end(owner, f"{owner.arrived_bytes} bytes of a request have come, too slowly")

    def _look_at_sender(self, peer: Peer) -> None:
        pace = self._sending.get(peer)
        if pace is None or peer in self._cut:
            return
        if (moved := peer.moved_bytes) is None:
            self._sending[peer] = Pace(self._now_s)
            return
        pace.look(self._now_s, moved)
        if pace.is_late(self._send_timeout_s):
            self._metrics.late_responses += 1
            self._end(peer, f"{moved} bytes of a response were taken, too slowly")
