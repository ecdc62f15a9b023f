"""One HTTP request: however a server frames its answer, no more of it is read than the caller bears."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.base.bounded_http import FetchFailed, Fetching, fetch

_MIB = 1 << 20


@contextmanager
def answering(head: bytes, body: bytes, times: int) -> Iterator[tuple[str, list[int]]]:
    """A server that answers one request with `head` and `times` bodies; yields its URL, and where it notes
    the bytes of bodies that it could send."""
    sent: list[int] = []

    def answer() -> None:
        peer, _ = listening.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(head)
            for _ in range(times):
                try:
                    peer.sendall(body)
                except OSError:
                    return
                sent.append(len(body))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/keys", sent
        finally:
            thread.join()


@pytest.mark.parametrize("size", [b"-1", b"7fffffff"])
def test_a_chunk_without_an_end_is_not_read_to_its_end(size: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n"
    with answering(head, bytes(_MIB), 64) as (url, sent), pytest.raises(FetchFailed):
        fetch(url, Fetching(1000, 10))
    assert sum(sent) < 16 * _MIB  # what the kernel keeps is among it


def test_an_answer_in_chunks_is_read_up_to_the_bound() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"10\r\n" + b"x" * 16 + b"\r\n"
    with answering(head, body * 6250 + b"0\r\n\r\n", 1) as (url, _):
        assert fetch(url, Fetching(100_000, 10)) == b"x" * 100_000
    with answering(head, body * 6251 + b"0\r\n\r\n", 1) as (url, _), pytest.raises(FetchFailed, match="more"):
        fetch(url, Fetching(100_000, 10))
