"""`firn top` pointed at something that is no node says so in one line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.base.errors import StorageError
from service.cli.main import build_parser


@contextmanager
def answering(data: bytes) -> Iterator[int]:
    """A port where everybody is told `data`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"checks": 5, "longest": 5}', b'{"checks": {}, "longest": 5}']
)
def test_an_answer_that_is_not_a_nodes_is_named(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    with answering(head + body) as port:
        args = build_parser("top").parse_args(["top", "--url", f"http://127.0.0.1:{port}", "--json"])
        with pytest.raises(StorageError, match="HTTP listener"):
            args.run(args)


def test_a_port_that_does_not_speak_http_is_named() -> None:
    with answering(b"SSH-2.0-OpenSSH\r\n") as port:
        args = build_parser("top").parse_args(["top", "--url", f"http://127.0.0.1:{port}"])
        with pytest.raises(StorageError, match="has the node"):
            args.run(args)
