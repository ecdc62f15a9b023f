"""Keys of TLS. [P]

From Apache Kafka's `SslConfigs` and `BrokerSecurityConfigs` of 4.3.1.
"""

from __future__ import annotations

from typing import Final

from service.config.keys import ConfigKey, ConfigType, Value
from service.config.tables.columns import BOOLEAN, INT, LIST, PASSWORD, STRING, key

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
HTTPS: Final = "https"


def _identification_problem(text: str) -> str | None:
    return None if text.lower() in ("", HTTPS) else "only https, and the empty text for no check, are known"


def _of_store(name: str, type: ConfigType, default: Value, doc: str, **more: object) -> ConfigKey:
    """Return a key of a store, which one listener of a running broker can change (Kafka's
    `RECONFIGURABLE_CONFIGS`); but no password goes into the metadata log."""
    return key(
        name, type, default, doc, per_listener=True, listener_dynamic=type is not PASSWORD, **more
    )  # fmt: skip


SSL: Final = (
    key(
        "ssl.enabled.protocols", LIST, TLS_VERSIONS,
        "Versions of TLS. Empty: both.",
        one_of=TLS_VERSIONS, per_listener=True,
    ),
    key(
        "ssl.cipher.suites", LIST, (),
        "Cipher suites, by their IANA names. Empty: those of OpenSSL.",
        per_listener=True,
    ),
    key(
        "ssl.client.auth", STRING, "none",
        "Whether clients of an SSL listener have to give a certificate: `required`, `requested` or `none`. "
        "For a SASL_SSL listener only what is set with the listener's prefix counts.",
        one_of=("required", "requested", "none"), per_listener=True,
    ),
    key(
        "ssl.endpoint.identification.algorithm", STRING, HTTPS,
        "Whether this node checks that the certificate of a node it connects to names its host: `https`, or "
        "empty for no check.",
        check=_identification_problem, per_listener=True,
    ),
    _of_store(
        "ssl.keystore.type", STRING, "JKS",
        "Format of the key store, as Kafka's files say it. The store's content decides; `PEM` is needed for "
        "keys and certificates that stand in the configuration itself. A store that is JKS is refused.",
        one_of=("JKS", "PKCS12", "PEM"), any_case=True,
    ),
    _of_store(
        "ssl.keystore.location", STRING, None,
        "File with the listener's private key and certificate chain, PEM or PKCS12.",
    ),
    _of_store(
        "ssl.keystore.password", PASSWORD, None,
        "Password of the key store; not for PEM.",
    ),
    _of_store(
        "ssl.key.password", PASSWORD, None,
        "Password of the private key in the key store or in `ssl.keystore.key`.",
    ),
    _of_store(
        "ssl.keystore.key", PASSWORD, None,
        "Private key in PEM (PKCS 8), instead of a file.",
    ),
    _of_store(
        "ssl.keystore.certificate.chain", PASSWORD, None,
        "Certificate chain in PEM, for `ssl.keystore.key`.",
    ),
    _of_store(
        "ssl.truststore.type", STRING, "JKS",
        "Format of the trust store; as `ssl.keystore.type`.",
        one_of=("JKS", "PKCS12", "PEM"), any_case=True,
    ),
    _of_store(
        "ssl.truststore.location", STRING, None,
        "File with the certificates that are trusted, PEM or PKCS12.",
    ),
    _of_store(
        "ssl.truststore.password", PASSWORD, None,
        "Password of the trust store; not for PEM.",
    ),
    _of_store(
        "ssl.truststore.certificates", PASSWORD, None,
        "Certificates that are trusted, in PEM, instead of a file.",
    ),
    key(
        "ssl.allow.dn.changes", BOOLEAN, False,
        "Whether a new certificate of a running listener may have another distinguished name.",
        per_listener=True,
    ),
    key(
        "ssl.allow.san.changes", BOOLEAN, False,
        "Whether a new certificate of a running listener may lack alternative names that the old one has.",
        per_listener=True,
    ),
    key(
        "ssl.principal.mapping.rules", STRING, "DEFAULT",
        "Rules that turn the distinguished name of a client's certificate into the name of its principal, as "
        "in Kafka: `RULE:pattern/replacement/[LU]` or `DEFAULT`, separated by commas; the first that matches "
        "counts.",
        per_listener=True,
    ),
    key(
        "firn.ssl.reload.interval.ms", INT, 10_000,
        "Time between two looks at the files of stores, and at `firn.http.token.file`; a changed one is "
        "loaded. 0: never.",
        at_least=0,
    ),
    key(
        "firn.ssl.expire.sessions", BOOLEAN, False,
        "Whether a connection to an SSL listener is closed at its first request after its client's "
        "certificate has ended. As in Kafka, it goes on otherwise.",
    ),
    key(
        "firn.tls.handshakes", INT, 256,
        "Most TLS handshakes under way; further connections wait for theirs.",
        at_least=1,
    ),
)  # fmt: skip
