"""Seal without randomness: it frames what it seals, flips every bit, and adds a checksum.

OpenSSL draws keys and nonces past any seed, and lengths of signatures vary. This one keeps the manners of TLS
that the transport above depends on: records with TLS's head, a handshake of two round trips, alerts,
``close_notify``, and records that bring nothing. It hides nothing from anybody.
"""

from __future__ import annotations

import zlib
from typing import Final

from service.base.types import Buffer
from service.network.tls.engine import HEAD_BYTES, MOST_QUIET_RECORDS, RECORD_BYTES, SealBroken

ALERT: Final = 21
HANDSHAKE: Final = 22
APPLICATION: Final = 23
_VERSION: Final = b"\x03\x03"
_CLOSE: Final = b"close_notify"
_FLIP: Final = bytes(255 - byte for byte in range(256))
_SUM_BYTES: Final = 4
_HELLO, _PROOF, _FINISHED = b"hello", b"proof", b"finished"


class FakeSeal:
    """One end. `certificate` is told to the other end, which takes it for verified."""

    def __init__(self, *, server_side: bool, certificate: bytes | None = None) -> None:
        self._is_server = server_side
        self._certificate = certificate
        self._peer: bytes | None = None
        self._raw = b""
        self._clear = b""
        self._out = bytearray()
        self._quiet = 0
        self._said = 0
        """steps of the handshake that this end has taken"""
        self.is_ended = False

    @property
    def is_ready(self) -> bool:
        raw = self._raw
        is_whole = len(raw) >= HEAD_BYTES and len(raw) >= HEAD_BYTES + int.from_bytes(raw[3:5], "big")
        return not self.is_ended and (bool(self._clear) or is_whole)

    def handshake(self, raw: Buffer) -> bool:
        self._raw += bytes(raw)
        if not self._is_server and not self._said:
            self._say(_HELLO)
        while self._said < 2 and (record := self._record()) is not None:
            kind, content = record
            if kind != HANDSHAKE:
                raise SealBroken("a record before the end of the handshake")
            self._heard(content)
        return self._said == 2

    def is_last_step(self, raw: Buffer) -> bool:
        return self._is_server and self._said == 1

    def _heard(self, content: bytes) -> None:
        word, _, rest = content.partition(b":")
        expected = {(True, 0): _HELLO, (True, 1): _FINISHED, (False, 1): _PROOF}
        if expected.get((self._is_server, self._said)) != word:
            raise SealBroken("a step of the handshake that does not belong here")
        if word != _HELLO:
            self._peer = rest or None
        if self._is_server and self._said == 1:
            self._said = 2
        else:
            self._say((_PROOF if self._is_server else _FINISHED) + b":" + (self._certificate or b""))

    def _say(self, content: bytes) -> None:
        self._said += 1
        self._out += sealed_record(HANDSHAKE, content)

    def feed(self, raw: memoryview) -> None:
        self._raw += bytes(raw)

    def keep(self) -> None:
        """Do nothing: all that is fed is copied."""

    def read_into(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view) and not self.is_ended:
            if not self._clear and not self._next_clear():
                break
            piece = self._clear[: len(view) - filled]
            view[filled : filled + len(piece)] = piece
            self._clear = self._clear[len(piece) :]
            filled += len(piece)
        return filled

    def _next_clear(self) -> bool:
        """Take records until one brings clear bytes."""
        while not self._clear and (record := self._record()) is not None:
            kind, content = record
            if kind == ALERT and content == _CLOSE:
                self.is_ended = True
                return False
            if kind not in (APPLICATION, HANDSHAKE):
                raise SealBroken("an alert")
            self._clear = content if kind == APPLICATION else b""
            self._quiet = 0 if self._clear else self._quiet + 1
            if self._quiet > MOST_QUIET_RECORDS:
                raise SealBroken(f"{self._quiet} records in a row brought no byte")
        return bool(self._clear)

    def _record(self) -> tuple[int, bytes] | None:
        """Return type and content of the next whole record."""
        raw = self._raw
        if len(raw) < HEAD_BYTES:
            return None
        size = int.from_bytes(raw[3:5], "big")
        if raw[1:3] != _VERSION or size > RECORD_BYTES + _SUM_BYTES or size < _SUM_BYTES:
            raise SealBroken("a head that is none")
        if len(raw) < HEAD_BYTES + size:
            return None
        content = raw[HEAD_BYTES : HEAD_BYTES + size].translate(_FLIP)
        self._raw = raw[HEAD_BYTES + size :]
        told = int.from_bytes(content[:_SUM_BYTES], "big")
        content = content[_SUM_BYTES:]
        if told != zlib.crc32(content, raw[0]):
            raise SealBroken("a record whose sum is wrong")
        return raw[0], content

    def write(self, data: Buffer) -> bytes:
        data = bytes(data)
        return b"".join(
            sealed_record(APPLICATION, data[at : at + RECORD_BYTES])
            for at in range(0, len(data), RECORD_BYTES)
        )

    def take_raw(self) -> bytes:
        raw, self._out = bytes(self._out), bytearray()
        return raw

    def close_notify(self) -> bytes:
        return self.take_raw() + sealed_record(ALERT, _CLOSE)

    def peer_certificate(self) -> bytes | None:
        return self._peer


def sealed_record(kind: int, content: bytes) -> bytes:
    """Return one record."""
    body = (zlib.crc32(content, kind).to_bytes(_SUM_BYTES, "big") + content).translate(_FLIP)
    return bytes((kind,)) + _VERSION + len(body).to_bytes(2, "big") + body
