"""Security of a client's connections: TLS by PEM files, and SASL credentials."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from service.base.client_tls import ClientTls
from service.base.errors import ConfigError
from service.base.urls import shown, url_problem
from service.client import sasl
from service.config.client import ClientOptions
from service.config.oauthbearer import OAUTHBEARER, file_of
from service.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, read_jaas
from service.security.plain import PLAIN

if TYPE_CHECKING:
    from service.base.disk import Disk
    from service.client.tokens import BearerCredentials

_EXTENSION: Final = "extension_"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Name and secret of a client, for PLAIN or SCRAM. The password is in no ``repr``.

    `new_nonce` returns fresh randomness that cannot be guessed, in printable ASCII without commas.
    """

    mechanism: str
    username: str
    password: str = field(repr=False)
    new_nonce: Callable[[], str] = field(repr=False)
    is_token: bool = False
    """the name is the id of a delegation token (SCRAM)"""

    def login(self) -> sasl.Login:
        """Return a login for one connection."""
        return sasl.login(
            self.mechanism, self.username, self.password, self.new_nonce(), is_token=self.is_token
        )


def renewal_s(lifetime_ms: int, chance: float) -> float:
    """Return the seconds after a login at which its client logs in again: 85 to 95 % of its lifetime, by
    `chance` from 0 to 1, so that many do not come at once (Kafka's ``SaslClientAuthenticator``).

    >>> renewal_s(3_600_000, 0.5), renewal_s(0, 0.5)
    (3240.0, inf)
    """
    return math.inf if lifetime_ms <= 0 else lifetime_ms / 1000 * (0.85 + 0.1 * chance)


class Security(NamedTuple):
    """TLS, a login, both or neither."""

    tls: ClientTls | None = None
    credentials: Credentials | BearerCredentials | None = None


PLAINTEXT: Final = Security()


def security_of(options: ClientOptions, new_nonce: Callable[[], str]) -> Security:
    """Return what `options` say; reads certificates and keys. Raises `ConfigError`.

    `new_nonce`: as that of `Credentials`.
    """
    tls = None
    if options.uses_tls:
        try:
            tls = tls_context(
                options.ca_location,
                options.certificate_location,
                options.key_location,
                options.key_password,
                checks_hostname=options.checks_hostname,
            )
        except OSError as e:
            raise ConfigError(f"options ssl.…: {e}") from e
    if not options.uses_sasl:
        return Security(tls)
    mechanism = options.mechanism or ""
    if mechanism == OAUTHBEARER:
        return Security(tls, _tokens_of(options))
    if options.jaas is not None:
        return Security(tls, credentials_of(mechanism, options.jaas, new_nonce))
    return Security(tls, Credentials(mechanism, options.username, options.password, new_nonce))


def _tokens_of(options: ClientOptions) -> BearerCredentials:
    """Return what fetches tokens as `options` say, or their login module. Raises `ConfigError`."""
    from service.base.clock import SystemClock  # only clients with tokens load this
    from service.base.disk import SystemDisk
    from service.client.tokens import BearerCredentials, FileToken, IssuerToken

    given = {} if options.jaas is None else _token_options(options.jaas)
    extensions = {**dict(options.token_extensions), **_extensions(given)}
    url = options.token_url or ""
    if (path := file_of(url)) is not None:
        return BearerCredentials(FileToken(path, SystemDisk()), extensions)
    if (problem := url_problem(url)) is not None:
        raise ConfigError(f"option sasl.oauthbearer.token.endpoint.url: {shown(url)} {problem}")
    name = options.token_client_id or given.get("clientId", "")
    secret = options.token_client_secret or given.get("clientSecret", "")
    if not name or not secret:
        raise ConfigError(
            "options sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret have to say to whom the "
            "issuer gives a token"
        )
    context = None if options.token_ca is None else _issuer_tls(options.token_ca)
    scope = options.token_scope or given.get("scope")
    return BearerCredentials(IssuerToken(url, name, secret, scope, SystemClock(), context), extensions)


def file_credentials(path: str, jaas: str, disk: Disk) -> BearerCredentials:
    """Return the user of the token in a file, for a node; `jaas` is its own. Raises `ConfigError`."""
    from service.client.tokens import BearerCredentials, FileToken  # only nodes with tokens load it

    return BearerCredentials(FileToken(path, disk), _extensions(_token_options(jaas)))


def _token_options(jaas: str) -> Mapping[str, str]:
    module = read_jaas(jaas)
    if module.name != OAUTHBEARER_MODULE:
        raise ConfigError(f"sasl.jaas.config: {OAUTHBEARER} needs the login module {OAUTHBEARER_MODULE}")
    return module.options


def _extensions(options: Mapping[str, str]) -> dict[str, str]:
    return {one.removeprefix(_EXTENSION): options[one] for one in options if one.startswith(_EXTENSION)}


def _issuer_tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as e:
        raise ConfigError(f"option https.ca.location: {e}") from e


def credentials_of(mechanism: str, jaas: str, new_nonce: Callable[[], str]) -> Credentials:
    """Return the user of a client's or a node's own `sasl.jaas.config`. Raises `ConfigError`."""
    module = read_jaas(jaas)
    wanted = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
    if module.name != wanted:
        raise ConfigError(f"sasl.jaas.config: {mechanism} needs the login module {wanted}")
    for name in ("username", "password"):
        if not module.options.get(name):
            raise ConfigError(f"sasl.jaas.config: {mechanism} needs the option {name}")
    is_token = module.options.get("tokenauth", "").lower() == "true"
    return Credentials(mechanism, module.options["username"], module.options["password"], new_nonce, is_token)


def tls_context(
    ca_file: str | None = None,
    certificate_file: str | None = None,
    key_file: str | None = None,
    key_password: str | None = None,
    *,
    checks_hostname: bool = True,
) -> ClientTls:
    """Return a client's TLS; without `ca_file` it trusts the system's certificates.

    `OSError` (`ssl.SSLError` is one) for files that are missing or not PEM.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = checks_hostname
    if certificate_file is not None:
        # Without a function OpenSSL would prompt on the terminal.
        context.load_cert_chain(certificate_file, key_file, password=lambda: key_password or "")
    return ClientTls(context)
