"""A TLS transport between a raw transport in memory and a protocol that records what it is told."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import Any

from service.base.turn_queues import turn_queues
from service.network.tls.engine import Seal
from service.network.tls.handshakes import Handshakes
from service.network.tls.identity import NOBODY, TlsIdentity
from service.network.tls.shell import SCRATCH_BYTES, TlsTransport


class RawTransport(asyncio.Transport):
    """Keeps what is written; the test says what comes, and when there is a backlog."""

    def __init__(self, address: str = "10.0.0.9") -> None:
        super().__init__({"peername": (address, 4711)})
        self.out = bytearray()
        self.reading = True
        self.ended = ""
        self.backlog_bytes = 0

    def write(self, data: Any) -> None:
        assert not self.ended, "nothing is written behind the end"
        self.out += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return self.backlog_bytes

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    def take(self) -> bytes:
        out, self.out = bytes(self.out), bytearray()
        return out


class Recorder(asyncio.BufferedProtocol):
    """Keeps clear bytes in order, in spaces of `room` bytes; notes everything else that it is told."""

    def __init__(self, room: int = 1000) -> None:
        self.received = bytearray()
        self.told: list[str] = []
        self.identity: TlsIdentity | None = None
        self.transport: TlsTransport
        self.stays_at_eof = False
        self.pauses_after: int | None = None
        self._space = bytearray(room)
        self._view: memoryview | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport
        transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._view is None, "the last space is not given back"
        assert self.identity is not None, "clear bytes before the handshake's end"
        self._view = memoryview(self._space)
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        assert self._view is not None
        self._view.release()
        self._view = None
        self.received += self._space[:nbytes]
        if nbytes and self.pauses_after is not None:
            self.pauses_after -= 1
            if self.pauses_after <= 0:
                self.pauses_after = None
                self.transport.pause_reading()

    def secured(self, identity: TlsIdentity) -> None:
        assert self.identity is None
        self.identity = identity

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.stays_at_eof

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(f"lost: {exc}")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class AtOnce(Executor):
    """Runs what is submitted in the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as e:
            future.set_exception(e)
        return future


class Side:
    """Server's or client's side of a connection in a test."""

    def __init__(self, seal: Seal, *, is_server: bool = True, timeout_s: float | None = 5.0) -> None:
        self.is_server = is_server
        self.handshakes = Handshakes(AtOnce(), 10)
        self.calls = turn_queues(asyncio.get_running_loop()).calls
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.timeout_s = timeout_s
        self.reasons: list[str] = []
        self.is_secured = False
        self._seal = seal

    def new_seal(self) -> Seal:
        return self._seal

    def identify(self, seal: Seal) -> TlsIdentity:
        return NOBODY

    def secured(self) -> None:
        self.is_secured = True

    def refused(self, transport: TlsTransport, reason: str) -> None:
        self.reasons.append(reason)


class End:
    """One end of a connection."""

    def __init__(self, seal: Seal, *, is_server: bool = True, room: int = 1000) -> None:
        self.side = Side(seal, is_server=is_server)
        self.clear = Recorder(room)
        self.raw = RawTransport()
        self.shell = TlsTransport(asyncio.get_running_loop(), self.side, self.clear)
        self.shell.connection_made(self.raw)

    def arrive(self, data: bytes) -> None:
        """Let raw bytes arrive, as a socket would hand them over."""
        at = 0
        while at < len(data) and not self.raw.ended:
            assert self.raw.reading, "bytes come although reading is paused"
            space = self.shell.get_buffer(-1)
            piece = data[at : at + len(space)]
            space[: len(piece)] = piece
            self.shell.buffer_updated(len(piece))
            space[: len(piece)] = bytes(len(piece))  # other connections read into it
            at += len(piece)


async def turn() -> None:
    """Let callbacks run: of steps of handshakes, and of queued calls."""
    for _ in range(8):
        await asyncio.sleep(0)


async def shake(client: End, server: End) -> None:
    """Exchange bytes until both ends are secured."""
    for _ in range(10):
        await turn()
        if client.clear.identity is not None and server.clear.identity is not None:
            return
        server.arrive(client.raw.take())
        await turn()
        client.arrive(server.raw.take())
    raise AssertionError("the handshake does not end")
