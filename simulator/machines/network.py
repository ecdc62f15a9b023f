"""The model's network: messages late, lost, doubled and overtaken, and links that are cut one way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from service.metadata.raft.events import InboundRequest, InboundResponse, Peer
from service.metadata.raft.requests import CallFailed, ConnectionRefused, NoResponse, RaftResponse

if TYPE_CHECKING:
    from simulator.machines.replica import Replica
    from simulator.machines.world import MachinesWorld

TIMEOUT_MS = 2000.0


class Network:
    """`cut`: (from, to) over which nothing comes. Rates are of one message."""

    def __init__(self, world: MachinesWorld) -> None:
        self._world = world
        self.cut: set[tuple[int, int]] = set()
        self.loss = self.doubling = self.delay = 0.0
        self._last = 0
        self._waiting: dict[int, tuple[int, int, Peer, int]] = {}

    def heal(self) -> None:
        self.cut.clear()
        self.loss = self.doubling = self.delay = 0.0

    def _latency_ms(self) -> float:
        random = self._world.random
        base = 0.1 + random.random()
        if self.delay and random.random() < self.delay:
            base += random.random() * (self._world.late_ms if random.random() < 0.2 else 400)
        return base

    def _is_lost(self, source: int, target: int) -> bool:
        if self.cut and (source, target) in self.cut:
            return True
        return bool(self.loss) and self._world.random.random() < self.loss

    def ask(self, source: Replica, peer: Peer, call: int, asked: Any) -> None:
        world, random = self._world, self._world.random
        target = world.by_host(peer.endpoint.host)
        if self._is_lost(source.node_id, target.node_id):
            # A connection breaks soon, or nobody ever says that it did.
            wait = TIMEOUT_MS if random.random() < 0.3 else 200 * random.random()
            self._deliver(source.node_id, source.life, wait, peer, call, CallFailed())
            return
        copies = 1 + (bool(self.doubling) and random.random() < self.doubling)
        for _ in range(copies):
            self._last += 1
            self._waiting[self._last] = (source.node_id, source.life, peer, call)
            arrive = partial(self._arrive, target, peer.endpoint.host, self._last, asked)
            world.at(world.now + self._latency_ms(), arrive)

    def _arrive(self, target: Replica, host: str, number: int, asked: Any) -> None:
        if not target.is_alive or target.endpoint.host != host:
            source, life, peer, call = self._waiting.pop(number)
            reply: NoResponse = ConnectionRefused() if not target.is_slow else CallFailed()
            self._deliver(source, life, self._latency_ms(), peer, call, reply)
            return
        target.asked(number, asked)
        target.tell(InboundRequest(number, asked))

    def answer(self, source: Replica, number: int, answer: RaftResponse) -> None:
        found = self._waiting.pop(number, None)
        if found is None:
            self._world.answered(number, answer)
            return
        target, life, peer, call = found
        reply: RaftResponse | NoResponse = answer
        wait = self._latency_ms()
        if self._is_lost(source.node_id, target):
            reply, wait = CallFailed(), 300 * self._world.random.random()
        self._deliver(target, life, wait, peer, call, reply)

    def _deliver(
        self, target: int, life: int, wait: float, peer: Peer, call: int, reply: RaftResponse | NoResponse
    ) -> None:
        world = self._world

        def arrive() -> None:
            replica = world.replicas[target]
            if replica.life == life:
                replica.tell(InboundResponse(peer, call, reply))

        world.at(world.now + wait, arrive)

    def request(self, target: Replica, asked: Any) -> int:
        """Send an admin's request; the world gets the response."""
        self._last += 1
        target.asked(self._last, asked)
        number = self._last
        target.tell(InboundRequest(number, asked))
        return number
