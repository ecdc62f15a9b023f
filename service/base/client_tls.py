"""TLS of connections to others: a holder of the context, which is replaced when certificates change."""

from __future__ import annotations

import ssl


class ClientTls:
    """`context` is for connections from now on, and may be replaced at any time."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context


class TlsFailed(ConnectionError):
    """The handshake failed, or the peer has broken the cipher."""
