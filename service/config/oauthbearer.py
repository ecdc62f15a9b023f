"""Settings of OAUTHBEARER on one listener, and of a node's own token, checked at start. [P]

Sources: Kafka `SaslChannelBuilder`, `OAuthBearerValidatorCallbackHandler`, `ConfigurationUtils`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.config.keys import Value
from service.config.overrides import PREFIX, base_name, split, value_for
from service.config.tables.oauthbearer import (
    ALLOWED_URLS,
    JWKS_URL,
    LOGIN_HANDLER,
    SECURED_HANDLER,
    SERVER_HANDLER,
    TOKEN_URL,
    UNSECURED_HANDLER,
)

OAUTHBEARER: Final = "OAUTHBEARER"
_LOGIN_HANDLER_KEY: Final = "sasl.login.callback.handler.class"


@dataclass(frozen=True, slots=True)
class KeySetSettings:
    """Place of an issuer's public keys. `path` is None where they come from `url`."""

    url: str
    path: str | None
    allowed_urls: tuple[str, ...]
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int


@dataclass(frozen=True, slots=True)
class OAuthBearerSettings:
    """Checks of tokens on one listener. `key_set` is None where tokens are not signed. The other fields are
    keys, without `sasl.oauthbearer.`."""

    key_set: KeySetSettings | None
    expected_audience: tuple[str, ...] = ()
    expected_issuer: str | None = None
    clock_skew_seconds: int = 30
    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"


def read_oauthbearer(values: Mapping[str, Value], listener: str, problems: list[str]) -> OAuthBearerSettings:
    """Return the settings of a listener; add a line to `problems` for what is refused."""

    def value(key: str) -> Any:
        return value_for(values, key, listener, OAUTHBEARER)

    own = f"{PREFIX}{listener.lower()}.{OAUTHBEARER.lower()}."
    handler = values.get(own + SERVER_HANDLER, UNSECURED_HANDLER)
    key_set = None
    if handler == SECURED_HANDLER:
        key_set = _key_set(values, own, value, problems)
    elif value(JWKS_URL) is not None:
        problems.append(
            f"{JWKS_URL} of listener {listener} has no effect without {own}{SERVER_HANDLER}={SECURED_HANDLER}"
        )
    issuer = (value("sasl.oauthbearer.expected.issuer") or "").strip()
    names = [value(f"sasl.oauthbearer.{one}.claim.name").strip() for one in ("sub", "scope")]
    if not all(names):
        problems.append(f"{own}sasl.oauthbearer.….claim.name: a claim has to have a name")
    return OAuthBearerSettings(
        key_set,
        value("sasl.oauthbearer.expected.audience"),
        issuer or None,
        value("sasl.oauthbearer.clock.skew.seconds"),
        *names,
    )


def _key_set(values: Mapping[str, Value], own: str, value: Any, problems: list[str]) -> KeySetSettings | None:
    from service.base.urls import shown, url_problem  # a node without tokens does not load it

    url = (value(JWKS_URL) or "").strip()
    if not url:
        problems.append(f"{own}{JWKS_URL} is not set: {own}{SERVER_HANDLER} needs the issuer's keys")
        return None
    path = file_of(url)
    problem = None if path is not None else url_problem(url)
    if problem is not None:
        problems.append(f"{own}{JWKS_URL}: {shown(url)} {problem}")
    return KeySetSettings(
        url,
        path,
        _allowed(values, own + JWKS_URL, url, problems),
        *(value(f"sasl.oauthbearer.jwks.endpoint.{one}.ms") for one in _TIMES),
    )


_TIMES: Final = ("refresh", "retry.backoff", "retry.backoff.max")


def _allowed(values: Mapping[str, Value], key: str, url: str, problems: list[str]) -> tuple[str, ...]:
    allowed: Any = values[ALLOWED_URLS]
    if url not in allowed:
        from service.base.urls import shown

        problems.append(f"{key}: {shown(url)} is not among {ALLOWED_URLS}, which has to name it")
    return tuple(allowed)


def file_of(url: str) -> str | None:
    """Return the path of a file: URL, None for another."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        return None
    return unquote(parts.path)


def read_token_path(values: Mapping[str, Value], listener: str, problems: list[str]) -> str | None:
    """Return the file with this node's own token, for logins at a listener of other nodes."""
    url: Any = value_for(values, TOKEN_URL, listener, OAUTHBEARER) or ""
    own = f"{PREFIX}{listener.lower()}.{OAUTHBEARER.lower()}."
    path = file_of(url.strip())
    if path is None:
        from service.base.urls import shown

        problems.append(
            f"{own}{TOKEN_URL}={shown(url)}: a node logs in at other nodes with a token from a file: name "
            "one by file: and its path"
        )
        return None
    _allowed(values, own + TOKEN_URL, url.strip(), problems)
    if value_for(values, _LOGIN_HANDLER_KEY, listener, OAUTHBEARER) != LOGIN_HANDLER:
        problems.append(f"{own}{_LOGIN_HANDLER_KEY} has to be {LOGIN_HANDLER}, as in Kafka")
    return path


def token_complaints(values: Mapping[str, Value], listener: str) -> Iterable[str]:
    """Return a line for each way in which a listener takes tokens that others would not."""
    own = f"{PREFIX}{listener.lower()}.{OAUTHBEARER.lower()}."
    if values.get(own + SERVER_HANDLER, UNSECURED_HANDLER) != SECURED_HANDLER:
        yield (
            f"listener {listener} takes tokens that nobody has signed: whoever connects is who he says. Set "
            f"{own}{SERVER_HANDLER}={SECURED_HANDLER}"
        )
        return
    for name, missing in (("audience", "for nobody in particular"), ("issuer", "of any issuer")):
        key = f"sasl.oauthbearer.expected.{name}"
        if not value_for(values, key, listener, OAUTHBEARER):
            yield f"listener {listener} takes tokens {missing}, as {own}{key} is not set"


def misplaced_handlers(values: Mapping[str, Value]) -> Iterable[str]:
    """Return a line for each handler of tokens that no mechanism's prefix gives to OAUTHBEARER."""
    for name, value in values.items():
        if value is None or base_name(name) not in (SERVER_HANDLER, _LOGIN_HANDLER_KEY):
            continue
        if not name.startswith(PREFIX) or split(name).mechanism != OAUTHBEARER.lower():
            yield (
                f"{name} counts only with the prefix of a listener and of {OAUTHBEARER}, as in "
                f"listener.name.internal.oauthbearer.{base_name(name)}"
            )
