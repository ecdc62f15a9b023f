"""Delegation tokens (KIP-48): what one says, its password, and what a login with one asks. [P]

A token is an id that its owner's name stands behind. Its password is the HMAC of the id under the key that
all nodes share (``delegation.token.secret.key``), in base64: the metadata has the id, and only a node with
the key can tell the password. A client logs in with both, by SCRAM with the extension ``tokenauth=true``.

Source: Kafka ``TokenInformation``, ``DelegationTokenManager``, ``DelegationTokenCache``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import NamedTuple

from service.config.tokens import TokenConfig
from service.security.principal import USER, Principal


class DelegationToken(NamedTuple):
    """A token as the metadata has it; times in ms since the epoch.

    `owner` is who its client is; `requester` asked for it; `renewers` may renew and expire it, as the owner
    may. It is of no use after `expiry_ms`, which is renewed until `max_ms`.
    """

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Return whether its time is over."""
        return self.max_ms < now_ms or self.expiry_ms < now_ms

    def may_be_renewed_by(self, principal: Principal) -> bool:
        """Return whether `principal` may renew and expire it. The requester may not, as in Kafka."""
        return is_among(principal, (self.owner, *self.renewers))

    def is_of(self, principal: Principal) -> bool:
        """Return whether `principal` is its owner, its requester or one of its renewers."""
        return is_among(principal, (self.owner, self.requester, *self.renewers))


def is_among(principal: Principal, others: tuple[Principal, ...]) -> bool:
    """Return whether type and name of `principal` are those of one of `others`."""
    return any(principal[:2] == one[:2] for one in others)


def parse_principal(text: str) -> Principal:
    """Return the principal in a record, ``User:alice``. Raises `ValueError` without a colon, as Kafka.

    >>> parse_principal("User:a:b")
    Principal(type='User', name='a:b', is_token=False)
    """
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"not a principal: {text!r:.100}")
    return Principal(kind, name)


class TokenSecret:
    """The key of all tokens' passwords. Nothing shows it."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        """`key`: not empty."""
        self._key = key

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC-SHA-512 of a token's id: what its client has beside the id."""
        import hmac  # a node without tokens does not load it

        return hmac.digest(self._key, token_id.encode("utf-8", "surrogatepass"), "sha512")

    def password_of(self, token_id: str) -> bytes:
        """Return the password with which a client logs in as the token's owner."""
        return base64.b64encode(self.hmac_of(token_id))

    def __repr__(self) -> str:
        return "TokenSecret([hidden])"


class TokenRules(NamedTuple):
    """Settings of tokens. `secret`: None where there are none."""

    secret: TokenSecret | None = None
    max_lifetime_ms: int = 604_800_000
    """longest life of a token (delegation.token.max.lifetime.ms)"""
    expiry_time_ms: int = 86_400_000
    """time until it has to be renewed (delegation.token.expiry.time.ms)"""


def token_rules(config: TokenConfig) -> TokenRules:
    """Return the rules that `config` says."""
    key = config.secret_key
    secret = None if key is None else TokenSecret(key.reveal().encode())
    return TokenRules(secret, config.max_lifetime_ms, config.expiry_time_ms)


class TokenLookup:
    """Tokens that let their clients in, as the metadata has them now."""

    __slots__ = ("_find", "_now_ms", "secret")

    def __init__(
        self, secret: TokenSecret, find: Callable[[str], DelegationToken | None], now_ms: Callable[[], int]
    ) -> None:
        """`find` returns the token of an id; `now_ms` the time since the epoch."""
        self.secret = secret
        self._find = find
        self._now_ms = now_ms

    def find(self, token_id: str) -> DelegationToken | None:
        """Return the token of this id, unless its time is over, or its owner is no user (only users log in;
        Kafka takes the owner's name for a user's)."""
        found = self._find(token_id)
        if found is None or found.is_expired(self._now_ms()) or found.owner.type != USER:
            return None
        return found
