"""SCRAM credential of a user, which metadata holds; logins with it are in `scram`. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"


class ScramCredential(NamedTuple):
    """Keys of one password for one mechanism; neither can be used to log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({self.iterations} iterations)"
