"""First bytes of connections that speak something else than their listener expects. [P]

>>> first_bytes_of(b"GET / HTTP/1.1"), first_bytes_of(bytes.fromhex("16030100fa010000f6"))
('HTTP', 'a TLS ClientHello')
"""

from __future__ import annotations

from typing import Final

from service.base.types import Buffer

TLS: Final = "a TLS ClientHello"
HTTP: Final = "HTTP"
TLS_HANDSHAKE: Final = b"\x16\x03"
"""Type and major version of the record that a ClientHello is in (RFC 8446, 5.1)."""
_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PATC", b"TRAC", b"PRI ")
_MOST_API_KEY: Final = 1000
_MOST_API_VERSION: Final = 100
_MOST_FRAME: Final = 100 << 20


def first_bytes_of(data: Buffer) -> str:
    """Return what the first four bytes or more belong to: TLS, HTTP, a Kafka request, or nothing known."""
    start = bytes(data[:8])
    if start.startswith(TLS_HANDSHAKE):
        return TLS
    if start.startswith(_METHODS):
        return HTTP
    size, key, version = (int.from_bytes(one, "big") for one in (start[:4], start[4:6], start[6:8]))
    if size <= _MOST_FRAME and key <= _MOST_API_KEY and version <= _MOST_API_VERSION:
        return "a Kafka request without TLS"
    return "an unknown protocol"
