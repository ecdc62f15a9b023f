"""Fourteen messages that a peer may send to a listener with SASL, and what became of each, as a word.

Frames are built by hand: of Kafka's and Firn's codecs neither judges the other here.
"""

from __future__ import annotations

import struct
from typing import Final

USER, PASSWORD = "alice", "secret"
_RIGHT: Final = f"\0{USER}\0{PASSWORD}".encode()
_WRONG: Final = f"\0{USER}\0wrong".encode()


def _header(key: int, version: int, number: int) -> bytes:
    return struct.pack(">hhih", key, version, number, 2) + b"me"


def _handshake(version: int, mechanism: str, number: int) -> bytes:
    name = mechanism.encode()
    return _header(17, version, number) + struct.pack(">h", len(name)) + name


def authenticate(version: int, token: bytes, number: int) -> bytes:
    if version < 2:
        return _header(36, version, number) + struct.pack(">i", len(token)) + token
    return _header(36, version, number) + b"\0" + bytes([len(token) + 1]) + token + b"\0"


def _versions(version: int, name: bytes, number: int) -> bytes:
    software = bytes([len(name) + 1]) + name + b"\x021" + b"\0"
    return _header(18, version, number) + b"\0" + software


_METADATA: Final = b"\0" + b"\x01" + b"\0\0" + b"\0"
_PRODUCE: Final = struct.pack(">hhii", -1, 1, 1000, 0)
NAMES: Final = (
    "versions", "versions-99", "versions-bad", "plain", "plain-bare", "scram", "gssapi", "right", "wrong",
    "right-0", "token", "metadata", "produce", "http",
)  # fmt: skip


def message(name: str, number: int) -> bytes:
    """The message without its size; `number` is its correlation id."""
    match name:
        case "versions":
            return _versions(3, b"me", number)
        case "versions-99":
            return _versions(99, b"me", number)
        case "versions-bad":
            return _versions(3, b"", number)
        case "plain":
            return _handshake(1, "PLAIN", number)
        case "plain-bare":
            return _handshake(0, "PLAIN", number)
        case "scram":
            return _handshake(1, "SCRAM-SHA-256", number)
        case "gssapi":
            return _handshake(1, "GSSAPI", number)
        case "right":
            return authenticate(2, _RIGHT, number)
        case "wrong":
            return authenticate(2, _WRONG, number)
        case "right-0":
            return authenticate(0, _RIGHT, number)
        case "token":
            return _RIGHT
        case "metadata":
            return _header(3, 12, number) + _METADATA
        case "produce":
            return _header(0, 8, number) + _PRODUCE
        case "http":
            return b"T / HTTP/1.1\r\nHost: kafka\r\n\r\n"
    raise ValueError(name)


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def outcome(name: str, number: int, answer: bytes | None) -> str:
    """What the answer to a message says, in a word that is the same for Kafka and Firn; None: no answer."""
    if answer is None:
        return "-"
    if name == "token" and not answer:
        return "empty"
    if len(answer) < 4 or struct.unpack_from(">i", answer)[0] != number:
        return f"bytes {answer.hex()}"
    body = answer[4:]
    if name.startswith("versions"):
        return f"versions {struct.unpack_from('>h', body)[0]}"
    if name in ("plain", "plain-bare", "scram", "gssapi"):
        code, count = struct.unpack_from(">hi", body)
        return f"handshake {code} {count}"
    if name in ("right", "wrong"):
        (code,) = struct.unpack_from(">h", body, 1)
        size = body[3]
        text = body[4 : 3 + size].decode() if size else "null"
        return f"authenticate {code} {text} {body[3 + max(size, 1) :].hex()}"
    if name == "right-0":
        return f"authenticate-0 {body.hex()}"
    return f"{name} answered"
