"""Connections of SASL_SSL over the fake seal: for nodes, in OpenSSL's place, and for the world's clients.

`use_fake_seals` patches the history's own process: what loads certificates, and what makes a seal. All above
it, transport, handshakes on threads, gate and logins, is the nodes' own.
"""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import Any, Final, NamedTuple

from service.base.client_tls import ClientTls
from service.base.errors import ConfigError
from service.client.security import Credentials
from service.client.session import ClientSession
from service.network.tls import dialing, node_tls
from service.network.tls.contexts import TlsContext
from service.network.tls.identity import TlsIdentity
from service.network.tls.listener import TlsListener
from service.network.tls.stores import StoreFiles, Stores
from service.security.scram import base36
from simulator.client import NoAnswer
from simulator.loop import Loop
from simulator.network import Transport
from simulator.process import CURRENT, Process
from simulator.seal import FakeSeal
from simulator.threads import SimThreads

_SIZE_BYTES: Final = 4
_BUFFER_BYTES: Final = 16 << 10
_NONCE_BITS: Final = 130


class LoginRefused(NoAnswer):
    """The node has refused the login."""


def use_fake_seals(loop: Loop, random: Random) -> None:
    """Have every TLS connection of this process sealed by `FakeSeal`; give its handshakes threads."""
    tls: Any = node_tls
    tls.read_store_files = lambda settings, disk: StoreFiles(None, None)
    tls.open_stores = lambda settings, files: Stores(None, None)
    tls.server_context = tls.client_context = _no_context
    tls.check_handshakes = lambda server, client: None
    listener: Any = TlsListener
    listener.new_seal = lambda self: FakeSeal(server_side=True)
    dials: Any = dialing
    dials._Dialing.new_seal = lambda self: FakeSeal(server_side=False)
    dials._LOOPS = _OfProcesses()
    threads: dict[Process, SimThreads] = {}

    def pool(process: Process) -> Any:
        if process not in threads:
            threads[process] = SimThreads(loop, process, Random(random.getrandbits(64)))
        return threads[process].default_pool()

    loop.default_pool = pool


def _no_context(settings: Any, stores: Any) -> TlsContext:
    nothing: Any = None
    return TlsContext(nothing, settings, None, None)


class _OfProcesses:
    """State of outgoing connections, which a loop has once and a world once for each of its processes."""

    def __init__(self) -> None:
        self._states: dict[Process, Any] = {}

    def get(self, loop: asyncio.AbstractEventLoop) -> Any:
        return self._states.get(CURRENT.get())

    def __setitem__(self, loop: asyncio.AbstractEventLoop, state: Any) -> None:
        self._states[CURRENT.get()] = state


class Sealed(asyncio.BufferedProtocol):
    """Clear side of a client's connection: `reader` has what came, `write` sends."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.run = ""
        """the process at the other end"""
        self.until_s = math.inf
        """when the session is about to end"""
        self._transport: Any = None
        self._buffer = bytearray(_BUFFER_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        raw = transport._raw  # type: ignore[attr-defined]
        assert isinstance(raw, Transport)
        self.run = raw.peer.process.name

    def secured(self, identity: TlsIdentity) -> None:
        """Do nothing: whoever connects waits for it."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.reader.feed_data(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        self.reader.feed_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reader.feed_eof()

    def pause_writing(self) -> None:
        """Do nothing: one request at a time is written."""

    def resume_writing(self) -> None:
        """Do nothing: no request waits."""

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def frame(self) -> bytes:
        """Return the next response. Raises `EOFError`."""
        size = int.from_bytes(await self.reader.readexactly(_SIZE_BYTES), "big")
        return await self.reader.readexactly(size)


class LoggedIn(NamedTuple):
    """A connection after its login."""

    stream: Sealed
    session: ClientSession


async def log_in(address: tuple[str, int], credentials: Credentials) -> LoggedIn:
    """Connect and log in. Raises `LoginRefused`, `OSError`, `EOFError`."""
    stream = Sealed()
    nothing: Any = None
    await dialing.connect_tls(ClientTls(nothing), stream, *address)
    session = ClientSession(f"{address[0]}:{address[1]}", "sim", credentials.login())
    try:
        await _exchange(stream, session, session.start())
    except BaseException:
        stream.close()
        raise
    return LoggedIn(stream, session)


async def log_in_again(made: LoggedIn, credentials: Credentials) -> None:
    """Begin another session on the connection. Raises as `log_in`."""
    await _exchange(made.stream, made.session, made.session.log_in_again(credentials.login()))


async def _exchange(stream: Sealed, session: ClientSession, outgoing: bytes | None) -> None:
    while outgoing is not None:
        stream.write(outgoing)
        frame = await stream.frame()
        try:
            outgoing = session.set_up(frame)
        except ConfigError as e:
            raise LoginRefused(str(e)) from e


def credentials(random: Random, user: str, mechanism: str, password: str) -> Credentials:
    """Return a user's credentials, with nonces of `random`."""
    return Credentials(mechanism, user, password, lambda: base36(random.getrandbits(_NONCE_BITS)))
