"""Principal: the authenticated name of a client, as in Kafka's ``KafkaPrincipal``. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """Type and name of a client; ``User:alice`` as text.

    `is_token`: it logged in with a delegation token (KIP-48).
    """

    type: str
    name: str
    is_token: bool = False

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Principal of a client that did not authenticate: every client of a PLAINTEXT listener."""
