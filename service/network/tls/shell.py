"""Transport of a TLS connection: below it is asyncio's protocol of the raw socket, above it a transport.

What is above (`server_connection`, `client/async_connection`) reads and writes clear bytes. It sees no
socket, for what is written past the cipher would be clear, or broken. Raw bytes are read into a buffer that
all connections of the loop share, and decrypted straight into the memory of the protocol above.

asyncio's own TLS is not used: it hands out the raw socket, never ends a pause of a writer without a buffer
(``set_write_buffer_limits(high=0)``), and keeps 282 KiB for each idle connection.

The end: `close` sends ``close_notify`` behind what was written; a peer that ends without one has cut what it
sent, and the connection is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, Protocol

from service.base.addresses import source_of
from service.base.client_tls import TlsFailed
from service.base.errors import InvariantError
from service.base.turn_queues import CallQueue
from service.base.types import Buffer
from service.network.tls.engine import HEAD_BYTES, SEALED_AT_ONCE_BYTES, Seal, SealBroken
from service.network.tls.handshakes import Handshakes
from service.network.tls.identity import TlsIdentity
from service.wire.other_protocols import TLS_HANDSHAKE, first_bytes_of

SCRATCH_BYTES: Final = 256 << 10
READ_BYTES: Final = 64 << 10
"""Most raw bytes of one read, unless the protocol above has space for more of a request that comes: what it
has no space for is kept here."""
MOST_HANDSHAKE_BYTES: Final = 256 << 10
"""Raw bytes that a peer may send before the handshake is done."""
_MOST_UNASKED_BYTES: Final = 64 << 10
"""Raw bytes that nobody wrote (answers to key updates) and that the peer does not take."""


class TlsState(IntEnum):
    """State of the connection."""

    NEW = 0
    """nothing whole has come"""
    QUEUED = 1
    """its handshake waits for its turn"""
    STEPPING = 2
    """a step of the handshake is on a thread"""
    AWAITING = 3
    """the peer's next step is awaited"""
    OPEN = 4
    CLOSED = 5


NEW, QUEUED, STEPPING, AWAITING, OPEN, CLOSED = TlsState

TLS_MOVES: Final = {
    NEW: frozenset({QUEUED, CLOSED}),
    QUEUED: frozenset({STEPPING, CLOSED}),
    STEPPING: frozenset({AWAITING, OPEN, CLOSED}),
    AWAITING: frozenset({STEPPING, CLOSED}),
    OPEN: frozenset({CLOSED}),
    CLOSED: frozenset({CLOSED}),
}


class ClearProtocol(Protocol):
    """The protocol above: asyncio's `BufferedProtocol`, and how it hears of the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def secured(self, identity: TlsIdentity) -> None:
        """Take the peer's identity: the handshake is done, clear bytes may follow."""


class TlsSide(Protocol):
    """The listener, or the client, that the connection belongs to."""

    is_server: bool
    handshakes: Handshakes
    calls: CallQueue
    scratch: memoryview
    timeout_s: float | None
    """for the handshake, from the first byte that might have been read; None: without end"""

    def new_seal(self) -> Seal:
        """Return the cipher of a new connection. Raises `SealBroken`."""

    def identify(self, seal: Seal) -> TlsIdentity:
        """Return who the peer is. Called on a thread; raises `SealBroken`."""

    def secured(self) -> None:
        """Note that the handshake is done."""

    def refused(self, transport: TlsTransport, reason: str) -> None:
        """Note that the connection is closed for what the peer has sent, or not sent. Its state is still that
        in which it did."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """One connection, from both sides. Owned by the event loop, but for the steps of the handshake."""

    __slots__ = (
        "_early", "_early_bytes", "_error", "_inner", "_is_held", "_is_inner_paused", "_is_on_thread",
        "_is_scheduled", "_loop", "_most_raw", "_raw", "_seal", "_side", "_timer", "address",
        "silent_since_s", "state",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, side: TlsSide, inner: ClearProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._side = side
        self._inner = inner
        self._raw: asyncio.Transport
        self._seal: Seal | None = None
        self._early = bytearray()
        """raw bytes that came before the handshake could take them"""
        self._early_bytes = 0
        """number of raw bytes before the end of the handshake"""
        self._error: TlsFailed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        """whether this object itself has no use for raw bytes"""
        self._is_inner_paused = False
        self._is_on_thread = False
        """whether a step of the handshake is on a thread, or waits for one"""
        self._is_scheduled = False
        self._most_raw = READ_BYTES
        self.address = "?"
        self.silent_since_s: float | None = None
        self.state = NEW

    # -- called by the raw transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self.address = source_of(str((transport.get_extra_info("peername") or ("?",))[0]))
        self._inner.connection_made(self)
        if self.state is CLOSED:
            return
        if not self._is_inner_paused:
            self._begin_timer()
        if not self._side.is_server:
            self._enter()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._side.scratch[: self._most_raw]

    def buffer_updated(self, nbytes: int) -> None:
        raw = self._side.scratch[:nbytes]
        if self.state is OPEN:
            assert self._seal is not None
            self._seal.feed(raw)
            self._decrypt()
        elif self.state is not CLOSED:
            self._take_early(raw)

    def eof_received(self) -> bool:
        """Abort: without ``close_notify`` nobody knows what was cut off."""
        self._left()
        self.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        self._close_state()
        inner, self._inner = self._inner, _GONE
        inner.connection_lost(exc or self._error)
        self._seal = None
        if hasattr(self._raw, "_read_ready_cb"):
            self._raw._read_ready_cb = None  # as `ServerConnection.connection_lost`

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _left(self) -> None:
        """Note that the peer has ended the connection. A server's peer that has said nothing only looked."""
        if self.state < OPEN and (self._early_bytes or not self._side.is_server):
            self._side.refused(self, "it left before the end of the handshake")

    # -- the handshake

    def _take_early(self, raw: memoryview) -> None:
        """Wait for the first record as a whole: half of one takes nobody's place."""
        self._early += raw
        self._early_bytes += len(raw)
        early = self._early
        if self._early_bytes > MOST_HANDSHAKE_BYTES:
            self.refuse(f"{self._early_bytes} bytes came before the end of the handshake")
        elif self.state is AWAITING:
            self._step()
        elif self.state is not NEW:
            return
        elif early[:2] != TLS_HANDSHAKE[: len(early)]:
            if len(early) >= 8 or early[:1] != TLS_HANDSHAKE[:1]:
                self.refuse(f"TLS is expected here, and it sent {first_bytes_of(early)}")
        elif len(early) >= HEAD_BYTES and len(early) >= HEAD_BYTES + int.from_bytes(early[3:5], "big"):
            self._enter()

    def _enter(self) -> None:
        self._move(QUEUED)
        self._hold(True)
        self._side.handshakes.enter(self)

    def begin(self) -> None:
        """Start the handshake: its turn has come."""
        try:
            self._seal = self._side.new_seal()
        except SealBroken as e:
            self.refuse(str(e))
        else:
            self._step()

    def _step(self) -> None:
        """Run the next step on a thread, while nothing is read, or here if it is the last and short."""
        seal, handshakes = self._seal, self._side.handshakes
        assert seal is not None
        self._move(STEPPING)
        self.silent_since_s = None
        raw, self._early = self._early, bytearray()
        if seal.is_last_step(raw) and handshakes.may_end():
            self._stepped(_run_here(self._loop, seal, raw, self._side))
            return
        self._hold(True)
        self._is_on_thread = True
        running = handshakes.run(_handshake_step, seal, raw, self._side)
        running.add_done_callback(self._stepped)

    def _stepped(self, running: asyncio.Future[TlsIdentity | None]) -> None:
        was_on_thread, self._is_on_thread = self._is_on_thread, False
        if self.state is CLOSED:
            if was_on_thread:
                self._side.handshakes.leave(self)
            if not running.cancelled():
                running.exception()
            return
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        assert self._seal is not None
        # At the end, too: a client with Nagle's algorithm waits for it before its first request.
        if answer := self._seal.take_raw():
            self._raw.write(answer)
        if isinstance(error, SealBroken):
            self.refuse(str(error))
        elif error is not None:
            self.abort()
            if isinstance(error, Exception):
                raise error
        elif (identity := running.result()) is None:
            self._move(AWAITING)
            self.silent_since_s = self._loop.time()
            self._hold(False)
        else:
            self._opened(identity)

    def _opened(self, identity: TlsIdentity) -> None:
        self._move(OPEN)
        self._stop_timer()
        self._side.handshakes.leave(self)
        self._side.secured()
        self._inner.secured(identity)
        self._decrypt()

    def _begin_timer(self) -> None:
        timeout_s = self._side.timeout_s
        if self._timer is None and self.state < OPEN and timeout_s is not None:
            self._timer = self._loop.call_later(timeout_s, self.refuse, "the TLS handshake took too long")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self, reason: str) -> None:
        """Close the connection for what the peer has done. What it is told is on its way."""
        if self.state is CLOSED:
            return
        self._error = TlsFailed(reason)
        self._side.refused(self, reason)
        self._close_state()
        self._raw.close()

    # -- clear bytes for the protocol above

    def _decrypt(self) -> None:
        """Pass on what the fed bytes say, as far as the protocol above takes it."""
        seal, inner = self._seal, self._inner
        assert seal is not None
        try:
            while seal.is_ready and not self._is_inner_paused and self.state is OPEN:
                space = inner.get_buffer(-1)
                count = seal.read_into(space)
                self._most_raw = max(len(space) - count, READ_BYTES)
                del space
                inner.buffer_updated(count)  # of 0 bytes, too: it takes its space back
            if answer := seal.take_raw():
                self._raw.write(answer)
                if self._raw.get_write_buffer_size() > _MOST_UNASKED_BYTES:
                    raise SealBroken("it does not read the answers to its key updates")
        except SealBroken as e:
            if answer := seal.take_raw():
                self._raw.write(answer)
            self.refuse(str(e))
            return
        if self.state is not OPEN:
            return
        if seal.is_ready:
            seal.keep()
            self._hold(True)
        elif seal.is_ended:
            self._hold(True)
            if not inner.eof_received():
                self.close()
        elif self._is_held:
            self._hold(False)

    def _decrypt_more(self) -> None:
        self._is_scheduled = False
        if self.state is OPEN and not self._is_inner_paused:
            self._decrypt()

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        if is_held:
            self._raw.pause_reading()
        elif not self._is_inner_paused:
            self._raw.resume_reading()

    # -- called by the protocol above

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the raw transport has, but no `socket`: that is `raw_socket`, for questions alone."""
        if name == "socket":
            return None
        if name == "is_sealed":
            return True
        if name == "is_held":
            return self.held_raw
        return self._raw.get_extra_info("socket" if name == "raw_socket" else name, default)

    @property
    def held_raw(self) -> bool:
        """True while bytes of the peer are here that the protocol above has not got."""
        return self.state is OPEN and self._seal is not None and self._seal.is_ready

    def is_closing(self) -> bool:
        return self.state is CLOSED or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._is_inner_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_inner_paused = False
        if self.state is CLOSED:
            return
        self._begin_timer()
        if not self._is_held:
            self._raw.resume_reading()
        elif self.held_raw and not self._is_scheduled:
            # The protocol above may be in the middle of something.
            self._is_scheduled = True
            self._side.calls.add(self._decrypt_more)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def write(self, data: Buffer) -> None:
        """Seal and send. What is written before the handshake's end, or after the end, is dropped."""
        if self.state is not OPEN or len(data) > SEALED_AT_ONCE_BYTES:
            self.writelines((data,))
            return
        assert self._seal is not None
        try:
            self._raw.write(self._seal.write(data))
        except SealBroken as e:
            self._broken(e)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Seal and send each, a little at a time: so the processor's cache has what is sent."""
        if self.state is not OPEN:
            return
        seal, raw = self._seal, self._raw
        assert seal is not None
        try:
            for data in list_of_data:
                whole = memoryview(data)
                for at in range(0, len(whole), SEALED_AT_ONCE_BYTES):
                    raw.write(seal.write(whole[at : at + SEALED_AT_ONCE_BYTES]))
        except SealBroken as e:
            self._broken(e)

    def _broken(self, error: SealBroken) -> None:
        self._side.refused(self, str(error))
        self.abort()

    def close(self) -> None:
        """Close when what was written is out, with ``close_notify`` behind it."""
        if self.state is OPEN and not self._raw.is_closing():
            assert self._seal is not None
            self._raw.write(self._seal.close_notify())
        self._close_state()
        self._raw.close()

    def abort(self) -> None:
        self._close_state()
        self._raw.abort()

    # -- states

    def _close_state(self) -> None:
        self._stop_timer()
        was, self.state = self.state, CLOSED
        # A step on a thread keeps its place to its end, or those of closed connections would pile up.
        if QUEUED <= was <= AWAITING and not self._is_on_thread:
            self._side.handshakes.leave(self)
        self._early = bytearray()

    def _move(self, state: TlsState) -> None:
        if state not in TLS_MOVES[self.state]:
            raise InvariantError(f"a TLS connection cannot go from {self.state.name} to {state.name}")
        self.state = state


def _handshake_step(seal: Seal, raw: bytearray, side: TlsSide) -> TlsIdentity | None:
    """Return the peer's identity if this step ends the handshake. Runs on a thread."""
    return side.identify(seal) if seal.handshake(raw) else None


def _run_here(
    loop: asyncio.AbstractEventLoop, seal: Seal, raw: bytearray, side: TlsSide
) -> asyncio.Future[TlsIdentity | None]:
    """Return the done future of a step that is run at once."""
    done: asyncio.Future[TlsIdentity | None] = loop.create_future()
    try:
        done.set_result(_handshake_step(seal, raw, side))
    except SealBroken as e:
        done.set_exception(e)
    return done


class _Gone:
    """The protocol of a connection that has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raise InvariantError("an ended connection begins")

    def get_buffer(self, sizehint: int) -> memoryview:
        raise InvariantError("an ended connection reads")

    def buffer_updated(self, nbytes: int) -> None:
        raise InvariantError("an ended connection reads")

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Do nothing: it is known."""

    def pause_writing(self) -> None:
        """Do nothing: nobody writes."""

    def resume_writing(self) -> None:
        """Do nothing: nobody writes."""

    def secured(self, identity: TlsIdentity) -> None:
        raise InvariantError("an ended connection begins")


_GONE: Final = _Gone()
