"""SCRAM credentials of users, as the metadata image holds them. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from service.metadata.persistent import PersistentMap
from service.security.scram_credential import SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential


class ScramMechanism(IntEnum):
    """Kafka's ``ScramMechanism``, with its numbers in records and on the wire."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


MECHANISMS = frozenset(ScramMechanism)
NUMBERS = {SCRAM_SHA_256: ScramMechanism.SCRAM_SHA_256, SCRAM_SHA_512: ScramMechanism.SCRAM_SHA_512}
"""by SASL's name"""


ScramCredentials = PersistentMap[str, Mapping[int, ScramCredential]]
"""user -> mechanism -> credential; a user without any is not in it."""
