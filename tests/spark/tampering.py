"""A broker that is not to be trusted: a relay in front of a real node, which alters what it answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from tests.support.processes import free_port

Answer = Callable[[bytes], bytes | None]
"""From an answer without its size to what is sent instead, with it; None: nothing, and never again."""


def honest(answer: bytes) -> bytes:
    return struct.pack(">i", len(answer)) + answer


class Relay:
    """What comes to `port` is led on to `target_port`; answers to requests of `api_key` go through `tamper`.

    A node must advertise `port` for clients to stay with it.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.target_port = 0
        self.api_key = -1
        self.tamper: Answer = honest
        self.requests: list[tuple[int, int]] = []
        """(API key, version) of all that was asked."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, EOFError),
            client,
            socket.create_connection(("127.0.0.1", self.target_port)) as broker,
        ):
            while True:
                request = _frame(client)
                key, version = struct.unpack_from(">hh", request)
                self.requests.append((key, version))
                broker.sendall(honest(request))
                answer = _frame(broker)
                sent = self.tamper(answer) if key == self.api_key else honest(answer)
                if sent is None:
                    _frame(client)  # comes only when the client gives up
                    return
                client.sendall(sent)


def _frame(peer: socket.socket) -> bytes:
    return _exactly(peer, struct.unpack(">i", _exactly(peer, 4))[0])


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


@contextlib.contextmanager
def relay() -> Iterator[Relay]:
    made = Relay()
    try:
        yield made
    finally:
        made.close()
