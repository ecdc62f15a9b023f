"""Conditions under which new stores may replace old ones while a node runs (Kafka `SslFactory`)."""

from __future__ import annotations

from service.base.errors import ConfigError
from service.network.tls.contexts import TlsContext, shake_hands
from service.network.tls.engine import SealBroken
from service.security.certificates import Certificate


def check_stores(old: TlsContext, new: TlsContext) -> None:
    """Raise `ConfigError` where a store is added or taken away, or names a certificate that it did not."""
    if (old.keys is None) != (new.keys is None):
        what = "added to" if old.keys is None else "taken from"
        raise ConfigError(f"a key store cannot be {what} a running listener")
    if old.trust is None and new.trust is not None:
        raise ConfigError("a trust store cannot be added to a running listener")
    if old.keys is None or new.keys is None:
        return
    before, after = old.keys.own, new.keys.own
    if not new.settings.allow_dn_changes and not _is_same_name(before, after):
        raise ConfigError(
            f"{new.keys.source}: the certificate is for {after.name!r} instead of {before.name!r}; "
            "ssl.allow.dn.changes=true would allow that"
        )
    if not new.settings.allow_san_changes and before.alternative_names - after.alternative_names:
        raise ConfigError(
            f"{new.keys.source}: the certificate lacks alternative names that the old one has; "
            "ssl.allow.san.changes=true would allow that"
        )


def _is_same_name(one: Certificate, other: Certificate) -> bool:
    return one.subject == other.subject or one.name.lower() == other.name.lower()


def check_handshakes(server: TlsContext, client: TlsContext) -> None:
    """Raise `ConfigError` unless the two can shake hands: nodes have to reach each other during a change."""
    try:
        shake_hands(server.openssl, client.openssl)
    except SealBroken as e:
        raise ConfigError(f"brokers could not connect to each other: {e}") from e
