"""A server with TLS on a loop and a thread of its own, and blocking clients of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.base.disk import SystemDisk
from service.base.turns import TurnTimes
from service.config.security import TlsSettings
from service.network.metrics import AuthenticationMetrics
from service.network.request import RequestContext, Response
from service.network.server import Server
from service.network.tls.contexts import server_context
from service.network.tls.handshakes import Handshakes
from service.network.tls.listener import TlsListener
from service.network.tls.stores import open_stores, read_store_files
from tests.support.certificates import Authority

CA = Authority()
SERVER = CA.issue()
CLIENT = CA.issue("alice", hosts=())


def settings(folder: Path, **more: Any) -> TlsSettings:
    return TlsSettings(
        keystore_location=SERVER.write(folder / "server.pem"),
        truststore_location=CA.write(folder / "ca.pem"),
        **more,
    )


Answer = Callable[[RequestContext, memoryview], Any]


def tls_listener(
    tls: TlsSettings, pool: ThreadPoolExecutor, timeout_s: float, now_s: Callable[[], float] | None
) -> TlsListener:
    return TlsListener(
        "SSL",
        server_context(tls, open_stores(tls, read_store_files(tls, SystemDisk()))),
        Handshakes(pool, 256),
        metrics=AuthenticationMetrics(),
        is_login=True,
        timeout_s=timeout_s,
        now_s=now_s,
        ends_sessions=now_s is not None,
    )


@contextmanager
def serving(
    tls: TlsSettings | None,
    answer: Answer,
    *,
    timeout_s: float = 5.0,
    now_s: Callable[[], float] | None = None,
) -> Iterator[tuple[int, Server]]:
    """A server on a loop and a thread of its own; without `tls` a plain one."""
    loop = asyncio.new_event_loop()
    pool = ThreadPoolExecutor(2)
    made: list[Server] = []

    async def start() -> None:
        listener = None if tls is None else tls_listener(tls, pool, timeout_s, now_s)
        server = Server("127.0.0.1", 0, answer, listener="SSL", tls=listener, turns=TurnTimes())
        await server.start()
        made.append(server)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        yield made[0].port, made[0]
        asyncio.run_coroutine_threadsafe(made[0].close(0.1), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        pool.shutdown()


def client_context(certificate: Any = None, folder: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CA.pem)
    if certificate is not None:
        assert folder is not None
        context.load_cert_chain(certificate.write(folder / "client.pem"))
    return context


def connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5), server_hostname="localhost")


def receive(conn: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = conn.recv(size - len(found))
        if not piece:
            raise EOFError(f"{len(found)} of {size} bytes")
        found += piece
    return bytes(found)


def request(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def echo(context: RequestContext, frame: memoryview) -> Response:
    context.api_key = 1
    return Response([request(bytes(frame))])
