"""The socket below a transport, encrypted or not."""

from __future__ import annotations

import asyncio
import socket


def socket_of(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Return the socket for options and questions alone; None where there is none, as in memory.

    What is written to it would go around the cipher of a transport with TLS, whose own ``socket`` is None.
    """
    found: socket.socket | None = transport.get_extra_info("socket")
    return transport.get_extra_info("raw_socket") if found is None else found
