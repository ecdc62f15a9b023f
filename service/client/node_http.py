"""Requests to nodes' HTTP listeners: `/metrics`, `/readyz`, `/tiering`, over HTTP or HTTPS, with a token."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

LISTENER_KEY: Final = "firn.http.listener"
KEYSTORE_KEY: Final = "firn.http.ssl.keystore.location"
HTTP_KEYS: Final = (LISTENER_KEY, KEYSTORE_KEY)
"""Keys of a node that say where and how it serves HTTP."""


def http_url(settings: Mapping[str, str | None], host: str) -> str | None:
    """Return the URL of the HTTP listener of a node with these settings; None without one, or a fixed port.

    `host`: the node's own, where it listens at all addresses.

    >>> http_url({"firn.http.listener": "0.0.0.0:8080", "firn.http.ssl.keystore.location": "/k"}, "broker-1")
    'https://broker-1:8080'
    >>> http_url({"firn.http.listener": ":8080"}, "broker-1"), http_url({}, "broker-1")
    ('http://127.0.0.1:8080', None)
    """
    at, _, port = (settings.get(LISTENER_KEY) or ":0").rpartition(":")
    if port == "0":
        return None
    at = at.strip("[]") or "127.0.0.1"
    if at in ("0.0.0.0", "::"):
        at = host
    scheme = "https" if settings.get(KEYSTORE_KEY) else "http"
    return f"{scheme}://{f'[{at}]' if ':' in at else at}:{port}"


@dataclass(frozen=True, slots=True)
class NodeHttp:
    """Token and trust for requests to listeners. `tls`: for https, None trusts the system's certificates.
    `token`: in no ``repr``."""

    tls: ssl.SSLContext | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def get(self, url: str, wait_s: float, most_bytes: int) -> bytes:
        """Return the body of an answer, also of one that is 503: `/readyz` has its reasons then.

        Raises `OSError` (`HTTPError` for any other status), `ValueError` and `HTTPException`. Does
        not follow redirections, which would take the token elsewhere, nor ask a proxy of the environment.
        """
        opener = build_opener(_NoRedirects, ProxyHandler({}), HTTPSHandler(context=self.tls))
        try:
            with opener.open(Request(url, headers=self.headers), timeout=wait_s) as answer:
                return bytes(answer.read(most_bytes))
        except HTTPError as e:
            if e.code != 503:
                raise
            with e:
                return e.read(most_bytes)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


PLAIN_HTTP: Final = NodeHttp()
"""Without a token, and with the system's certificates."""
