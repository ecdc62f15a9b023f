"""Answers of brokers at `/readyz`: problems are reported by broker, unreadable answers are skipped."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.client.node_http import PLAIN_HTTP
from service.client.readiness_queries import ask_health

FINDINGS = [
    {
        "severity": "warning",
        "subject": "node 12",
        "since_ms": None,
        "words": words,
        "meaning": "m",
        "action": "a",
        "anchor": anchor,
    }
    for words, anchor in (
        ("node 12 is starting or stopping", "node-not-serving"),
        ("node 12: nothing is copied, expired or swept since noon", "tiering-held-back"),
    )
]
ODD = (b"", b"{", b"[]", b"7", b'{"findings": 7}', b'{"findings": [7]}', b"\xff" * 100, b"[" * 100_000)


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


class Handler(BaseHTTPRequestHandler):
    answer = 200, b""

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.mark.parametrize("status", [200, 503])
def test_store_problems_are_reported_by_broker_id(server: ThreadingHTTPServer, status: int) -> None:
    Handler.answer = status, json.dumps({"ready": False, "findings": FINDINGS}).encode()
    listeners = {12: f"http://127.0.0.1:{server.server_address[1]}", 13: "http://127.0.0.1:1"}
    assert ask_health(listeners, PLAIN_HTTP) == ["node 12: nothing is copied, expired or swept since noon"]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_an_answer_that_makes_no_sense_says_nothing(server: ThreadingHTTPServer, body: bytes) -> None:
    Handler.answer = 200, body
    assert ask_health({12: f"http://127.0.0.1:{server.server_address[1]}"}, PLAIN_HTTP) == []
    assert ask_health({}, PLAIN_HTTP) == []
