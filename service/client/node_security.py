"""Security of a node's connections to other nodes, from its settings."""

from __future__ import annotations

from collections.abc import Callable

from service.base.client_tls import ClientTls
from service.base.disk import Disk
from service.base.errors import ConfigError
from service.client.security import PLAINTEXT, Security, credentials_of, file_credentials
from service.config.security import OutgoingSecurity


def outgoing_security(
    outgoing: OutgoingSecurity | None, new_nonce: Callable[[], str], tls: ClientTls | None, disk: Disk
) -> Security:
    """Return the security of connections to other nodes; PLAINTEXT where a node makes none.

    Raises `ConfigError`. `new_nonce`: as that of `Credentials`. `tls`: what `outgoing` says of it, loaded.
    `disk` has this node's token.
    """
    if outgoing is None:
        return PLAINTEXT
    if outgoing.mechanism is None or outgoing.jaas is None:
        return Security(tls)
    try:
        if outgoing.token_path is not None:
            return Security(tls, file_credentials(outgoing.token_path, outgoing.jaas.reveal(), disk))
        return Security(tls, credentials_of(outgoing.mechanism, outgoing.jaas.reveal(), new_nonce))
    except ConfigError as e:
        raise ConfigError(f"connections to listener {outgoing.listener}: {e}") from e
