"""A proxy in front of an object store that refuses, hangs, fails, damages, or works and does not say so."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Fault(Enum):
    """Action of the proxy on a request."""

    PASS = "pass"
    REFUSE = "refuse"  # closes the connection, having forwarded nothing
    HANG = "hang"  # says nothing, until the mode changes
    FAIL = "fail"  # 500, having forwarded nothing
    SLOW_DOWN = "slow down"  # 503 SlowDown
    LIE = "lie"  # forwards it, and answers nothing
    FLIP = "flip"  # forwards it with one bit of its body flipped
    FAIL_AFTER = "fail after"  # forwards it, and answers 500
    EXPIRED = "expired"  # 400 ExpiredToken, as S3 does
    UNKNOWN_KEY = "unknown key"  # 403 InvalidAccessKeyId
    DENIED = "denied"  # 403 AccessDenied
    ASLEEP = "asleep"  # 403 InvalidObjectState, as of an object in an archive class
    UNDELETABLE = "undeletable"  # of a POST ?delete: 200, with AccessDenied for the first of its keys
    ELSEWHERE = "elsewhere"  # 301 to another region, without saying where


# S3 repeats the token that it refuses.
TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN"
ERRORS = {
    Fault.FAIL: (500, "<Code>InternalError</Code>"),
    Fault.FAIL_AFTER: (500, "<Code>InternalError</Code>"),
    Fault.SLOW_DOWN: (503, "<Code>SlowDown</Code><Message>Please reduce your request rate.</Message>"),
    Fault.EXPIRED: (
        400,
        "<Code>ExpiredToken</Code><Message>The provided token has expired.</Message>"
        f"<Token-0>{TOKEN}</Token-0>",
    ),
    Fault.UNKNOWN_KEY: (403, "<Code>InvalidAccessKeyId</Code><AWSAccessKeyId>THEKEY</AWSAccessKeyId>"),
    Fault.DENIED: (403, "<Code>AccessDenied</Code><Message>Access Denied</Message>"),
    Fault.ASLEEP: (403, "<Code>InvalidObjectState</Code><Message>in an archive class</Message>"),
    Fault.ELSEWHERE: (301, "<Code>PermanentRedirect</Code>"),
}
_KEY = re.compile(r"<Key>([^<]*)</Key>")
_SIGNER = re.compile(r"Credential=([^/]+)/")


@dataclass(frozen=True)
class Seen:
    """A request as it passes: `number` counts those of its method from 1, `signer` is its access key."""

    method: str
    path: str
    number: int
    signer: str = ""
    at_s: float = 0.0
    keys: tuple[str, ...] = ()
    """those that a POST ?delete names"""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """names in lower case"""


Plan = Callable[[Seen], Fault]


class FaultProxy:
    """`proxy.mode = Fault.HANG` holds for every request; `proxy.plan` decides one by one, where it is set."""

    def __init__(self, endpoint: str) -> None:
        self.target = endpoint.removeprefix("http://")
        self.mode = Fault.PASS
        self.plan: Plan | None = None
        self.seen: list[Seen] = []
        self.failed = 0
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.mode = Fault.REFUSE
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def decide(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, keys: tuple[str, ...] = ()
    ) -> Fault:
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        with self._lock:
            number = self._counts[method] = self._counts.get(method, 0) + 1
            signer = _SIGNER.search(lower.get("authorization", ""))
            seen = Seen(method, path, number, signer[1] if signer else "", time.monotonic(), keys, lower)
            self.seen.append(seen)
        fault = self.plan(seen) if self.plan is not None else self.mode
        if fault is not Fault.PASS:
            self.failed += 1
        return fault


class _Handler(BaseHTTPRequestHandler):
    """Forward, damage or refuse one request, as the proxy decides."""

    proxy: FaultProxy
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: `proxy.seen` has every request."""

    def _serve(self) -> None:
        body = self._body()
        is_delete = self.command == "POST" and "?delete" in self.path
        keys = tuple(_KEY.findall(body.decode("utf-8", "replace"))) if is_delete else ()
        fault = self.proxy.decide(self.command, self.path, dict(self.headers), keys)
        if fault is Fault.UNDELETABLE and keys:
            self._deny_deletion(keys[0])
            return
        if fault is Fault.HANG:
            while self.proxy.mode is Fault.HANG:
                time.sleep(0.05)
            fault = Fault.REFUSE
        if fault is Fault.FLIP and body:
            flipped = bytearray(body)
            flipped[len(body) // 2] ^= 1
            body = bytes(flipped)
        if fault in (Fault.PASS, Fault.FLIP, Fault.LIE, Fault.FAIL_AFTER):
            status, headers, answer = self._forward(body)
            if fault in (Fault.PASS, Fault.FLIP):
                self._answer(status, headers, answer)
                return
        if fault in ERRORS:
            code, words = ERRORS[fault]
            said = b"" if self.command == "HEAD" else f"<Error>{words}</Error>".encode()
            self._answer(code, [], said)
        else:
            self.close_connection = True

    def _deny_deletion(self, key: str) -> None:
        denied = f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        self._answer(200, [], f"<DeleteResult>{denied}</DeleteResult>".encode())

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        whole = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(self.proxy.target, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "expect"):
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            response = upstream.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of HEAD: the object's, with no body
            elif name.lower() not in ("connection", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def fault_proxy(endpoint: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()
