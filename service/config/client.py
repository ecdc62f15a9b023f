"""Options of a client's connections to brokers: security, time-outs. [P]

Names are those of librdkafka and of Kafka's Java clients, where the two agree or one of them has a word for
it. Whatever is not in the table is refused, because a client that passes over ``ssl.…`` is not the one that
was asked for. Passwords are in no ``repr``; Spark, whose options have ``kafka.`` in front, keeps out of its
plans what ``spark.redaction.regex`` matches. `client/security` makes a connection's security of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.base.errors import ConfigError
from service.config.oauthbearer import OAUTHBEARER
from service.config.tables.oauthbearer import LOGIN_HANDLER, RETRIEVERS

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
_LONGEST_MS: Final = 24 * 3600 * 1000
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a connection. Without `mechanism` there is no login; `ca_location` None is the system's
    certificates. `jaas`: Java's `sasl.jaas.config`, in place of username and password."""

    protocol: str = "PLAINTEXT"
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    jaas: str | None = field(default=None, repr=False)
    token_url: str | None = None
    """file: or https: a token, or who gives one for `token_client_id` and its secret, of `token_scope`"""
    token_client_id: str = ""
    token_client_secret: str = field(default="", repr=False)
    token_scope: str | None = None
    token_extensions: tuple[tuple[str, str], ...] = ()
    token_ca: str | None = None
    """certificates that are trusted where tokens come from"""
    client_id: str | None = None
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
        raise ConfigError(f"option {name} is empty")
    return value


def _milliseconds(name: str, value: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _LONGEST_MS):
        raise ConfigError(f"option {name} is {value!r}, not milliseconds from 1 to {_LONGEST_MS}")
    return int(text)


def _word(*words: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        word = value.strip().upper()
        if word not in words:
            raise ConfigError(f"option {name} is {value!r}, not one of {', '.join(words)}")
        return word

    return read


def _class(*names: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value.strip() not in names:
            raise ConfigError(f"option {name} is {value!r}; there is {', '.join(names)}")
        return value.strip()

    return read


def _extensions(name: str, value: str) -> tuple[tuple[str, str], ...]:
    pairs = [one.strip().partition("=") for one in value.split(",")]
    if not all(key and equals and text for key, equals, text in pairs):
        raise ConfigError(f"option {name} is {value!r}, not name=value,…")
    return tuple((key, text) for key, _, text in pairs)


def _endpoint_check(name: str, value: str) -> bool:
    if (word := value.strip().lower()) not in ("https", "none", ""):
        raise ConfigError(f"option {name} is {value!r}, not https or none")
    return word == "https"


_TABLE: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "client.id": ("client_id", _text),
    "fetch.max.wait.ms": ("wait_max_ms", _milliseconds),
    "fetch.wait.max.ms": ("wait_max_ms", _milliseconds),
    "https.ca.location": ("token_ca", _text),
    "request.timeout.ms": ("request_timeout_ms", _milliseconds),
    "retry.backoff.max.ms": ("backoff_max_ms", _milliseconds),
    "retry.backoff.ms": ("backoff_ms", _milliseconds),
    "sasl.jaas.config": ("jaas", _text),
    "sasl.login.callback.handler.class": ("token_handler", _class(LOGIN_HANDLER)),
    "sasl.mechanism": ("mechanism", _word(*_MECHANISMS)),
    "sasl.mechanisms": ("mechanism", _word(*_MECHANISMS)),
    "sasl.oauthbearer.client.credentials.client.id": ("token_client_id", _text),
    "sasl.oauthbearer.client.credentials.client.secret": ("token_client_secret", _text),
    "sasl.oauthbearer.client.id": ("token_client_id", _text),
    "sasl.oauthbearer.client.secret": ("token_client_secret", _text),
    "sasl.oauthbearer.extensions": ("token_extensions", _extensions),
    "sasl.oauthbearer.jwt.retriever.class": ("token_retriever", _class(*RETRIEVERS)),
    "sasl.oauthbearer.method": ("token_method", _word("OIDC")),
    "sasl.oauthbearer.scope": ("token_scope", _text),
    "sasl.oauthbearer.token.endpoint.url": ("token_url", _text),
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
    "ssl.keystore.location": ("certificate_location", _text),
    "ssl.keystore.type": ("keystore_type", _word("PEM")),
    "ssl.truststore.location": ("ca_location", _text),
    "ssl.truststore.type": ("truststore_type", _word("PEM")),
}
"""Option -> the field that it sets, and how it is read. Two options of one field are its two spellings."""

_TYPES: Final = ("keystore", "truststore")
_SAID: Final = ("token_handler", "token_retriever", "token_method")
"""Words of other clients for what the mechanism and the URL say already."""


def parse_client(given: Mapping[str, str], prefix: str = "") -> ClientOptions:
    """Return the options, checked and typed. Raises `ConfigError` for one that is not served.

    `prefix` stands before the names in errors, not in `given`.
    """
    settings: dict[str, Any] = {}
    for name in sorted(given):
        if name not in _TABLE:
            names = ", ".join(prefix + known for known in _TABLE)
            raise ConfigError(f"option {prefix}{name} is not served; of the client's there are {names}")
        target, read = _TABLE[name]
        value = read(prefix + name, given[name])
        if settings.setdefault(target, value) != value:
            raise ConfigError(f"option {prefix}{name} is given twice, under two names")
    for store in _TYPES:
        if settings.pop(f"{store}_type", None) is None and f"ssl.{store}.location" in given:
            raise ConfigError(f"option {prefix}ssl.{store}.location needs {prefix}ssl.{store}.type=PEM")
    for word in _SAID:
        settings.pop(word, None)
    return _consistent(ClientOptions(**settings), given, prefix)


def _consistent(options: ClientOptions, given: Mapping[str, str], prefix: str) -> ClientOptions:
    protocol = f"{prefix}security.protocol"
    for kind, is_used, protocols in (
        ("ssl.", options.uses_tls, "SSL or SASL_SSL"),
        ("sasl.", options.uses_sasl, "SASL_PLAINTEXT or SASL_SSL"),
    ):
        idle = [name for name in sorted(given) if name.startswith(kind)]
        if idle and not is_used:
            raise ConfigError(f"option {prefix}{idle[0]} says nothing without {protocol}={protocols}")
    if options.uses_sasl:
        _check_tokens(options, given, prefix)
        _check_login(options, protocol, prefix)
    if options.key_location and not options.certificate_location:
        raise ConfigError(
            f"option {prefix}ssl.key.location says nothing without {prefix}ssl.certificate.location"
        )
    return options


def _check_tokens(options: ClientOptions, given: Mapping[str, str], prefix: str) -> None:
    idle = ("sasl.oauthbearer.", "sasl.login.", "https.")
    if options.mechanism == OAUTHBEARER:
        idle = ("sasl.username", "sasl.password", "sasl.kerberos.")
    for name in sorted(given):
        if name.startswith(idle):
            raise ConfigError(
                f"option {prefix}{name} says nothing with {prefix}sasl.mechanism={options.mechanism}"
            )


def _check_login(options: ClientOptions, protocol: str, prefix: str) -> None:
    needed: dict[str, str | None] = {"mechanism": options.mechanism}
    if options.mechanism == OAUTHBEARER:
        needed["oauthbearer.token.endpoint.url"] = options.token_url
    elif options.jaas is None:
        needed |= {"username": options.username, "password": options.password}
    elif options.username or options.password:
        raise ConfigError(
            f"option {prefix}sasl.jaas.config says who logs in: leave username and password out"
        )
    for name, value in needed.items():
        if not value:
            raise ConfigError(f"{protocol}={options.protocol} needs option {prefix}sasl.{name}")


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
