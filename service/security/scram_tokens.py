"""SCRAM's credentials of delegation tokens, which are derived when they are first used. [P]

To derive one is the client's work of a login, PBKDF2 of some milliseconds, so it belongs on a thread; Kafka
does it for every token and mechanism on every node. The salt is that of an unknown user of the token's id, so
that what a node asks for does not tell whether there is such a token.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from service.security.scram import (
    MIN_ITERATIONS,
    TokenLogin,
    UnknownUsers,
    credential_from,
    salted_password,
)
from service.security.scram_credential import ScramCredential
from service.security.tokens import TokenLookup

MOST_KEPT: Final = 10_000
"""Credentials that are kept, 300 bytes each; the oldest goes, and is derived again."""


class TokenCredentials:
    """Credentials of the tokens of a node, by mechanism and id. `derive` runs on threads, all else on the
    loop."""

    __slots__ = ("_kept", "_lookup", "_most", "_unknown")

    def __init__(self, lookup: TokenLookup, unknown: UnknownUsers, most: int = MOST_KEPT) -> None:
        self._lookup = lookup
        self._unknown = unknown
        self._most = most
        self._kept: dict[tuple[str, str], ScramCredential] = {}

    def find(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return the login of a token, None for an unknown or expired one."""
        token = self._lookup.find(token_id)
        if token is None:
            return None
        kept = self._kept.get((mechanism, token_id))
        return TokenLogin(token.owner.name, token.expiry_ms, kept, partial(self.derive, mechanism, token_id))

    def derive(self, mechanism: str, token_id: str) -> ScramCredential:
        """Derive a credential and keep it, unless another thread's or an earlier call has."""
        kept = self._kept.get((mechanism, token_id))
        if kept is not None:
            return kept
        salt = self._unknown.credential(mechanism, token_id).salt
        password = self._lookup.secret.password_of(token_id)
        salted = salted_password(mechanism, password, salt, MIN_ITERATIONS)
        made = credential_from(mechanism, salted, salt, MIN_ITERATIONS)
        while len(self._kept) >= self._most:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[mechanism, token_id] = made
        return made
