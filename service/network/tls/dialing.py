"""Client's side of TLS for a node's own connections: TCP, handshake, and the name of the host checked."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from weakref import WeakKeyDictionary

from service.base.client_tls import ClientTls, TlsFailed
from service.base.turn_queues import turn_queues
from service.network.tls.engine import OpenSslSeal, Seal
from service.network.tls.handshakes import Handshakes
from service.network.tls.identity import NOBODY, TlsIdentity
from service.network.tls.shell import SCRATCH_BYTES, ClearProtocol, TlsTransport

_MOST_HANDSHAKES: Final = 16


async def connect_tls(tls: ClientTls, connection: ClearProtocol, host: str, port: int) -> None:
    """Connect `connection`, and return when the handshake is done.

    Raises `OSError`: `TlsFailed` if one side refuses the other.
    """
    loop = asyncio.get_running_loop()
    shared = _LOOPS.get(loop)
    if shared is None:
        shared = _LOOPS[loop] = _OfLoop(loop)
    side = _Dialing(shared, loop, tls.context, host)
    transport = TlsTransport(loop, side, connection)
    await loop.create_connection(lambda: transport, host, port)
    try:
        await side.done
    except BaseException:
        transport.abort()
        raise


class _OfLoop:
    """State that the connections of one loop share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.handshakes = Handshakes(None, _MOST_HANDSHAKES)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.calls = turn_queues(loop).calls


_LOOPS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop]] = WeakKeyDictionary()


class _Dialing:
    """Side of one connection."""

    is_server = False
    timeout_s: float | None = None
    """the caller's"""

    def __init__(
        self, shared: _OfLoop, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, host: str
    ) -> None:
        self.handshakes, self.scratch, self.calls = shared.handshakes, shared.scratch, shared.calls
        self.done: asyncio.Future[None] = loop.create_future()
        self._context = context
        self._host = host

    def new_seal(self) -> Seal:
        return OpenSslSeal(self._context, server_side=False, server_hostname=self._host)

    def identify(self, seal: Seal) -> TlsIdentity:
        """Return nobody: OpenSSL has checked the name."""
        return NOBODY

    def secured(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def refused(self, transport: TlsTransport, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(TlsFailed(reason))
            self.done.exception()  # the caller may have given up
