"""Security of a node's listeners and of its connections to other nodes: settings, checked at start. [P]

`read_security` turns the values of all keys into one immutable object. What it refuses would not work;
`security_complaints` has what is doubtful. Sources: Kafka `ChannelBuilders`, `JaasContext`,
`KafkaConfig.validateValues`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.config.keys import Value
from service.config.listeners import Listener, Listeners
from service.config.oauthbearer import (
    OAUTHBEARER,
    OAuthBearerSettings,
    misplaced_handlers,
    read_oauthbearer,
    read_token_path,
)
from service.config.overrides import PREFIX, is_set_for, value_for
from service.config.passwords import Password
from service.config.protocols import SecurityProtocol
from service.config.security_complaints import security_complaints
from service.config.suggestions import did_you_mean
from service.config.tables.ssl import HTTPS, TLS_VERSIONS

SERVED_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
_JAAS: Final = "sasl.jaas.config"
_MECHANISMS: Final = "sasl.enabled.mechanisms"
_BROKERS_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
_CONTROLLERS_MECHANISM: Final = "sasl.mechanism.controller.protocol"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of one listener, or of connections to it. A field is its key without `ssl.`, `_` for `.`.

    `client_auth`: none, requested or required, as it counts for the listener's protocol. `checks_hostname`:
    whether a certificate has to name the host that is connected to.
    """

    enabled_protocols: tuple[str, ...] = TLS_VERSIONS
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = "none"
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


@dataclass(frozen=True, slots=True)
class MechanismSettings:
    """One SASL mechanism of a listener. `max_reauth_ms`: a login's lifetime, 0 without end.

    `oauthbearer`: how that mechanism checks tokens; None for others.
    """

    name: str
    jaas: Password
    max_reauth_ms: int
    oauthbearer: OAuthBearerSettings | None = None


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """SASL of one listener: its mechanisms in the configured order, and the largest request before login."""

    mechanisms: tuple[MechanismSettings, ...]
    max_receive_size: int

    def mechanism(self, name: str) -> MechanismSettings | None:
        """Return the mechanism of this name, None if it is not enabled."""
        return next((one for one in self.mechanisms if one.name == name), None)


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """Server's side of one listener: `tls` and `sasl` are None where its protocol has none."""

    name: str
    protocol: SecurityProtocol
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None


@dataclass(frozen=True, slots=True)
class OutgoingSecurity:
    """Client's side of a node's connections to one listener of other nodes.

    `mechanism` and `jaas` (its login module, with user and password) are None where the protocol has no SASL.
    `token_path`: file with this node's token, where the mechanism is OAUTHBEARER.
    """

    listener: str
    protocol: SecurityProtocol
    tls: TlsSettings | None = None
    mechanism: str | None = None
    jaas: Password | None = None
    token_path: str | None = None


@dataclass(frozen=True, slots=True)
class NodeSecurity:
    """Security of a node. `inter_broker` and `controller`: its connections to other brokers and controllers,
    None where it makes none. The other fields are keys, without `firn.`, `ssl.` and `connection.`."""

    listeners: tuple[ListenerSecurity, ...]
    inter_broker: OutgoingSecurity | None
    controller: OutgoingSecurity | None
    authentication_timeout_ms: int
    failed_authentication_delay_ms: int
    tls_handshakes: int
    reload_interval_ms: int
    expire_sessions: bool
    complaints: tuple[str, ...]

    @property
    def uses_tls(self) -> bool:
        """True if any listener, or any connection to other nodes, is encrypted."""
        return any(one is not None and one.tls is not None for one in (*self.listeners, *self._outgoing))

    @property
    def has_logins(self) -> bool:
        """True if clients log in on any listener."""
        return any(one.sasl is not None for one in self.listeners)

    @property
    def takes_signed_tokens(self) -> bool:
        """True if any listener takes tokens that an issuer has signed."""
        found = (one.sasl.mechanism(OAUTHBEARER) for one in self.listeners if one.sasl is not None)
        tokens = (one.oauthbearer for one in found if one is not None)
        return any(one is not None and one.key_set is not None for one in tokens)

    @property
    def _outgoing(self) -> tuple[OutgoingSecurity | None, ...]:
        return self.inter_broker, self.controller

    def listener(self, name: str) -> ListenerSecurity:
        """Return the security of a listener of this node."""
        return next(one for one in self.listeners if one.name == name)


def read_security(
    values: Mapping[str, Value],
    listeners: Listeners,
    problems: list[str],
    *,
    is_broker: bool,
    is_alone: bool,
    joins_controllers: bool,
) -> NodeSecurity:
    """Return the settings of a node with these `listeners`; add a line to `problems` for what is refused.

    `is_alone`: no other node can connect. `joins_controllers`: this is a controller, and there are others.
    """
    served = (*listeners.broker, *listeners.controller)
    secured = tuple(_listener(values, one, problems) for one in served)
    inter_broker = controller = None
    if is_broker and not is_alone:
        inter_broker = _outgoing(values, listeners, listeners.inter_broker, _BROKERS_MECHANISM, problems)
        problems.extend(_not_enabled(secured, inter_broker))
    if listeners.controller_names and not is_alone:
        first = listeners.controller_names[0]
        controller = _outgoing(values, listeners, first, _CONTROLLERS_MECHANISM, problems)
        if joins_controllers and str(controller.mechanism).startswith("SCRAM-"):
            problems.append(
                f"{_CONTROLLERS_MECHANISM}={controller.mechanism}: controllers cannot log in at each other "
                "with SCRAM: its credentials are in the log for which they first have to elect a leader. Use "
                "PLAIN, or SSL with certificates. Brokers can log in at controllers with SCRAM."
            )
    problems.extend(misplaced_handlers(values))
    every: dict[str, Any] = dict(values)
    return NodeSecurity(
        secured,
        inter_broker,
        controller,
        every["firn.authentication.timeout.ms"],
        every["connection.failed.authentication.delay.ms"],
        every["firn.tls.handshakes"],
        every["firn.ssl.reload.interval.ms"],
        every["firn.ssl.expire.sessions"],
        tuple(security_complaints(values, served, listeners)),
    )


def _listener(values: Mapping[str, Value], listener: Listener, problems: list[str]) -> ListenerSecurity:
    protocol = listener.protocol
    return ListenerSecurity(
        listener.name,
        protocol,
        _tls(values, listener.name, protocol) if protocol.uses_tls else None,
        _sasl(values, listener.name, problems) if protocol.uses_sasl else None,
    )


def _outgoing(
    values: Mapping[str, Value], listeners: Listeners, name: str, key: str, problems: list[str]
) -> OutgoingSecurity:
    """Return how this node connects to other nodes' listener `name`; the mechanism is that of `key`."""
    protocol = listeners.protocols[name]
    tls = _tls(values, name, protocol) if protocol.uses_tls else None
    if not protocol.uses_sasl:
        return OutgoingSecurity(name, protocol, tls)
    mechanism = str(values[key])
    jaas = token_path = None
    if (problem := _unserved_mechanism(mechanism)) is not None:
        problems.append(f"{key}: {problem}")
    else:
        jaas = _jaas(values, name, mechanism, problems)
        if mechanism == OAUTHBEARER:
            token_path = read_token_path(values, name, problems)
    return OutgoingSecurity(name, protocol, tls, mechanism, jaas, token_path)


def _tls(values: Mapping[str, Value], listener: str, protocol: SecurityProtocol) -> TlsSettings:
    def value(key: str) -> Any:
        return value_for(values, f"ssl.{key}", listener)

    counts = protocol is SecurityProtocol.SSL or is_set_for(values, "ssl.client.auth", listener)
    plain = ("keystore.type", "keystore.location", "keystore.password", "key.password", "keystore.key",
             "keystore.certificate.chain", "truststore.type", "truststore.location", "truststore.password",
             "truststore.certificates", "allow.dn.changes", "allow.san.changes",
             "principal.mapping.rules")  # fmt: skip
    return TlsSettings(
        enabled_protocols=value("enabled.protocols") or TLS_VERSIONS,
        cipher_suites=tuple(dict.fromkeys(value("cipher.suites"))),
        client_auth=value("client.auth") if counts else "none",
        checks_hostname=value("endpoint.identification.algorithm").lower() == HTTPS,
        **{key.replace(".", "_"): value(key) for key in plain},
    )


def _sasl(values: Mapping[str, Value], listener: str, problems: list[str]) -> SaslSettings:
    names: Any = value_for(values, _MECHANISMS, listener)
    size: Any = value_for(values, "sasl.server.max.receive.size", listener)
    mechanisms = []
    for name in dict.fromkeys(names):
        if (problem := _unserved_mechanism(name)) is not None:
            problems.append(f"{_MECHANISMS} of listener {listener}: {problem}")
        elif (jaas := _jaas(values, listener, name, problems)) is not None:
            lifetime: Any = value_for(values, "connections.max.reauth.ms", listener, name)
            tokens = read_oauthbearer(values, listener, problems) if name == OAUTHBEARER else None
            mechanisms.append(MechanismSettings(name, jaas, max(lifetime, 0), tokens))
    if not names:
        problems.append(f"{_MECHANISMS} of listener {listener} is empty: nobody could log in")
    return SaslSettings(tuple(mechanisms), size)


def _unserved_mechanism(name: str) -> str | None:
    if name in SERVED_MECHANISMS:
        return None
    hint = did_you_mean(name.upper(), SERVED_MECHANISMS)
    return f"{name} is not served{hint or '; there is ' + ', '.join(SERVED_MECHANISMS)}"


def _jaas(values: Mapping[str, Value], listener: str, mechanism: str, problems: list[str]) -> Password | None:
    """Return the login module of a mechanism, which only the prefix of both gives, as in Kafka."""
    name = f"{PREFIX}{listener.lower()}.{mechanism.lower()}.{_JAAS}"
    found = values.get(name)
    if isinstance(found, Password):
        return found
    problem = f"{name} is not set: {mechanism} on listener {listener} needs its login module"
    if problem not in problems:
        problems.append(problem)
    return None


def _not_enabled(secured: Iterable[ListenerSecurity], outgoing: OutgoingSecurity) -> Iterable[str]:
    """Check that brokers can log in at each other's listener (Kafka `KafkaConfig.validateValues`)."""
    for one in secured:
        if one.name == outgoing.listener and one.sasl is not None:
            enabled = {mechanism.name for mechanism in one.sasl.mechanisms}
            if outgoing.mechanism in SERVED_MECHANISMS and outgoing.mechanism not in enabled:
                yield (
                    f"{_BROKERS_MECHANISM} must be included in {_MECHANISMS} when SASL is used for "
                    "inter-broker communication"
                )
