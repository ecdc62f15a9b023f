"""OpenSSL contexts of listeners and clients, made of settings and stores; a new one replaces the old."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

from service.base.errors import ConfigError, StorageError
from service.base.memory_file import memory_file
from service.config.security import TlsSettings
from service.network.tls.cipher_suites import TLS_12, TLS_13, choose_suites
from service.network.tls.engine import OpenSslSeal, SealBroken, why
from service.network.tls.stores import KeyStore, Stores, TrustStore

_VERSIONS: Final = {TLS_12: ssl.TLSVersion.TLSv1_2, TLS_13: ssl.TLSVersion.TLSv1_3}
_MOST_SHAKES: Final = 20


class TlsContext(NamedTuple):
    """A context, and what it was made of."""

    openssl: ssl.SSLContext
    settings: TlsSettings
    keys: KeyStore | None
    trust: TrustStore | None


def server_context(settings: TlsSettings, stores: Stores) -> TlsContext:
    """Return the context of a listener. Raises `ConfigError`."""
    keys, trust = stores
    if keys is None:
        raise ConfigError("ssl.keystore.location or ssl.keystore.key has to be set for a listener")
    context = _bare(ssl.PROTOCOL_TLS_SERVER, settings)
    if settings.client_auth == "none":
        context.verify_mode = ssl.CERT_NONE
        context.num_tickets = 1  # as Java; each takes 0.02 ms
    else:
        is_asked = settings.client_auth == "requested"
        context.verify_mode = ssl.CERT_OPTIONAL if is_asked else ssl.CERT_REQUIRED
        # A resumed session brings no certificate. Python cannot switch off TLS 1.2's resumption by its id:
        # `TlsListener` looks at the end of a certificate again; those above it are verified at first alone.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    _load(context, keys, trust)
    return TlsContext(context, settings, keys, trust)


def client_context(settings: TlsSettings, stores: Stores) -> TlsContext:
    """Return the context of connections to others. Raises `ConfigError`.

    Without a trust store the system's certificates are trusted.
    """
    keys, trust = stores
    context = _bare(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.checks_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, keys, trust)
    return TlsContext(context, settings, keys, trust)


def _bare(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    """Return a context with protocols and suites, and without anything that an attacker would like."""
    context = ssl.SSLContext(protocol)
    names = {one["id"] & 0xFFFF: one["name"] for one in context.get_ciphers()}
    chosen = choose_suites(settings.cipher_suites, settings.enabled_protocols, names)
    if chosen.openssl is not None:
        context.set_ciphers(chosen.openssl)
    versions = [_VERSIONS[one] for one in chosen.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    # As in Java, a certificate of the trust store is trusted although its own issuer is not in there.
    context.verify_flags = context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _load(context: ssl.SSLContext, keys: KeyStore | None, trust: TrustStore | None) -> None:
    if trust is not None:
        try:
            context.load_verify_locations(cadata=b"".join(trust.certificates))
        except (ssl.SSLError, ValueError) as e:
            raise ConfigError(f"{trust.source}: {why(e)}") from e
    elif context.verify_mode != ssl.CERT_NONE:
        context.load_default_certs()
    if keys is not None:
        _load_keys(context, keys)


def _load_keys(context: ssl.SSLContext, keys: KeyStore) -> None:
    # Without a function OpenSSL would ask for a password on the terminal.
    try:
        with memory_file(keys.pem) as path:
            context.load_cert_chain(path, password=lambda: keys.password.reveal() if keys.password else "")
    except StorageError as e:
        raise ConfigError(f"{keys.source}: {e}") from e
    except (ssl.SSLError, OSError, ValueError) as e:
        text = why(e)
        if "mismatch" in text:
            text = "the private key does not belong to the certificate"
        elif "lib" in text or "decrypt" in text:
            text = "the private key cannot be read: ssl.key.password is another, or it is damaged"
        raise ConfigError(f"{keys.source}: {text}") from e


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Try a handshake between two contexts, in memory. Raises `SealBroken`.

    `client` must not check the server's name: there is none.
    """
    one, other = OpenSslSeal(server, server_side=True), OpenSslSeal(client, server_side=False)
    is_server_done = is_client_done = False
    for _ in range(_MOST_SHAKES):
        is_client_done = is_client_done or other.handshake(one.take_raw())
        is_server_done = is_server_done or one.handshake(other.take_raw())
        if is_server_done and is_client_done:
            return
    raise SealBroken("the handshake does not end")
