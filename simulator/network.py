"""Connections in memory: bytes arrive in order, in chunks of drawn sizes, after drawn times.

`Transport` is what asyncio's servers and clients are given; it has no socket. What belongs to a process is
called as that process, so a killed or stopped one reads and writes nothing; its peers see the connection end.

Between hosts lie `Links`, one for each direction, as TCP shows them: what is sent over a cut one waits until
it is whole again, or the connection is reset; a slow one delays, and changes no order within a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from errno import EADDRINUSE, ECONNREFUSED, ECONNRESET, ETIMEDOUT
from random import Random
from typing import Any, Final

from simulator.loop import Loop
from simulator.process import CURRENT, Life, Process
from simulator.trace import Trace

_HOP_S: Final = 0.0005
_HIGH_WATER: Final = 64 << 10

_CONNECT_S: Final = 130.0
"""for which a system tries to reach a host that does not answer"""
_RETRANSMIT_S: Final = 0.4
_LOOK_S: Final = 0.1
_LOOK_AFTER: Final = 256
"""Connections after which ended ones are forgotten."""
_RESET_ODDS: Final = 0.4
"""Share of connections with data under way that are reset when their cut link is mended."""

Address = tuple[str, int]
Link = tuple[str, str]
"""from one host to another"""


class Links:
    """Faults of the links between hosts. A link without an entry works."""

    def __init__(self) -> None:
        self.cut: set[Link] = set()
        self.slow_s: dict[Link, float] = {}
        """most seconds that a chunk is under way"""
        self.held: list[Transport] = []
        """ends of connections for which a cut link holds data, in order"""
        self.refused: set[tuple[str, Address]] = set()
        """hosts whose new connections to an address are refused although a process listens there"""
        self.stalled: set[tuple[str, Address]] = set()
        """hosts whose connections to an address carry nothing, while all others of theirs work"""
        self.flips: dict[Link, float] = {}
        """share of the chunks in which a bit is changed on their way; for connections that would notice"""
        self.flipped: list[Transport] = []
        """ends that such a chunk was sent to"""

    def is_whole(self, one: str, other: str) -> bool:
        return not self.cut or ((one, other) not in self.cut and (other, one) not in self.cut)

    def holds(self, end: Transport) -> bool:
        """Return whether nothing arrives at this end of a connection for now."""
        return end.link in self.cut or (bool(self.stalled) and end.way in self.stalled)


class Network:
    """All listeners and connections of the world."""

    def __init__(self, loop: Loop, random: Random, trace: Trace) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self._listeners: dict[Address, Listener] = {}
        self._next_port = 40_000
        self._connections = 0
        self.links = Links()
        self._ends: list[Transport] = []
        loop.network = self

    def heal(self, links: Collection[Link]) -> None:
        """Mend cut links. Connections with data under way go on or are reset, by draw."""
        self.links.cut.difference_update(links)
        if self.links.flips:
            self.links.flips.clear()
            for end in self.links.flipped:  # one whose length was changed would wait for the rest
                end.reset()
                end.peer.reset()
            self.links.flipped.clear()
        held, self.links.held = self.links.held, []
        for end in held:
            if self.links.holds(end):
                self.links.held.append(end)
            elif self.random.random() < _RESET_ODDS:
                end.reset()
                end.peer.reset()
            else:
                end.arrive_after(self.random.random() * _RETRANSMIT_S)

    def silence(self, host: str) -> None:
        """Drop the data that a host has sent and that has not arrived."""
        for end in self._ends:
            if end.link[0] == host:
                end.forget()

    def reset(self, one: str, other: str) -> int:
        """Reset every connection between two hosts; how many there were."""
        self._ends = [end for end in self._ends if not end.is_closing()]
        found = [end for end in self._ends if end.link in ((one, other), (other, one))]
        for end in found:
            end.reset()
        return len(found) // 2

    def listen(self, factory: Callable[[], Any], host: Any, port: Any, start: bool) -> Listener:
        """Listen at an address. Raises `OSError` where it is in use."""
        if not port:
            self._next_port += 1
            port = self._next_port
        address = (str(host), int(port))
        if address in self._listeners:
            raise OSError(EADDRINUSE, f"address in use: {address}")
        listener = Listener(self, factory, address, CURRENT.get(), start)
        self._listeners[address] = listener
        return listener

    def free(self, address: Address) -> None:
        self._listeners.pop(address, None)

    async def connect(self, factory: Callable[[], Any], host: Any, port: Any) -> tuple[Transport, Any]:
        """Connect to an address.

        Raises `ConnectionRefusedError` where no process listens, `TimeoutError` where the link is cut."""
        await asyncio.sleep(self.random.random() * _HOP_S)
        own, given_up = host_of(CURRENT.get()), self.loop.now_s + _CONNECT_S
        way = own, (str(host), int(port))
        while not self.links.is_whole(own, str(host)) or way in self.links.stalled:
            if self.loop.now_s > given_up:
                raise TimeoutError(ETIMEDOUT, f"{host} does not answer")
            await asyncio.sleep(_LOOK_S)
        if slow_s := self.links.slow_s.get((own, str(host)), 0.0):
            await asyncio.sleep(self.random.random() * slow_s)
        listener = self._listeners.get(way[1])
        is_there = listener is not None and listener.serving and listener.process.life is not Life.DEAD
        if listener is None or not is_there or (own, listener.address) in self.links.refused:
            raise ConnectionRefusedError(ECONNREFUSED, f"nobody listens at {host}:{port}")
        self._connections += 1
        name = f"c{self._connections}"
        client_address = ("10.0.0.1", 50_000 + self._connections)
        client = Transport(self, factory(), CURRENT.get(), f"{name}>", listener.address)
        server = Transport(self, None, listener.process, f"{name}<", client_address)
        client.peer, server.peer = server, client
        server.link, client.link = (own, str(host)), (str(host), own)
        server.way = client.way = way
        if own != str(host):
            self._ends += (client, server)
        if not self._connections % _LOOK_AFTER:
            self._ends = [end for end in self._ends if not end.is_closing()]

        def accepted() -> None:
            server.protocol = listener.factory()
            server.protocol.connection_made(server)
            server.deliver()

        server.call(accepted)
        client.protocol.connection_made(client)
        return client, client.protocol


def host_of(process: Process) -> str:
    """Return the host of a process: the first part of its name."""
    return process.name.partition(".")[0]


class Listener:
    """Server that `create_server` returns."""

    def __init__(
        self, network: Network, factory: Callable[[], Any], address: Address, process: Process, start: bool
    ) -> None:
        self._network = network
        self.factory = factory
        self.address = address
        self.process = process
        self.serving = start
        process.at_death.append(self.close)

    @property
    def sockets(self) -> tuple[_Name, ...]:
        return (_Name(self.address),)

    async def start_serving(self) -> None:
        self.serving = True

    def close(self) -> None:
        self.serving = False
        self._network.free(self.address)

    async def wait_closed(self) -> None:
        """Do nothing: connections outlive their listener."""

    def is_serving(self) -> bool:
        return self.serving


class _Name:
    def __init__(self, address: Address) -> None:
        self._address = address

    def dup(self) -> _Name:
        return self

    def listen(self, backlog: int) -> None:
        """Do nothing: the backlog is unbounded."""

    def __enter__(self) -> _Name:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resource is open."""

    def getsockname(self) -> Address:
        return self._address


class Transport(asyncio.Transport):
    """One end of a connection. What is written waits in the other end's `inbox` until it arrives."""

    def __init__(
        self, network: Network, protocol: Any, process: Process, name: str, address: Address
    ) -> None:
        super().__init__({"peername": address, "socket": None})
        self._network = network
        self._loop = network.loop
        self.protocol = protocol
        self.process = process
        self.name = name
        self.peer: Transport
        self.link: Link = ("", "")
        """over which this end is reached"""
        self.way: tuple[str, Address] = ("", ("", 0))
        """who has connected, and to which address"""
        self._inbox: deque[bytes] = deque()
        self._eof_arrives = False
        self._eof_told = False
        self._lost = False
        self._closing = False
        self._reading = True
        self._arriving = False
        self._backlog = 0
        """bytes written here that have not been taken by the other side"""
        self._high = _HIGH_WATER
        self._writing_paused = False
        process.at_death.append(self._died)

    # asyncio's interface

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._backlog

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._arrive_soon()

    def is_reading(self) -> bool:
        return self._reading

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        content = bytes(data)
        self._backlog += len(content)
        self.peer._send(content)
        # As with a socket, most writes are with the kernel at once; a drawn few leave a backlog.
        if self._backlog > self._high and not self._writing_paused and self._network.random.random() < 0.2:
            self._writing_paused = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer._end()
            self.call(self._connection_lost)

    def abort(self) -> None:
        self._inbox.clear()
        self.close()

    # Between the two ends

    def call(self, call: Callable[[], None]) -> None:
        """Schedule `call` as the process of this end."""
        self._loop.call_soon(call, context=self.process.context())

    def _send(self, content: bytes) -> None:
        links, random = self._network.links, self._network.random
        if links.flips and random.random() < links.flips.get(self.link, 0.0):
            at = random.randrange(8 * len(content))
            content = bytes((*content[: at // 8], content[at // 8] ^ 1 << at % 8, *content[at // 8 + 1 :]))
            links.flipped.append(self)
            self._network.trace.note(self.name, f"bit {at} is flipped")
        self._inbox.append(content)
        self._arrive_soon()

    def _end(self) -> None:
        self._eof_arrives = True
        self._arrive_soon()

    def _arrive_soon(self) -> None:
        if not self._arriving and not self._lost:
            self._arriving = True
            links, random = self._network.links, self._network.random
            delay = random.random() * _HOP_S
            if links.slow_s and (slow_s := links.slow_s.get(self.link)):
                delay += random.random() * slow_s
            self._loop.call_later(delay, self._arrive, context=self.process.context())

    def arrive_after(self, delay_s: float) -> None:
        """Deliver the held data after `delay_s`."""
        self._loop.call_later(delay_s, self._arrive, context=self.process.context())

    def forget(self) -> None:
        """Drop the data that has not arrived: its sender will not retransmit it."""
        self._inbox.clear()

    def reset(self) -> None:
        """Reset the connection at this end."""
        if not self._closing:
            self._closing = True
            self._inbox.clear()
            self.call(lambda: self._connection_lost(ConnectionResetError(ECONNRESET, "connection reset")))

    def _arrive(self) -> None:
        if self._network.links.holds(self):
            self._network.links.held.append(self)
            return
        self._arriving = False
        self.deliver()

    def deliver(self) -> None:
        """Give the protocol the next chunk."""
        if self._closing or not self._reading or self.protocol is None:
            return
        if self._inbox:
            content = self._inbox.popleft()
            size = len(content)
            if self._network.random.random() < 0.15:
                size = self._network.random.randint(1, size)
            chunk, rest = content[:size], content[size:]
            if rest:
                self._inbox.appendleft(rest)
            self.peer._taken(len(chunk))
            self._network.trace.note(self.name, f"{len(chunk)} bytes")
            self._give(chunk)
            if self._inbox or self._eof_arrives:
                self._arrive_soon()
        elif self._eof_arrives and not self._eof_told:
            self._eof_told = True
            if not self.protocol.eof_received():
                self.close()

    def _give(self, chunk: bytes) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(chunk)
            return
        while chunk and not self._closing:
            buffer = memoryview(self.protocol.get_buffer(-1))
            count = min(len(buffer), len(chunk))
            buffer[:count] = chunk[:count]
            del buffer
            self.protocol.buffer_updated(count)
            chunk = chunk[count:]
            if chunk and not self._reading:
                self._inbox.appendleft(chunk)
                return

    def _taken(self, size: int) -> None:
        self._backlog -= size
        if self._writing_paused and self._backlog <= 0:
            self._writing_paused = False
            self.call(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._lost:
            self.protocol.resume_writing()

    def _connection_lost(self, error: Exception | None = None) -> None:
        if not self._lost:
            self._lost = True
            self._inbox.clear()
            if self.protocol is not None:
                self.protocol.connection_lost(error)

    def _died(self) -> None:
        """Close the socket of a dead process, as the system does."""
        if not self._closing:
            self._closing = self._lost = True
            self.peer._end()
