"""Options ``kafka.…`` of the connections to brokers: addresses, security, time-outs. [P]

Names are those of librdkafka and of Kafka's Java clients, where the two agree or one of them has a word for
it. Whatever is not in the table is refused, because a client that passes over ``ssl.…`` is not the one that
was asked for. Passwords are in no ``repr``; Spark keeps out of its plans what ``spark.redaction.regex``
matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.base.errors import ConfigError
from service.security.login_settings import MECHANISMS

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LONGEST_MS: Final = 24 * 3600 * 1000
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a connection. Without `mechanism` there is no login; `ca_location` None is the system's
    certificates."""

    protocol: str = "PLAINTEXT"
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    client_id: str = "firn-spark"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    wait_max_ms: int = 500
    """How long a broker may hold a fetch that finds nothing."""
    backoff_ms: int = 100
    backoff_max_ms: int = 1_000

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


def _text(name: str, value: str) -> str:
    if not value:
        raise ConfigError(f"option kafka.{name} is empty")
    return value


def _milliseconds(name: str, value: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _LONGEST_MS):
        raise ConfigError(f"option kafka.{name} is {value!r}, not milliseconds from 1 to {_LONGEST_MS}")
    return int(text)


def _word(*words: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        word = value.strip().upper()
        if word not in words:
            raise ConfigError(f"option kafka.{name} is {value!r}, not one of {', '.join(words)}")
        return word

    return read


def _endpoint_check(name: str, value: str) -> bool:
    if (word := value.strip().lower()) not in ("https", "none", ""):
        raise ConfigError(f"option kafka.{name} is {value!r}, not https or none")
    return word == "https"


_TABLE: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "client.id": ("client_id", _text),
    "fetch.max.wait.ms": ("wait_max_ms", _milliseconds),
    "fetch.wait.max.ms": ("wait_max_ms", _milliseconds),
    "request.timeout.ms": ("request_timeout_ms", _milliseconds),
    "retry.backoff.max.ms": ("backoff_max_ms", _milliseconds),
    "retry.backoff.ms": ("backoff_ms", _milliseconds),
    "sasl.mechanism": ("mechanism", _word(*MECHANISMS)),
    "sasl.mechanisms": ("mechanism", _word(*MECHANISMS)),
    "sasl.password": ("password", _text),
    "sasl.username": ("username", _text),
    "security.protocol": ("protocol", _word(*_PROTOCOLS)),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", _milliseconds),
    "socket.timeout.ms": ("request_timeout_ms", _milliseconds),
    "ssl.ca.location": ("ca_location", _text),
    "ssl.certificate.location": ("certificate_location", _text),
    "ssl.endpoint.identification.algorithm": ("checks_hostname", _endpoint_check),
    "ssl.key.location": ("key_location", _text),
    "ssl.key.password": ("key_password", _text),
}
"""Option -> the field that it sets, and how it is read. Two options of one field are its two spellings."""

_JAVA_STORES: Final = "is Java's: write kafka.ssl.ca.location, kafka.ssl.certificate.location and "
_INSTEAD: Final = {
    "sasl.jaas.config": "is Java's: write kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": f"{_JAVA_STORES}kafka.ssl.key.location, which name PEM files",
    "ssl.keystore.location": f"{_JAVA_STORES}kafka.ssl.key.location, which name PEM files",
    "max.partition.fetch.bytes": "has a name here: fetchBytes",
    "fetch.message.max.bytes": "has a name here: fetchBytes",
    "check.crcs": "is not needed: checksums are always compared",
    "group.instance.id": "is not yours to set: offsets are kept by Spark",
    "auto.offset.reset": "is not yours to set: startingOffsets and failOnDataLoss say it",
    "enable.auto.commit": "is not yours to set: offsets are kept by Spark",
    "enable.auto.offset.store": "is not yours to set: offsets are kept by Spark",
    "key.deserializer": "is not yours to set: keys are binary",
    "value.deserializer": "is not yours to set: values are binary",
}
"""Options that people have from other clients, and what to do about them."""


def parse_client(given: Mapping[str, str]) -> ClientOptions:
    """The options, without their ``kafka.``, checked and typed. `ConfigError` for one that is not served."""
    settings: dict[str, Any] = {}
    for name in sorted(given):
        if name in _INSTEAD:
            raise ConfigError(f"option kafka.{name} {_INSTEAD[name]}")
        if name not in _TABLE:
            names = ", ".join(f"kafka.{known}" for known in _TABLE)
            raise ConfigError(f"option kafka.{name} is not served; of the client's there are {names}")
        target, read = _TABLE[name]
        value = read(name, given[name])
        if settings.setdefault(target, value) != value:
            raise ConfigError(f"option kafka.{name} is given twice, under two names")
    return _consistent(ClientOptions(**settings), given)


def _consistent(options: ClientOptions, given: Mapping[str, str]) -> ClientOptions:
    for prefix, is_used, protocols in (
        ("ssl.", options.uses_tls, "SSL or SASL_SSL"),
        ("sasl.", options.uses_sasl, "SASL_PLAINTEXT or SASL_SSL"),
    ):
        idle = [name for name in sorted(given) if name.startswith(prefix)]
        if idle and not is_used:
            raise ConfigError(
                f"option kafka.{idle[0]} says nothing without kafka.security.protocol={protocols}"
            )
    if options.uses_sasl:
        for name, value in (
            ("mechanism", options.mechanism),
            ("username", options.username),
            ("password", options.password),
        ):
            if not value:
                raise ConfigError(
                    f"kafka.security.protocol={options.protocol} needs option kafka.sasl.{name}"
                )
    if options.key_location and not options.certificate_location:
        raise ConfigError("option kafka.ssl.key.location says nothing without kafka.ssl.certificate.location")
    return options


def parse_servers(text: str) -> tuple[Address, ...]:
    """``host:port,…`` of ``bootstrap.servers``.

    >>> parse_servers("a:9092, [::1]:9093")
    (('a', 9092), ('::1', 9093))
    """
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        # Java's clients let a listener's name stand in front.
        host, colon, port = part.rpartition("://")[2].rpartition(":")
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(f"option bootstrap.servers: {part!r} is not host:port")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ConfigError("option bootstrap.servers names no broker")
    return tuple(dict.fromkeys(found))
