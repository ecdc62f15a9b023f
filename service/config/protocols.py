"""Security protocols of listeners. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from service.base.errors import ConfigError
from service.config.keys import Value


class SecurityProtocol(IntEnum):
    """Protocols by their number in metadata records (Kafka `SecurityProtocol`)."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def read_protocols(
    value: Value, listeners: Sequence[str], controllers: Sequence[str]
) -> dict[str, SecurityProtocol]:
    """Return the protocol by listener name, from `value` of `listener.security.protocol.map`.

    Without a value a protocol is that of the listener of its name, and the `controllers`' are PLAINTEXT
    unless any listener is secured (Kafka `AbstractKafkaConfig.effectiveListenerSecurityProtocolMap`).
    """
    if value is not None:
        return _parse_map(str(value))
    protocols = {one.name: one for one in SecurityProtocol}
    plaintext = SecurityProtocol.PLAINTEXT
    if all(protocols.get(name, plaintext) is plaintext for name in (*listeners, *controllers)):
        protocols.update(dict.fromkeys(controllers, plaintext))
    return protocols


def _parse_map(text: str) -> dict[str, SecurityProtocol]:
    key = "listener.security.protocol.map"
    protocols: dict[str, SecurityProtocol] = {}
    for entry in text.split(","):
        name, separator, protocol = (part.strip() for part in entry.rpartition(":"))
        if not separator or not name:
            raise ConfigError(f"{key}: expected NAME:PROTOCOL, found {entry.strip()!r}")
        if name.upper() in protocols:
            raise ConfigError(f"{key}: {name.upper()} appears twice")
        if protocol.upper() not in SecurityProtocol.__members__:
            raise ConfigError(f"Invalid security protocol `{protocol}` defined in {key}")
        protocols[name.upper()] = SecurityProtocol[protocol.upper()]
    return protocols
