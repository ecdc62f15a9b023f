"""SASL's client side in Kafka: the logins, and the two requests that carry them. [P]

A `Login` is a state machine: `first()` returns the client's first message, `answer(data)` its reply to each
of the server's, None when the login is complete. SCRAM (`security/scram`) authenticates the server too: one
that does not know the password is refused. Source: RFC 4616 (PLAIN); KIP-43 and KIP-152 for the requests.
Version 1 of SaslAuthenticate is spoken by every broker since Kafka 1.0; from it on the answer tells how long
the session lives (KIP-368).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from service.base.types import Buffer
from service.config.oauthbearer import OAUTHBEARER
from service.security.plain import PLAIN
from service.security.scram import ScramClient, ScramMalformed
from service.wire.errors import MalformedMessage
from service.wire.frames import frame
from service.wire.primitives import Cursor, write_nullable_string, write_string

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36
VERSION: Final = 1


class Login(Protocol):
    """The client's side of one mechanism."""

    mechanism: str
    username: str

    def first(self) -> bytes:
        """Return the client's first message."""

    def answer(self, data: bytes) -> bytes | None:
        """Return the reply to the server's `data`, None when done. `ConfigError` if the server is not to be
        trusted."""


def login(mechanism: str, username: str, password: str, nonce: str, *, is_token: bool = False) -> Login:
    """Return the login of one of `MECHANISMS`; `nonce` and `is_token` as those of `ScramClient`."""
    if mechanism == PLAIN:
        return _Plain(username, password)
    return _Scram(mechanism, username, ScramClient(mechanism, username, password, nonce, is_token=is_token))


class _Plain:
    mechanism = PLAIN

    def __init__(self, username: str, password: str) -> None:
        self.username = username
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, data: bytes) -> bytes | None:
        return None


class _Scram:
    def __init__(self, mechanism: str, username: str, client: ScramClient) -> None:
        self.mechanism = mechanism
        self.username = username
        self._client = client

    def first(self) -> bytes:
        return self._client.first()

    def answer(self, data: bytes) -> bytes | None:
        try:
            return self._client.answer(data)
        except ScramMalformed as e:
            raise MalformedMessage(str(e)) from e


class OAuthBearerLogin:
    """Login by a token."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        """Raises `ConfigError` for what is no token."""
        from service.security.oauthbearer import ACKNOWLEDGED, write_initial

        self.username = _owner(token)
        self._message = write_initial(token, extensions)
        self._acknowledged = ACKNOWLEDGED

    def first(self) -> bytes:
        return self._message

    def answer(self, data: bytes) -> bytes | None:
        """Acknowledge the server's error, after which it refuses the login; None if there is none."""
        return self._acknowledged if data else None


def _owner(token: str) -> str:
    """Return whom the token is said to be of, for messages; nothing is verified."""
    payload = token.split(".")[1:2]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload[0] + "=" * (-len(payload[0]) % 4)))
        return str(claims["sub"])[:200]
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return "the token's owner"


def handshake_frame(correlation_id: int, client_id: str, mechanism: str) -> bytes:
    """SaslHandshake 1, size included."""
    out = _header(HANDSHAKE, correlation_id, client_id)
    write_string(out, mechanism)
    return frame(out)


def authenticate_frame(correlation_id: int, client_id: str, data: bytes) -> bytes:
    """SaslAuthenticate 1, size included."""
    out = _header(AUTHENTICATE, correlation_id, client_id)
    out += struct.pack(">i", len(data)) + data
    return frame(out)


def _header(key: int, correlation_id: int, client_id: str) -> bytearray:
    out = bytearray(struct.pack(">hhi", key, VERSION, correlation_id))
    write_nullable_string(out, client_id)
    return out


def parse_handshake(answer: Buffer, correlation_id: int) -> tuple[int, list[str]]:
    """(error code, the mechanisms that the broker has). Raises `MalformedMessage`."""

    def read(cursor: Cursor) -> tuple[int, list[str]]:
        code = cursor.int16()
        return code, [cursor.string() for _ in range(cursor.bound(cursor.int32(), 2))]

    return _parsed(answer, correlation_id, read)  # type: ignore[no-any-return]


class AuthenticateAnswer(NamedTuple):
    """SaslAuthenticate's response."""

    code: int
    message: str | None
    data: bytes
    """the mechanism's"""
    lifetime_ms: int
    """of the session, once the login is complete; 0: it does not end"""


def parse_authenticate(answer: Buffer, correlation_id: int) -> AuthenticateAnswer:
    """Read the response. Raises `MalformedMessage`."""

    def read(cursor: Cursor) -> AuthenticateAnswer:
        return AuthenticateAnswer(
            cursor.int16(), cursor.nullable_string(), bytes(cursor.bytes()), cursor.int64()
        )

    return _parsed(answer, correlation_id, read)  # type: ignore[no-any-return]


def _parsed(answer: Buffer, correlation_id: int, read: Any) -> Any:
    cursor = Cursor(answer)
    try:
        if (found := cursor.int32()) != correlation_id:
            raise MalformedMessage(f"answer to request {found}, {correlation_id} was sent")
        return read(cursor)
    except (struct.error, UnicodeDecodeError) as e:
        raise MalformedMessage(str(e)) from e
