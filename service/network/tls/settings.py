"""Settings of TLS of one listener, or of one client, under Kafka's names without ``ssl.``. [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.config.passwords import Password

TLS_12: Final = "TLSv1.2"
TLS_13: Final = "TLSv1.3"
PROTOCOLS: Final = (TLS_12, TLS_13)
NONE: Final = "none"
REQUESTED: Final = "requested"
REQUIRED: Final = "required"
CLIENT_AUTHS: Final = (NONE, REQUESTED, REQUIRED)
PEM: Final = "PEM"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of one listener, or of connections to it. A field is its key without `ssl.`, `_` for `.`.

    `client_auth`: none, requested or required, as it counts for the listener's protocol. `checks_hostname`:
    whether a certificate has to name the host that is connected to.
    """

    enabled_protocols: tuple[str, ...] = PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = NONE
    checks_hostname: bool = True
    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: Password | None = None
    key_password: Password | None = None
    keystore_key: Password | None = None
    keystore_certificate_chain: Password | None = None
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: Password | None = None
    truststore_certificates: Password | None = None
    allow_dn_changes: bool = False
    allow_san_changes: bool = False
    principal_mapping_rules: str = "DEFAULT"
