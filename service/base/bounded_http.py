"""One HTTP request with a deadline, a bounded answer, and redirects only where they are allowed. Blocking."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from service.base.errors import FirnError
from service.base.printable import printable
from service.base.urls import PORTS, url_problem

_MOST_REDIRECTS: Final = 3
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_OK: Final = 200
_MOST_SHOWN: Final = 200
_MOST_FRAMED: Final = 2
"""Most bytes that come for each of a body: chunks have heads."""
_MOST_HEAD_BYTES: Final = 64 << 10


class FetchFailed(FirnError):
    """No answer of use: the text says why."""


class Fetching(NamedTuple):
    """Bounds of a request. `tls`: of https, None for the system's certificates; `allows`: whether a redirect
    may be followed to a URL."""

    most_bytes: int
    timeout_s: float
    tls: ssl.SSLContext | None = None
    allows: Callable[[str], bool] = lambda _: False


def fetch(
    url: str, bounds: Fetching, *, form: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the body of a successful answer; `form` is posted. Raises `FetchFailed`."""
    deadline = time.monotonic() + bounds.timeout_s
    for _ in range(_MOST_REDIRECTS + 1):
        if (problem := url_problem(url)) is not None:
            raise FetchFailed(f"{_shown(url)} {problem}")
        try:
            status, location, body = _exchange(urlsplit(url), bounds, deadline, form, headers or {})
        except TimeoutError as e:
            raise FetchFailed(f"{_shown(url)} did not answer in {bounds.timeout_s:g} s") from e
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise FetchFailed(f"{_shown(url)}: {printable(str(e) or type(e).__name__)[:_MOST_SHOWN]}") from e
        if status == _OK:
            return body
        if status not in _REDIRECTS or location is None:
            raise FetchFailed(f"{_shown(url)} answers with status {status}")
        try:
            target = urljoin(url, location)
        except ValueError as e:
            raise FetchFailed(f"{_shown(url)} redirects to no URL") from e
        if form is not None or not bounds.allows(target):
            raise FetchFailed(f"{_shown(url)} redirects to {_shown(target)}, which is not allowed")
        url = target
    raise FetchFailed(f"{_shown(url)}: more than {_MOST_REDIRECTS} redirects")


def _exchange(
    url: SplitResult, bounds: Fetching, deadline: float, form: bytes | None, headers: Mapping[str, str]
) -> tuple[int, str | None, bytes]:
    host, port = url.hostname or "", url.port or PORTS[url.scheme]
    with socket.create_connection((host, port), _left_s(deadline)) as plain:
        if url.scheme == "http":
            return _ask(plain, url, bounds, deadline, form, headers)
        context = bounds.tls or ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False) as sealed:
            sealed.settimeout(_left_s(deadline))
            sealed.do_handshake()
            return _ask(sealed, url, bounds, deadline, form, headers)


def _ask(
    peer: socket.socket,
    url: SplitResult,
    bounds: Fetching,
    deadline: float,
    form: bytes | None,
    headers: Mapping[str, str],
) -> tuple[int, str | None, bytes]:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [f"{'GET' if form is None else 'POST'} {target} HTTP/1.1", f"Host: {url.netloc}"]
    lines += ["Accept: application/json", "Accept-Encoding: identity", "Connection: close"]
    if form is not None:
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(form)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    peer.settimeout(_left_s(deadline))
    peer.sendall("\r\n".join((*lines, "", "")).encode("ascii") + (form or b""))
    source: Any = _Source(peer, deadline, _MOST_FRAMED * bounds.most_bytes + _MOST_HEAD_BYTES)
    with http.client.HTTPResponse(source) as response:
        response.begin()
        body = response.read(bounds.most_bytes + 1)
        if len(body) > bounds.most_bytes:
            raise FetchFailed(f"{_shown(url.geturl())}: an answer of more than {bounds.most_bytes} bytes")
        return response.status, response.getheader("Location"), body


class _Source(io.RawIOBase):
    """Bytes of a socket until the deadline, however slowly they come, and no more than `most_bytes`: a chunk
    of -1 bytes is one without an end to ``HTTPResponse``."""

    def __init__(self, peer: socket.socket, deadline: float, most_bytes: int) -> None:
        self._peer = peer
        self._deadline = deadline
        self._left_bytes = most_bytes

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the reader that ``HTTPResponse`` asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._peer.settimeout(_left_s(self._deadline))
        count = self._peer.recv_into(buffer)
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise http.client.HTTPException("its answer is too long")
        return count


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _shown(url: str) -> str:
    """Return a URL for people: without its query, which may be a secret."""
    return printable(url.partition("?")[0])[:_MOST_SHOWN]
