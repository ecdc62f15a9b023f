"""Checks of the tokens of one listener, from its settings, its login module and the issuer's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from service.base.errors import ConfigError
from service.base.extras import install_extra
from service.config.oauthbearer import OAuthBearerSettings
from service.config.passwords import Password
from service.config.security import TlsSettings
from service.security.json_web_token import JwtRules, JwtValidator
from service.security.oauthbearer import ValidateToken
from service.security.unsecured_token import OPTION_PREFIX, UnsecuredValidator

if TYPE_CHECKING:
    from service.network.jwks.key_sets import KeySets

_TLS_PREFIX: Final = "ssl."
_TRUST: Final = ("location", "password", "type", "certificates")
"""Options `ssl.truststore.…` of the login module, for connections to the issuer."""


def token_validation(
    settings: OAuthBearerSettings,
    options: Mapping[str, str],
    key_sets: KeySets | None,
    now_ms: Callable[[], int],
) -> ValidateToken:
    """Return the check of tokens. Raises `ConfigError`.

    `options`: the login module's. `key_sets`: the node's, None if no listener takes signed tokens.
    """
    if settings.key_set is None:
        if not any(one.startswith(OPTION_PREFIX) for one in options):
            raise ConfigError(
                "tokens without signatures let everybody in under any name, so they are taken only where the "
                f"login module has an option {OPTION_PREFIX}…; for signed ones set "
                "sasl.server.callback.handler.class and sasl.oauthbearer.jwks.endpoint.url"
            )
        return UnsecuredValidator(options, now_ms).validate
    try:
        import joserfc.jws  # noqa: F401
    except ImportError as e:
        raise ConfigError(f"signed tokens need joserfc: {install_extra('security')}") from e
    rules = JwtRules(
        settings.expected_audience,
        settings.expected_issuer,
        settings.clock_skew_seconds,
        settings.sub_claim_name,
        settings.scope_claim_name,
    )
    assert key_sets is not None
    key_set = key_sets.of(settings.key_set, _issuer_tls(options))
    return JwtValidator(rules, key_set.find, now_ms).validate


def _issuer_tls(options: Mapping[str, str]) -> TlsSettings | None:
    """Return the TLS of connections to the issuer, None if the login module says nothing of it."""
    given = {one: value for one, value in options.items() if one.startswith(_TLS_PREFIX)}
    trust = {name: given.pop(f"{_TLS_PREFIX}truststore.{name}", None) for name in _TRUST}
    if given:
        known = ", ".join(f"{_TLS_PREFIX}truststore.{name}" for name in _TRUST)
        raise ConfigError(f"option {min(given)[:100]} of the login module is not served; there is {known}")
    if not any(trust.values()):
        return None
    password, certificates = trust["password"], trust["certificates"]
    return TlsSettings(
        truststore_location=trust["location"],
        truststore_password=None if password is None else Password(password),
        truststore_type=trust["type"] or "JKS",
        truststore_certificates=None if certificates is None else Password(certificates),
    )
