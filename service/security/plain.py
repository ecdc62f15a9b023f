"""SASL PLAIN (RFC 4616): a user's name and password in one token. [P]

Source: Kafka ``PlainSaslServer`` and ``PlainServerCallbackHandler``; users are the options ``user_NAME`` of
the listener's `sasl.jaas.config`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from service.security.sasl_server import Evaluation, SaslRefused

PLAIN: Final = "PLAIN"
_USER_PREFIX: Final = "user_"
_MOST_BYTES: Final = 64 << 10
"""Longest token. RFC 4616 asks for names and passwords of 255 octets; more would only cost time."""
_PARTS: Final = 3
OTHER_AUTHZID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_WRONG: Final = "Authentication failed: Invalid username or password"


class PlainUsers:
    """Users of a listener with the digests of their passwords, which no ``repr`` shows."""

    __slots__ = ("_digests",)

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are those of the login module; all but ``user_NAME`` are passed over."""
        self._digests = {
            key.removeprefix(_USER_PREFIX): hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
            for key, password in options.items()
            if key.startswith(_USER_PREFIX)
        }

    def __repr__(self) -> str:
        return f"PlainUsers({len(self._digests)} users)"

    def matches(self, name: str, password: bytes) -> bool:
        """Return whether this is the password of `name`, in the same time whether `name` exists or not."""
        known = self._digests.get(name)
        given = hashlib.sha256(password).digest()
        return hmac.compare_digest(given, _NOBODYS if known is None else known) and known is not None


_NOBODYS: Final = bytes(32)


class PlainServer:
    """The server's side of one login."""

    __slots__ = ("_users",)

    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def evaluate(self, token: bytes) -> Evaluation:
        """Check the only token. Raises `SaslRefused`."""
        if len(token) > _MOST_BYTES:
            raise SaslRefused(f"PLAIN: a token of {len(token)} bytes", _WRONG)
        parts = token.split(b"\0", _PARTS)
        if len(parts) != _PARTS:
            told = f"Invalid SASL/PLAIN response: expected {_PARTS} tokens, got {len(parts)}"
            raise SaslRefused(told, told)
        authzid, name_bytes, password = parts
        for part, word in ((name_bytes, "username"), (password, "password")):
            if not part:
                raise SaslRefused(f"PLAIN: no {word}", f"Authentication failed: {word} not specified")
        try:
            name = name_bytes.decode()
        except UnicodeDecodeError:
            raise SaslRefused("PLAIN: a name that is not UTF-8", _WRONG) from None
        if not self._users.matches(name, password):
            raise SaslRefused("PLAIN: wrong name or password", _WRONG)
        if authzid and authzid != name_bytes:
            raise SaslRefused("PLAIN: another authorization id", OTHER_AUTHZID)
        return Evaluation(b"", name)
