"""Seal of one connection: raw bytes in, clear bytes out, and the reverse, over OpenSSL's memory buffers.

`Seal` is the port; `OpenSslSeal` is done with ``ssl.SSLObject``. It gives OpenSSL one whole record at a time:
so a torn record costs no failed call, and records that bring no byte for the application (key updates, empty
ones) are counted. Neither buffer of OpenSSL grows beyond a handshake's step or `SEALED_AT_ONCE_BYTES`: memory
that it has once taken it keeps for the life of the connection.
"""

from __future__ import annotations

import ssl
from typing import Final, Protocol

from service.base.errors import FirnError
from service.base.printable import printable
from service.base.types import Buffer

RECORD_BYTES: Final = 16 << 10
"""Most clear bytes of a record."""
SEALED_AT_ONCE_BYTES: Final = 2 * RECORD_BYTES
MOST_RAW_RECORD_BYTES: Final = RECORD_BYTES + 2048
"""Most sealed bytes of a record, without its head (RFC 5246, 6.2.3)."""
MOST_QUIET_RECORDS: Final = 64
"""Records in a row without a byte for the application; more are a flood."""
HEAD_BYTES: Final = 5
_CHANGE: Final = b"\x14\x03\x03\x00\x01\x01"
"""The record that TLS 1.3 has for the sake of old boxes between the two."""
_SEALED: Final = b"\x17"
_MOST_RETRY_BYTES: Final = 150
"""Most bytes of a HelloRetryRequest, after which another ClientHello comes, with all the work still to do."""


class SealBroken(FirnError):
    """Raw bytes that are not what the peer sealed, or a handshake that failed. The text is one line."""


class Seal(Protocol):
    """Cipher of one connection. For one thread at a time; raises `SealBroken`, after which only `take_raw`
    may be called, for the alert that tells the peer why.
    """

    @property
    def is_ended(self) -> bool:
        """True once the peer has said that it sends no more (``close_notify``)."""

    @property
    def is_ready(self) -> bool:
        """True while `read_into` may have something to say; not after it returned 0, until `feed`."""

    def handshake(self, raw: Buffer) -> bool:
        """Take the peer's next bytes; return whether the handshake is done. `take_raw` has the answer."""

    def is_last_step(self, raw: Buffer) -> bool:
        """Return whether `raw` can only end the handshake, in 0.05 ms: the client's Finished of TLS 1.3, with
        no certificate."""

    def feed(self, raw: memoryview) -> None:
        """Take sealed bytes. They are read in place: until `read_into` returned 0, or `keep` was called."""

    def keep(self) -> None:
        """Copy what is left of the bytes of `feed`, whose memory is used again."""

    def read_into(self, view: memoryview) -> int:
        """Write clear bytes into `view`, as many as are there and fit; return their number.

        0: more raw bytes are needed, or `is_ended`.
        """

    def write(self, data: Buffer) -> bytes:
        """Return `data`, at most `SEALED_AT_ONCE_BYTES`, sealed."""

    def take_raw(self) -> bytes:
        """Return the bytes that go to the peer by themselves: of the handshake, alerts, key updates."""

    def close_notify(self) -> bytes:
        """Return the bytes that tell the peer that no more comes."""

    def peer_certificate(self) -> bytes | None:
        """Return the peer's verified certificate, DER; None if it gave none, or need not."""


class OpenSslSeal:
    """`Seal` by ``ssl.SSLObject``."""

    __slots__ = (
        "_at", "_head", "_incoming", "_is_server", "_missing", "_object", "_outgoing", "_quiet", "_raw",
        "_told_bytes", "is_ended",
    )  # fmt: skip

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        except ValueError as e:  # a name that no certificate can have
            raise SealBroken(printable(str(e))) from e
        self._is_server = server_side
        self._told_bytes = 0
        """of this side's part of the handshake"""
        self._raw = memoryview(b"")
        self._at = 0
        self._head = bytearray()
        """the beginning of a record whose head is torn"""
        self._missing = 0
        """bytes of the current record that OpenSSL has not got"""
        self._quiet = 0
        self.is_ended = False

    @property
    def is_ready(self) -> bool:
        return not self.is_ended and (self._at < len(self._raw) or self._object.pending() > 0)

    def handshake(self, raw: Buffer) -> bool:
        self._incoming.write(raw)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._told_bytes += self._outgoing.pending
            return False
        except (ssl.SSLError, ValueError) as e:
            raise SealBroken(why(e)) from e
        # What came behind the handshake goes through the count of records.
        self._raw, self._at = memoryview(self._incoming.read()), 0
        return True

    def is_last_step(self, raw: Buffer) -> bool:
        openssl, at = self._object, len(_CHANGE) if raw[: len(_CHANGE)] == _CHANGE else 0
        return (
            self._is_server
            and raw[at : at + 1] == _SEALED
            and self._told_bytes > _MOST_RETRY_BYTES
            and openssl.context.verify_mode == ssl.CERT_NONE
        )

    def feed(self, raw: memoryview) -> None:
        self._raw = raw if self._at == len(self._raw) else memoryview(bytes(self._raw[self._at :]) + raw)
        self._at = 0

    def keep(self) -> None:
        self._raw, self._at = memoryview(bytes(self._raw[self._at :])), 0

    def read_into(self, view: memoryview) -> int:
        openssl, room, filled = self._object, len(view), 0
        try:
            while filled < room and not self.is_ended:
                if not openssl.pending() and not self._give_record():
                    break
                try:
                    count = openssl.read(room - filled, view[filled:] if filled else view)
                except ssl.SSLWantReadError:
                    self._quiet += 1
                    if self._quiet > MOST_QUIET_RECORDS:
                        raise SealBroken(f"{self._quiet} records in a row brought no byte") from None
                    continue
                filled += count  # type: ignore[operator]
                self._quiet = 0
                self.is_ended = not count
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as e:
            raise SealBroken(why(e)) from e
        return filled

    def _give_record(self) -> bool:
        """Give OpenSSL the next bytes of a record; return whether it has the whole of one."""
        raw, at = self._raw, self._at
        if not self._missing:
            head: Buffer = raw[at : at + HEAD_BYTES]
            if self._head or len(head) < HEAD_BYTES:
                more = raw[at : at + HEAD_BYTES - len(self._head)]
                self._head += more
                self._at = at = at + len(more)
                if len(self._head) < HEAD_BYTES:
                    return False
                head, self._head = self._head, bytearray()
                self._incoming.write(head)
                self._missing = head[3] << 8 | head[4]
                size = self._missing
            else:
                size = head[3] << 8 | head[4]
                self._missing = HEAD_BYTES + size
            if size > MOST_RAW_RECORD_BYTES:
                raise SealBroken(f"a record of {size} bytes")
        part = raw[at : at + self._missing]
        self._incoming.write(part)
        self._missing -= len(part)
        self._at = at + len(part)
        return not self._missing

    def write(self, data: Buffer) -> bytes:
        try:
            self._object.write(data)
        except ssl.SSLError as e:
            raise SealBroken(why(e)) from e
        return self._outgoing.read()

    def take_raw(self) -> bytes:
        return self._outgoing.read() if self._outgoing.pending else b""

    def close_notify(self) -> bytes:
        try:
            self._object.unwrap()
        except ssl.SSLError:
            # The peer's own close_notify is not waited for.
            return self.take_raw()
        return self.take_raw()

    def peer_certificate(self) -> bytes | None:
        return self._object.getpeercert(binary_form=True)


def why(error: Exception) -> str:
    """Return OpenSSL's reason in words, without the place in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {printable(error.verify_message)}"
    reason = getattr(error, "reason", None)
    return printable(reason.lower().replace("_", " ") if reason else str(error))
