"""One connection to one broker: TLS, login, versions, then requests and their answers. Blocking.

A `Connection` belongs to one thread; `abort` may be called by any other and ends whatever it waits for.
"""

from __future__ import annotations

import math
import secrets
import socket
import ssl
import time
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError
from service.spark.tail import sasl
from service.spark.tail.client_options import Address, ClientOptions
from service.wire.api import (
    APIS,
    ApiKey,
    api_versions_request,
    common_versions,
    decode_response,
    encode_request,
    refused_api_versions,
)
from service.wire.errors import MalformedMessage, WireError
from service.wire.frames import SIZE_BYTES, read_frame_size

MAX_FRAME_BYTES: Final = 256 << 20
"""An answer may be so large beyond what was asked for: brokers give one batch whole, whatever its size."""
_LOWEST: Final[dict[int, int]] = {ApiKey.METADATA: 10, ApiKey.LIST_OFFSETS: 2, ApiKey.FETCH: 13}
"""The first versions with topic ids, isolation levels, and topics by id."""
_SMALL_BYTES: Final = 64 << 10
_LOGIN_BYTES: Final = 1 << 20


class Connection:
    """Canonical messages to and from the broker at `address`, authenticated as the options say.

    Raises `OSError` when it is not there, closes or is silent for too long, `WireError` when what it says is
    not Kafka's protocol, `ConfigError` when it refuses the login or its certificate is not to be trusted.
    """

    def __init__(self, address: Address, options: ClientOptions, timeout_s: float = math.inf) -> None:
        """`timeout_s` is for all that comes before the first request."""
        self.address = address
        self._name = f"{address[0]}:{address[1]}"
        self._options = options
        self._silence_s = (options.request_timeout_ms + options.wait_max_ms) / 1000
        self._correlation_id = 0
        self._is_aborted = False
        deadline = time.monotonic() + min(timeout_s, options.request_timeout_ms / 1000)
        self._socket = self._connect(min(timeout_s, options.connect_timeout_ms / 1000))
        try:
            self._versions = self._negotiate(deadline)
            if options.uses_sasl:
                self._log_in(deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def abort(self) -> None:
        """Let the thread that waits for the broker fail at once. For any thread."""
        self._is_aborted = True
        try:
            # Not the TLS socket's own, which is not for two threads: the connection below it is cut.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    def request(self, api_key: int, message: Any, *, timeout_s: float, expected_bytes: int = 0) -> Any:
        """The canonical response to the canonical request, both in the newest version that both sides know.

        `timeout_s` is for the whole answer (and no broker may be silent for longer than its options allow);
        `expected_bytes` is how large it is likely to be.
        """
        version = self._versions.get(api_key, -1)
        if version < _LOWEST[api_key]:
            raise ConfigError(
                f"{self._name} is too old, or too new: of {APIS[api_key].name} the tail needs version "
                f"{_LOWEST[api_key]} to {APIS[api_key].max_version}, with topics by id (Kafka 3.1 or newer)"
            )
        answer = self._exchange(api_key, version, message, time.monotonic() + timeout_s, expected_bytes)
        return self._decoded(api_key, version, answer)

    def _connect(self, timeout_s: float) -> socket.socket:
        if timeout_s <= 0:
            raise TimeoutError(f"no time is left to connect to {self._name}")
        plain = socket.create_connection(self.address, timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if not self._options.uses_tls:
                return plain
            return tls_context(self._options).wrap_socket(plain, server_hostname=self.address[0])
        except ssl.SSLCertVerificationError as e:
            plain.close()
            raise ConfigError(
                f"the certificate of {self._name} is not to be trusted: {e.verify_message}"
            ) from e
        except BaseException:
            plain.close()
            raise

    def _negotiate(self, deadline: float) -> dict[int, int]:
        """Newest common version by API key."""
        api = APIS[ApiKey.API_VERSIONS]
        message = api_versions_request()
        version = api.max_version
        answer = self._exchange(api.key, version, message, deadline)
        if (older := refused_api_versions(answer)) is not None:
            version = older
            answer = self._exchange(api.key, version, message, deadline)
        response = self._decoded(api.key, version, answer)
        if response.error_code != ErrorCode.none:
            raise MalformedMessage(f"{self._name} answers ApiVersions with error {response.error_code}")
        return common_versions(response)

    def _log_in(self, deadline: float) -> None:
        options = self._options
        mechanism = options.mechanism or ""
        number, name = self._next_id(), options.client_id
        answer = self._sent(sasl.handshake_frame(number, name, mechanism), deadline, _LOGIN_BYTES)
        code, offered = sasl.parse_handshake(answer, number)
        if code != ErrorCode.none:
            raise ConfigError(
                f"{self._name} does not take kafka.sasl.mechanism={mechanism}, it has "
                f"{', '.join(offered[:20]) or 'none'}"
            )
        machine = sasl.login(mechanism, options.username, options.password, secrets.token_urlsafe(24))
        said: bytes | None = machine.first()
        while said is not None:
            number = self._next_id()
            answer = self._sent(sasl.authenticate_frame(number, name, said), deadline, _LOGIN_BYTES)
            code, reason, data = sasl.parse_authenticate(answer, number)
            if code != ErrorCode.none:
                raise ConfigError(f"{self._name} refuses the login of {options.username}: {reason or code}")
            said = machine.answer(data)

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _exchange(
        self, api_key: int, version: int, message: Any, deadline: float, expected_bytes: int = 0
    ) -> memoryview:
        """Send one request; the response frame without its size."""
        sent = encode_request(api_key, version, self._next_id(), self._options.client_id, message)
        return self._sent(sent, deadline, MAX_FRAME_BYTES + expected_bytes, expected_bytes)

    def _sent(self, request: bytes, deadline: float, max_bytes: int, expected_bytes: int = 0) -> memoryview:
        self._wait_until(deadline)
        self._socket.sendall(request)
        try:
            size = read_frame_size(self._receive(SIZE_BYTES, deadline), 0, max_bytes)
        except WireError as e:
            hint = "" if self._options.uses_tls else ", it may want kafka.security.protocol=SSL or SASL_SSL"
            raise type(e)(f"{self._name} does not speak Kafka's protocol{hint}: {e}") from None
        return self._receive(size, deadline, expected_bytes + _SMALL_BYTES)

    def _decoded(self, api_key: int, version: int, answer: memoryview) -> Any:
        try:
            correlation_id, response = decode_response(api_key, version, answer)
        except MalformedMessage as e:
            raise MalformedMessage(f"{self._name} answers {APIS[api_key].name} with garbage: {e}") from e
        if correlation_id != self._correlation_id:
            raise MalformedMessage(
                f"{self._name} answers request {correlation_id}, {self._correlation_id} was sent"
            )
        return response

    def _receive(self, size: int, deadline: float, expected_bytes: int = _SMALL_BYTES) -> memoryview:
        """`size` bytes. Memory beyond what was expected is taken as bytes come, not as they are promised."""
        data = bytearray(min(size, expected_bytes))
        at = 0
        while at < size:
            if at == len(data):
                data += bytes(min(len(data), size - at))
            self._wait_until(deadline)
            with memoryview(data) as whole, whole[at:] as rest:
                count = self._socket.recv_into(rest)
            if not count:
                raise ConnectionResetError(f"{self._name} closed the connection")
            at += count
        return memoryview(data).toreadonly()

    def _wait_until(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{self._name} did not answer in time")
        if self._is_aborted:
            raise ConnectionAbortedError(f"the connection to {self._name} was given up")
        self._socket.settimeout(min(left_s, self._silence_s))


def tls_context(options: ClientOptions) -> ssl.SSLContext:
    """What the ``ssl.…`` options say; `ConfigError` for files that are not there or not PEM."""
    try:
        context = ssl.create_default_context(cafile=options.ca_location)
        context.check_hostname = options.checks_hostname
        if options.certificate_location is not None:
            password = options.key_password
            # Without a function OpenSSL would ask on the terminal.
            context.load_cert_chain(
                options.certificate_location, options.key_location, password=lambda: password or ""
            )
    except OSError as e:
        raise ConfigError(f"options kafka.ssl.…: {e}") from e
    return context
