"""Security of a node's connections to other nodes, from its settings."""

from __future__ import annotations

from collections.abc import Callable

from service.base.errors import ConfigError
from service.client.security import PLAINTEXT, Security, credentials_of
from service.config.security import OutgoingSecurity


def outgoing_security(outgoing: OutgoingSecurity | None, new_nonce: Callable[[], str]) -> Security:
    """Return the security of connections to other nodes; PLAINTEXT where a node makes none.

    Raises `ConfigError`. `new_nonce`: as that of `Credentials`.
    """
    if outgoing is None or outgoing.mechanism is None or outgoing.jaas is None:
        return PLAINTEXT
    try:
        return Security(None, credentials_of(outgoing.mechanism, outgoing.jaas.reveal(), new_nonce))
    except ConfigError as e:
        raise ConfigError(f"connections to listener {outgoing.listener}: {e}") from e
