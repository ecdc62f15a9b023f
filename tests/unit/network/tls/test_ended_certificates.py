"""TLS: a broken record behind a response that nobody reads; an ended certificate in a resumed session."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.base.disk import SystemDisk
from service.base.turns import TurnTimes
from service.network.metrics import AuthenticationMetrics
from service.network.server import Server
from service.network.tls.contexts import server_context
from service.network.tls.handshakes import Handshakes
from service.network.tls.listener import TlsListener
from service.network.tls.stores import open_stores, read_store_files
from tests.support.certificates import Authority, Issued
from tests.support.login_frames import message
from tests.support.logins import Listener
from tests.support.tls_server import CA, CLIENT, client_context, echo, receive, request, serving, settings


def test_a_peer_without_a_login_is_closed_in_time_whatever_it_sends(tmp_path: Path) -> None:
    """It reads nothing, so answers pile up; then it sends garbage in place of a record."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        tls = settings(tmp_path)
        pool = ThreadPoolExecutor(2)
        listener = TlsListener(
            "SASL_SSL",
            server_context(tls, open_stores(tls, read_store_files(tls, SystemDisk()))),
            Handshakes(pool, 256),
            metrics=AuthenticationMetrics(),
            is_login=False,
            timeout_s=1.0,
        )
        logins = Listener(timeout_ms=1000).logins
        logins.now = loop.time
        server = Server(
            "127.0.0.1",
            0,
            logins.handler,
            listener="SASL_SSL",
            logins=logins,
            tls=listener,
            turns=TurnTimes(),
        )
        await server.bind()
        server.set_handler(logins.handler, lambda context, request: str(context), logins.answer_versions)
        await server.start()
        conn = await loop.run_in_executor(None, attack, server)
        began = loop.time()
        while server.connection_count and loop.time() - began < 2.5:
            await asyncio.sleep(0.05)
        left = server.connection_count
        conn.close()
        await server.close(0.1)
        pool.shutdown()
        assert left == 0, "closed one second after it came"

    asyncio.run(run())


def attack(server: Server) -> socket.socket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.connect(("127.0.0.1", server.port))
    conn = client_context().wrap_socket(raw, server_hostname="localhost")
    (connection,) = server._connections
    own = connection._transport.get_extra_info("raw_socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # to be full sooner
    stuck = 0
    while stuck < 5:
        stuck = stuck + 1 if connection._transport.get_write_buffer_size() else 0
        if not stuck:
            conn.send(request(message("versions-99", 1)) * 50)
        time.sleep(0.01)
    plain = socket.socket(fileno=conn.detach())
    plain.sendall(b"\x17\x03\x03\xff\xff" + bytes(64))
    return plain


def served(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[bool, ssl.SSLSession | None]:
    """Return whether a client that brings this session is served, and its session."""
    with (
        socket.create_connection(("127.0.0.1", port), 5) as raw,
        context.wrap_socket(raw, server_hostname="localhost", session=session) as conn,
    ):
        conn.sendall(request(b"innocent"))
        found, session = receive(conn, 12)[4:], conn.session
        conn.unwrap()  # OpenSSL forgets the session of who leaves without
        return found == b"innocent", session


def client_of_tls_12(certificate: Issued, folder: Path) -> ssl.SSLContext:
    context = client_context(certificate, folder)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_an_ended_certificate_is_refused_in_a_resumed_session(tmp_path: Path) -> None:
    context = client_of_tls_12(CA.issue("alice", hosts=(), days=2.5 / 86_400), tmp_path)
    with serving(settings(tmp_path, client_auth="required"), echo, now_s=time.time) as (port, _):
        is_served, session = served(port, context, None)
        assert is_served
        time.sleep(3.2)
        for one in (None, session):
            with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
                served(port, context, one)


def test_a_session_is_not_resumed_once_its_authority_is_taken_out(tmp_path: Path) -> None:
    """Python cannot switch off TLS 1.2's resumption; but sessions go with the context that is replaced."""
    second = Authority("Second CA")
    both = settings(tmp_path, client_auth="required")
    (tmp_path / "ca.pem").write_text(CA.pem + second.pem)
    context = client_of_tls_12(second.issue("alice", hosts=()), tmp_path)
    with serving(both, echo) as (port, server):
        is_served, session = served(port, context, None)
        assert is_served
        assert served(port, context, session)[0], "while it is trusted"
        CA.write(tmp_path / "ca.pem")
        assert server.tls is not None
        server.tls.context = server_context(both, open_stores(both, read_store_files(both, SystemDisk())))
        for one in (session, None):
            with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
                served(port, context, one)
        assert served(port, client_of_tls_12(CLIENT, tmp_path), None)[0]
