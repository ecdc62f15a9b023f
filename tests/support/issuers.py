"""An issuer of tokens: keys, tokens of any kind, and a key set in a file or on a server that misbehaves."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

from joserfc import jws
from joserfc.jwk import RSAKey

MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
ALLOWED: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
ISSUER: Final = "https://issuer.test"


@cache
def key_of(kid: str) -> RSAKey:
    """The key of this id; the same for all tests of a process."""
    return RSAKey.generate_key(2048)


def key_set(*kids: str) -> bytes:
    """The public keys of these ids as a key set."""
    keys = [{**key_of(kid).as_dict(private=False), "kid": kid, "use": "sig"} for kid in kids]
    return json.dumps({"keys": keys}).encode()


def token_of(name: str, kid: str = "one", *, life_s: float = 600, **claims: Any) -> str:
    """A signed token of this user; `claims` given as None are left out."""
    now = time.time()
    dates = {"iat": int(now) - 3600, "exp": now + life_s}
    every = {"sub": name, "iss": ISSUER, "aud": "kafka", **dates, **claims}
    said = {key: value for key, value in every.items() if value is not None}
    header = {"alg": "RS256", "kid": kid, "typ": "JWT"}
    return jws.serialize_compact(header, json.dumps(said), key_of(kid), algorithms=["RS256"])


def settings_of(url: str, listener: str = "sasl_plaintext") -> dict[str, str]:
    """Properties of a listener that takes the tokens of `ISSUER` for kafka."""
    own = f"listener.name.{listener}.oauthbearer."
    return {
        f"{own}sasl.jaas.config": f"{MODULE} required;",
        f"{own}sasl.server.callback.handler.class": HANDLER,
        f"{own}sasl.oauthbearer.jwks.endpoint.url": url,
        f"{own}sasl.oauthbearer.expected.audience": "kafka",
        f"{own}sasl.oauthbearer.expected.issuer": ISSUER,
    }


def key_file(folder: Path, *kids: str) -> str:
    """Write a key set; return its URL."""
    path = folder / "keys.json"
    path.write_bytes(key_set(*kids))
    return f"file://{path}"


class IssuerServer:
    """A server on this machine. `answer` decides what each request gets; `asked` counts them."""

    def __init__(
        self, answer: Callable[[BaseHTTPRequestHandler], None], tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.asked = 0
        self.forms: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                outer.answer(self)

            def do_POST(self) -> None:
                outer.forms.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(socketserver.ThreadingMixIn, HTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Say nothing: clients go away on purpose."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self._server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def document(data: bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer with this body."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return answer


@contextmanager
def issuer_server(
    answer: Callable[[BaseHTTPRequestHandler], None], tls: ssl.SSLContext | None = None
) -> Iterator[IssuerServer]:
    """Run a server until the end of the `with`."""
    server = IssuerServer(answer, tls)
    try:
        yield server
    finally:
        server.close()
