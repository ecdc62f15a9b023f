"""Keys of Kafka's TLS and SASL that are refused, with the reason. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NO_CLASSES: Final = "classes cannot be loaded into a node that runs no Java"
_OPENSSL: Final = "TLS is OpenSSL's: there are no providers to choose among"
_TOKEN_FILES: Final = "tokens of nodes are read from files, by sasl.oauthbearer.token.endpoint.url=file:…"

UNSERVED_SECURITY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sasl.client.callback.handler.class": _NO_CLASSES,
        "sasl.kerberos.": "GSSAPI is not served: use SCRAM-SHA-512, or PLAIN over TLS",
        "sasl.login.class": _NO_CLASSES,
        "sasl.login.connect.": _TOKEN_FILES,
        "sasl.login.read.": _TOKEN_FILES,
        "sasl.login.refresh.": _TOKEN_FILES,
        "sasl.login.retry.": _TOKEN_FILES,
        "sasl.oauthbearer.assertion.": _TOKEN_FILES,
        "sasl.oauthbearer.client.": _TOKEN_FILES,
        "sasl.oauthbearer.header.": _TOKEN_FILES,
        "sasl.oauthbearer.scope": _TOKEN_FILES,
        "org.apache.kafka.sasl.oauthbearer.allowed.files": "no key names a file without an URL: "
        "file: URLs belong into org.apache.kafka.sasl.oauthbearer.allowed.urls",
        "security.providers": _OPENSSL,
        "ssl.engine.factory.class": _NO_CLASSES,
        "ssl.keymanager.algorithm": _OPENSSL,
        "ssl.protocol": "the versions of TLS are those of ssl.enabled.protocols",
        "ssl.provider": _OPENSSL,
        "ssl.secure.random.implementation": "random numbers are OpenSSL's",
        "ssl.trustmanager.algorithm": _OPENSSL,
    }
)
"""Names, and prefixes (those with a dot at the end)."""
