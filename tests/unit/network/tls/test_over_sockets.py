"""A server over TLS on real sockets: what arrives, what is refused, what is seen on the wire."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.base.disk import SystemDisk
from service.hot.files import FileSlice, SegmentFile
from service.network.request import RequestContext, Response
from tests.support.tls_server import (
    CLIENT,
    client_context,
    connect,
    echo,
    receive,
    request,
    serving,
    settings,
)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [2, 200, 20_000, 3_000_000])
def test_requests_and_responses_of_all_sizes_arrive(
    tmp_path: Path, version: ssl.TLSVersion, size: int
) -> None:
    context = client_context()
    context.maximum_version = version
    payload = bytes(range(256)) * (size // 256 + 1)
    with serving(settings(tmp_path), echo) as (port, _), connect(port, context) as conn:
        for _ in range(3):
            conn.sendall(request(payload[:size]))
            assert receive(conn, 4 + size) == request(payload[:size])


def test_the_certificate_says_who_the_client_is(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(context: RequestContext, frame: memoryview) -> Response:
        seen.append(f"{context.session.principal} {context.session.protocol}")
        return echo(context, frame)

    with serving(settings(tmp_path, client_auth="requested"), answer) as (port, _):
        for context in (client_context(CLIENT, tmp_path), client_context()):
            with connect(port, context) as conn:
                conn.sendall(request(b"hi"))
                receive(conn, 6)
    assert seen == ["User:CN=alice SSL", "User:ANONYMOUS SSL"]


def test_no_plain_byte_of_a_file_leaves_a_tls_listener(tmp_path: Path) -> None:
    """A socket in the middle keeps what really crosses the wire, in both directions."""
    secret = b"PLAINTEXT-CANARY" * 65_536  # 1 MiB
    (tmp_path / "log").write_bytes(secret)
    file = SegmentFile(SystemDisk(), tmp_path / "log")

    def answer(context: RequestContext, frame: memoryview) -> Response:
        context.api_key = 1
        size = len(secret)
        head = struct.pack(">i", 4 + size) + b"HEAD-CANARY."[:4]
        return Response([head, FileSlice(file, 0, size)])

    crossed = bytearray()
    with (
        serving(settings(tmp_path), answer) as (port, _),
        tapped(port, crossed) as middle,
        connect(middle, client_context()) as conn,
    ):
        for _ in range(2):
            conn.sendall(request(b"REQUEST-CANARY"))
            assert receive(conn, 8 + len(secret))[8:] == secret
    assert len(crossed) > 2 * len(secret)
    assert not any(canary in crossed for canary in (b"CANARY", b"PLAINTEXT", b"REQUEST"))


@contextmanager
def tapped(port: int, crossed: bytearray) -> Iterator[int]:
    """A port that passes bytes on to another one, and keeps them."""
    listening = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        while piece := source.recv(65536):
            crossed.extend(piece)
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)

    def run() -> None:
        client, _ = listening.accept()
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=pass_on, args=(server, client))
            back.start()
            pass_on(client, server)
            back.join()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        thread.join(10)
        listening.close()
