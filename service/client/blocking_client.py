"""A blocking client of one broker: one connection, one request at a time, over a `ClientSession`.

Used by commands, the console and Spark's tail.

Example::

    cluster = request_module(ApiKey.DESCRIBE_CLUSTER)
    with BlockingClient("127.0.0.1", 9092, "firn-cli") as client:
        request = cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=False
        )
        print(client.request(ApiKey.DESCRIBE_CLUSTER, request).brokers)
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from service.base.client_tls import ClientTls
from service.base.errors import ConfigError, RequestError
from service.client.security import PLAINTEXT, Security, renewal_s
from service.client.session import ClientSession
from service.wire.errors import UnsupportedVersion, WireError
from service.wire.frames import SIZE_BYTES, read_frame_size

MAX_RESPONSE_BYTES: Final = 256 << 20
MAX_RESPONSE_ELEMENTS: Final = 1 << 22
"""Most array elements of a response: those of 400,000 partitions, or of a million transactional ids."""
_SET_UP_RESPONSE_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 64 << 10
_MIDDLE: Final = 0.5
"""Chance of the time at which a login is renewed: commands are few."""


class BlockingClient:
    """Canonical messages to and from one broker.

    Raises `OSError` when the broker is not there, closes the connection or is silent for too long,
    `WireError` for what is not Kafka's protocol, `RequestError` when it serves no version of an API that we
    know, and `ConfigError` when it refuses the login or its certificate is not trusted; after any of these
    but `RequestError` the connection is of no use. Belongs to one thread; `abort` is for any.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "firn",
        *,
        timeout_s: float = 30.0,
        connect_timeout_s: float = math.inf,
        set_up_timeout_s: float = math.inf,
        security: Security = PLAINTEXT,
    ) -> None:
        """Connect, negotiate versions and log in, within `set_up_timeout_s`.

        `timeout_s` bounds each silence of the broker, `connect_timeout_s` the TCP and TLS handshakes.
        """
        self.address = f"{host}:{port}"
        self._silence_s = timeout_s
        self._is_secured = security.tls is not None
        self._is_aborted = False
        self.is_silent = False
        """True once the broker has not answered in time"""
        deadline = time.monotonic() + set_up_timeout_s
        self._credentials = security.credentials
        login = security.credentials.login() if security.credentials is not None else None
        self._session = ClientSession(self.address, client_id, login)
        self._renewal_s = math.inf
        connect_s = min(timeout_s, connect_timeout_s, set_up_timeout_s)
        self._socket = _connected(host, port, connect_s, security.tls)
        try:
            self._exchange(self._session.start(), deadline)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def abort(self) -> None:
        """Make the thread that waits for the broker fail at once. For any thread."""
        self._is_aborted = True
        try:
            # A TLS socket is not for two threads: the connection below it is shut down.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    def request(
        self,
        api_key: int,
        message: Any,
        *,
        newest: int | None = None,
        timeout_s: float = math.inf,
        expected_bytes: int = 0,
    ) -> Any:
        """Send a canonical request; return the canonical response.

        Both go in the newest version that both sides know, or in `newest` where that is older. `timeout_s`
        bounds the whole exchange; `expected_bytes` is the likely size of the response, which may be larger by
        `MAX_RESPONSE_BYTES`.
        """
        deadline = time.monotonic() + timeout_s
        if time.monotonic() >= self._renewal_s and self._credentials is not None:
            self._exchange(self._session.log_in_again(self._credentials.login()), deadline)
        version = self.version(api_key)
        if newest is not None:
            version = min(version, newest)
        self._send(self._session.request(api_key, version, message), deadline)
        frame = self._receive_frame(deadline, MAX_RESPONSE_BYTES + expected_bytes, expected_bytes)
        with self._naming_the_broker():
            return self._session.receive(frame, MAX_RESPONSE_ELEMENTS)

    def _exchange(self, outgoing: bytes | None, deadline: float) -> None:
        """Carry the session's set-up, or a reauthentication, to its end."""
        while outgoing is not None:
            self._send(outgoing, deadline)
            frame = self._receive_frame(deadline, _SET_UP_RESPONSE_BYTES)
            with self._naming_the_broker():
                outgoing = self._session.set_up(frame)
        self._renewal_s = time.monotonic() + renewal_s(self._session.lifetime_ms, _MIDDLE)

    def version(self, api_key: int) -> int:
        """Return the version in which `request` talks to the broker."""
        try:
            return self._session.version(api_key)
        except UnsupportedVersion as e:
            raise RequestError(ErrorCode.unsupported_version, str(e)) from e

    def serves(self, api_key: int) -> bool:
        """Return whether there is a version of the API that both sides know."""
        return api_key in self._session.versions

    def _send(self, data: bytes, deadline: float) -> None:
        self._wait_until(deadline)
        self._socket.sendall(data)

    def _receive_frame(self, deadline: float, max_bytes: int, expected_bytes: int = 0) -> memoryview:
        """Read one response, without its size."""
        try:
            size = read_frame_size(self._receive(SIZE_BYTES, deadline, SIZE_BYTES), 0, max_bytes)
        except WireError as e:
            hint = "" if self._is_secured else ", or expects TLS (security.protocol SSL or SASL_SSL)"
            raise type(e)(f"{self.address} does not speak Kafka's protocol{hint}: {e}") from None
        return self._receive(size, deadline, expected_bytes + _FIRST_BYTES)

    def _receive(self, size: int, deadline: float, expected_bytes: int) -> memoryview:
        """Read `size` bytes. Memory beyond `expected_bytes` grows with what arrives, not with what is
        claimed."""
        data = bytearray(min(size, expected_bytes))
        at = 0
        while at < size:
            if at == len(data):
                data += bytes(min(len(data), size - at))
            self._wait_until(deadline)
            with memoryview(data) as whole, whole[at:] as rest:
                try:
                    count = self._socket.recv_into(rest)
                except TimeoutError:
                    self.is_silent = True
                    raise TimeoutError(f"{self.address} did not answer in time") from None
            if not count:
                raise ConnectionResetError(f"{self.address} closed the connection")
            at += count
        return memoryview(data).toreadonly()

    @contextmanager
    def _naming_the_broker(self) -> Iterator[None]:
        try:
            yield
        except WireError as e:
            raise type(e)(f"{self.address} answers with garbage: {e}") from e

    def _wait_until(self, deadline: float) -> None:
        """Let the next call of the socket wait until then, or for the longest silence."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            self.is_silent = True
            raise TimeoutError(f"{self.address} did not answer in time")
        if self._is_aborted:
            raise ConnectionAbortedError(f"the connection to {self.address} was given up")
        self._socket.settimeout(min(left_s, self._silence_s))


def _connected(host: str, port: int, timeout_s: float, tls: ClientTls | None) -> socket.socket:
    if timeout_s <= 0:
        raise TimeoutError(f"no time is left to connect to {host}:{port}")
    plain = socket.create_connection((host, port), timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return plain if tls is None else tls.context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as e:
        plain.close()
        raise ConfigError(f"the certificate of {host}:{port} is not to be trusted: {e.verify_message}") from e
    except BaseException:
        plain.close()
        raise
