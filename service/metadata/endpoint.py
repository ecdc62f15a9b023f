"""Endpoint of a node's listener. [P]"""

from __future__ import annotations

from typing import NamedTuple


class Endpoint(NamedTuple):
    """Listener's address for other nodes. Protocols: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: int
    security_protocol: int = 0
