"""SCRAM credentials of users, as the metadata image holds them. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from service.metadata.persistent import PersistentMap


class ScramMechanism(IntEnum):
    """Kafka's ``ScramMechanism``, with its numbers in records and on the wire."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


MECHANISMS = frozenset(ScramMechanism)


class ScramCredential(NamedTuple):
    """Salt and keys of a user's password, as a server knows them; none of them is in the ``repr``."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({self.iterations} iterations)"


ScramCredentials = PersistentMap[str, Mapping[int, ScramCredential]]
"""user -> mechanism -> credential; a user without any is not in it."""
