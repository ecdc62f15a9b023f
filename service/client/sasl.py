"""SASL's client side in Kafka: PLAIN and SCRAM, and the two requests that carry them. [P]

A `Login` is a state machine: `first()` returns the client's first message, `answer(data)` its reply to each
of the server's, None when the login is complete. SCRAM authenticates the server too: one that does not know
the password is refused. Source: RFC 4616 (PLAIN), RFC 5802 (SCRAM, without channel binding), Kafka
``ScramFormatter`` (no SASLprep); KIP-43 and KIP-152 for the requests, whose version 1 is spoken by every
broker since Kafka 1.0.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import Any, Final, Protocol

from service.base.errors import ConfigError
from service.base.types import Buffer
from service.wire.errors import MalformedMessage
from service.wire.frames import frame
from service.wire.primitives import Cursor, write_nullable_string, write_string

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36
VERSION: Final = 1
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MIN_ITERATIONS: Final = 4096
_MAX_ITERATIONS: Final = 1_000_000
"""The server chooses the number; more would let it spend the client's CPU time."""


class Login(Protocol):
    """The client's side of one mechanism."""

    mechanism: str
    username: str

    def first(self) -> bytes:
        """Return the client's first message."""

    def answer(self, data: bytes) -> bytes | None:
        """Return the reply to the server's `data`, None when done. `ConfigError` if the server is not to be
        trusted."""


def login(mechanism: str, username: str, password: str, nonce: str) -> Login:
    """Return the login of one of `MECHANISMS`; `nonce` is fresh randomness in printable ASCII without
    commas."""
    if mechanism == "PLAIN":
        return _Plain(username, password)
    return _Scram(mechanism, username, password, nonce)


class _Plain:
    mechanism = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self.username = username
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, data: bytes) -> bytes | None:
        return None


class _Scram:
    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self.mechanism = mechanism
        self.username = username
        self._hash = "sha" + mechanism.removeprefix("SCRAM-SHA-")
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, data: bytes) -> bytes | None:
        given = _attributes(data)
        if self._signature is None:
            return self._proof(given, data.decode())
        if "e" in given:
            raise ConfigError(f"the server refuses the login: {given['e'][:200]}")
        if not hmac.compare_digest(_unbase64(given, "v"), self._signature):
            raise ConfigError("the server does not know the password itself (its SCRAM signature is wrong)")
        return None

    def _proof(self, given: dict[str, str], server_first: str) -> bytes:
        nonce, count = given.get("r", ""), given.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ConfigError("the server's SCRAM nonce does not go on from ours")
        if not (count.isascii() and count.isdecimal() and len(count) < 10):
            raise MalformedMessage("SCRAM: no number of iterations")
        if not _MIN_ITERATIONS <= int(count) <= _MAX_ITERATIONS:
            raise ConfigError(
                f"the server asks for {count} SCRAM iterations, not {_MIN_ITERATIONS} to {_MAX_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _unbase64(given, "s"), int(count))
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{final}".encode()
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._signature = hmac.digest(server_key, signed, self._hash)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()


def _attributes(data: bytes) -> dict[str, str]:
    """``r=…,s=…`` by letter."""
    try:
        pairs = (part.split("=", 1) for part in data.decode().split(","))
        return dict(pairs)
    except ValueError as e:
        raise MalformedMessage(f"SCRAM: {e}") from None


def _unbase64(given: dict[str, str], letter: str) -> bytes:
    try:
        return base64.b64decode(given[letter], validate=True)
    except (KeyError, binascii.Error):
        raise MalformedMessage(f"SCRAM: no {letter}= in base64") from None


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


def parse_authenticate(answer: Buffer, correlation_id: int) -> tuple[int, str | None, bytes]:
    """(error code, message, the mechanism's data). Raises `MalformedMessage`."""

    def read(cursor: Cursor) -> tuple[int, str | None, bytes]:
        return cursor.int16(), cursor.nullable_string(), bytes(cursor.bytes())

    return _parsed(answer, correlation_id, read)  # type: ignore[no-any-return]


def _parsed(answer: Buffer, correlation_id: int, read: Any) -> Any:
    cursor = Cursor(answer)
    try:
        if (found := cursor.int32()) != correlation_id:
            raise MalformedMessage(f"answer to request {found}, {correlation_id} was sent")
        return read(cursor)
    except (struct.error, UnicodeDecodeError) as e:
        raise MalformedMessage(str(e)) from e
