"""The client's side of one Kafka connection: bytes in, bytes and results out. [P]

A `ClientSession` negotiates versions, logs in where it has a `Login`, numbers requests and matches responses
with them. Its owner moves the bytes: it sends what `start` and `set_up` return until the session is ready,
then what `request` returns, and hands every frame that arrives to `set_up` or `receive`. Brokers answer the
requests of one connection in their order, so a frame that answers any other request is an error and ends the
connection.

Source: KIP-35 and KIP-511 (versions), KIP-43 and KIP-152 (login).
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, InvariantError
from service.base.types import Buffer
from service.client import sasl
from service.wire.api import (
    APIS,
    ApiKey,
    api_versions_request,
    common_ranges,
    decode_response,
    encode_request,
    refused_api_versions,
)
from service.wire.errors import MalformedMessage, UnsupportedVersion, WireError
from service.wire.primitives import MAX_ELEMENTS, ManyElements

_MOST_APIS: Final = 1_000
"""Elements of an ApiVersions response; Apache Kafka 4.3 has about 100."""
_CORRELATION_BYTES: Final = 4
_MOST_MECHANISMS_NAMED: Final = 20

Versions = dict[int, tuple[int, int]]
"""Oldest and newest version that both sides know, by API key."""


class SentRequest(NamedTuple):
    """A request whose response has not arrived."""

    api_key: int
    version: int
    correlation_id: int


class UndecodedResponse(NamedTuple):
    """A response with more elements than its receiver decodes at once."""

    frame: Buffer


class _Stage(enum.Enum):
    VERSIONS = enum.auto()
    MECHANISM = enum.auto()
    LOGIN = enum.auto()
    READY = enum.auto()


class ClientSession:
    """State of one connection to the broker `name`. Does no input or output and reads no clock.

    `WireError` from any method means that the peer does not speak the protocol, `ConfigError` that it refuses
    the login or cannot prove who it is: the connection is of no use any more.
    """

    def __init__(self, name: str, client_id: str, login: sasl.Login | None = None) -> None:
        """`name` is ``host:port`` in errors."""
        self.name = name
        self.versions: Versions = {}
        self.in_flight: deque[SentRequest] = deque()
        self.lifetime_ms = 0
        """of the login; 0: it does not end. Past it the broker closes the connection (KIP-368)"""
        self._client_id = client_id
        self._login = login
        self._stage = _Stage.VERSIONS
        self._correlation_id = 0

    @property
    def is_ready(self) -> bool:
        return self._stage is _Stage.READY

    # -- set-up: one request at a time

    def start(self) -> bytes:
        """Return the first bytes to send."""
        return self._request_versions(APIS[ApiKey.API_VERSIONS].max_version)

    def set_up(self, frame: Buffer) -> bytes | None:
        """Take the response to what `start` or `set_up` returned; return what to send next, None when ready.

        SCRAM derives a key here, in up to half a second: with a login, call it outside an event loop.
        """
        if self._stage is _Stage.VERSIONS:
            return self._take_versions(frame)
        assert self._login is not None
        sent = self._oldest(frame)
        self.in_flight.popleft()
        if self._stage is _Stage.MECHANISM:
            code, offered = sasl.parse_handshake(frame, sent.correlation_id)
            if code != ErrorCode.none:
                raise ConfigError(
                    f"{self.name} does not offer the SASL mechanism {self._login.mechanism}, it offers "
                    f"{', '.join(offered[:_MOST_MECHANISMS_NAMED]) or 'none'}"
                )
            self._stage = _Stage.LOGIN
            return self._authenticate(self._login.first())
        given = sasl.parse_authenticate(frame, sent.correlation_id)
        if given.code != ErrorCode.none:
            why = given.message or given.code
            raise ConfigError(f"{self.name} refuses the login of {self._login.username}: {why}")
        answer = self._login.answer(given.data)
        if answer is not None:
            return self._authenticate(answer)
        self.lifetime_ms = max(given.lifetime_ms, 0)
        self._stage = _Stage.READY
        return None

    def log_in_again(self, login: sasl.Login) -> bytes:
        """Begin a reauthentication as the same user: return what to send; `set_up` takes the responses.

        No request may be in flight, and none may be sent before the session is ready again.
        """
        if self._stage is not _Stage.READY or self.in_flight:
            raise InvariantError(f"{self.name}: a reauthentication amid {len(self.in_flight)} requests")
        self._login = login
        return self._request_mechanism(login)

    def _request_versions(self, version: int) -> bytes:
        return self.request(ApiKey.API_VERSIONS, version, api_versions_request())

    def _take_versions(self, frame: Buffer) -> bytes | None:
        sent = self._oldest(frame)
        if (newest := refused_api_versions(frame)) is not None:
            if sent.version < APIS[ApiKey.API_VERSIONS].max_version:
                raise MalformedMessage("ApiVersions was refused twice")
            # KIP-511: the broker is older than our ApiVersions and names the newest version it has.
            self.in_flight.popleft()
            return self._request_versions(min(max(newest, 0), sent.version - 1))
        response = self.receive(frame, _MOST_APIS)
        if isinstance(response, UndecodedResponse):
            raise MalformedMessage(f"ApiVersions lists more than {_MOST_APIS} APIs")
        if response.error_code != ErrorCode.none:
            raise MalformedMessage(f"ApiVersions was answered with error {int(response.error_code)}")
        self.versions = common_ranges(response)
        if self._login is None:
            self._stage = _Stage.READY
            return None
        return self._request_mechanism(self._login)

    def _request_mechanism(self, login: sasl.Login) -> bytes:
        self._stage = _Stage.MECHANISM
        number = self._next_id()
        data = sasl.handshake_frame(number, self._client_id, login.mechanism)
        return self._sent(sasl.HANDSHAKE, sasl.VERSION, number, data)

    def _authenticate(self, data: bytes) -> bytes:
        number = self._next_id()
        frame = sasl.authenticate_frame(number, self._client_id, data)
        return self._sent(sasl.AUTHENTICATE, sasl.VERSION, number, frame)

    # -- requests

    def version(self, api_key: int, wanted: int | None = None) -> int:
        """Return `wanted`, or the newest version that both sides know. Raises `UnsupportedVersion`."""
        oldest, newest = self.versions.get(api_key, (0, -1))
        if newest < 0 or (wanted is not None and not oldest <= wanted <= newest):
            asked = "any version" if wanted is None else f"version {wanted}"
            known = f", but {oldest} to {newest}" if newest >= 0 else ""
            raise UnsupportedVersion(f"{self.name} does not serve {asked} of {APIS[api_key].name}{known}")
        return newest if wanted is None else wanted

    def request(self, api_key: int, version: int, message: Any) -> bytes:
        """Return the bytes of a canonical request. `ValueError` for what `version` cannot carry."""
        number = self._next_id()
        data = encode_request(api_key, version, number, self._client_id, message)
        return self._sent(api_key, version, number, data)

    def receive(self, frame: Buffer, most_elements: int = MAX_ELEMENTS, *, is_wanted: bool = True) -> Any:
        """Return the canonical response to the oldest request in flight; None if it is not wanted.

        Returns `UndecodedResponse` where the response has more than `most_elements` array elements.
        """
        sent = self._oldest(frame)
        message: Any = None
        if is_wanted:
            try:
                _, message = decode_response(sent.api_key, sent.version, frame, most_elements)
            except ManyElements:
                message = UndecodedResponse(frame)
            except WireError as e:
                raise MalformedMessage(f"{APIS[sent.api_key].name}: {e}") from e
        self.in_flight.popleft()
        return message

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _sent(self, api_key: int, version: int, number: int, data: bytes) -> bytes:
        """Note a request that goes out with `data`, and return those."""
        self.in_flight.append(SentRequest(api_key, version, number))
        return data

    def _oldest(self, frame: Buffer) -> SentRequest:
        """Return the request that `frame` answers, as it must: the oldest in flight."""
        if not self.in_flight:
            raise MalformedMessage(f"{len(frame)} bytes that answer no request")
        if len(frame) < _CORRELATION_BYTES:
            raise MalformedMessage(f"a response of {len(frame)} bytes")
        sent = self.in_flight[0]
        number = int.from_bytes(frame[:_CORRELATION_BYTES], "big", signed=True)
        if number != sent.correlation_id:
            raise MalformedMessage(f"a response to request {number}, not {sent.correlation_id}")
        return sent
