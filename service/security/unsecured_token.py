"""Tokens without a signature, for trying things out: whoever connects says who he is. [P]

Source: Kafka ``OAuthBearerUnsecuredValidatorCallbackHandler``, ``OAuthBearerUnsecuredJws``,
``OAuthBearerValidationUtils``. Stricter than these: what is no text is nobody's name.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.base.errors import ConfigError
from service.security.json_web_token import JAVA_BLANKS
from service.security.oauthbearer import AcceptedToken, TokenRefused

OPTION_PREFIX: Final = "unsecuredValidator"
_OPTIONS: Final = tuple(
    OPTION_PREFIX + name
    for name in ("PrincipalClaimName", "ScopeClaimName", "RequiredScope", "AllowableClockSkewMs")
)
_MOST_SKEW_MS: Final = 2**31 - 1
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?")
_SECTIONS: Final = 3
_MOST_DATE_S: Final = (2**63 - 1) // 1000


class UnsecuredValidator:
    """Checks the claims of unsecured tokens. Options are those of the listener's login module."""

    def __init__(self, options: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        """Read the options that begin with `OPTION_PREFIX`; others are passed over. Raises `ConfigError`."""
        unknown = [one for one in options if one.startswith(OPTION_PREFIX) and one not in _OPTIONS]
        if unknown:
            raise ConfigError(f"there is no option {unknown[0][:100]}; there are {', '.join(_OPTIONS)}")
        principal, scope, required, skew = (options.get(one, "").strip(JAVA_BLANKS) for one in _OPTIONS)
        self._principal_claim = principal or "sub"
        self._scope_claim = scope or "scope"
        self._required = [one for one in required.split(" ") if one]
        if not all(_SCOPE.fullmatch(one) for one in self._required):
            raise ConfigError(f"{OPTION_PREFIX}RequiredScope has characters that no scope has")
        if not re.fullmatch(r"\+?[0-9]{1,10}", skew or "0") or int(skew or "0") > _MOST_SKEW_MS:
            raise ConfigError(f"{OPTION_PREFIX}AllowableClockSkewMs is no number of milliseconds from 0")
        self._skew_ms = int(skew or "0")
        self._now_ms = now_ms

    def validate(self, token: str) -> AcceptedToken:
        """Return whom the token names. Raises `TokenRefused`."""
        header, claims = _read(token)
        if header.get("alg") != "none":
            raise TokenRefused("an unsecured token has to say so: alg is none")
        name = claims.get(self._principal_claim)
        if not isinstance(name, str) or not name.strip(JAVA_BLANKS):
            raise TokenRefused(f"a token without the claim {self._principal_claim[:100]}")
        scopes = self._scopes(claims.get(self._scope_claim))
        expires_ms = self._check_dates(_milliseconds(claims, "exp"), _milliseconds(claims, "iat"))
        if missing := [one for one in self._required if one not in scopes]:
            wanted = f"[{', '.join(self._required)}]"
            raise TokenRefused(f"a token without the scope {missing[0]}", "insufficient_scope", wanted)
        return AcceptedToken(name, expires_ms)

    def _scopes(self, given: Any) -> set[str]:
        if given is not None and not isinstance(given, str | list):
            raise TokenRefused("a token whose scope is no text")
        scopes = given if isinstance(given, list) else [given]
        return {one.strip(JAVA_BLANKS) for one in scopes if isinstance(one, str)}

    def _check_dates(self, expires_ms: float | None, issued_ms: float | None) -> int:
        now_ms = self._now_ms()
        if expires_ms is None:
            raise TokenRefused("a token without exp")
        if issued_ms is not None and issued_ms > now_ms + self._skew_ms:
            raise TokenRefused("a token that is issued later")
        if now_ms - self._skew_ms >= expires_ms:
            raise TokenRefused("a token that has expired")
        if issued_ms is not None and expires_ms <= issued_ms:
            raise TokenRefused("a token that ends before it begins")
        return math.floor(expires_ms + 0.5)


def _read(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return header and claims."""
    sections = token.split(".")
    if len(sections) != _SECTIONS or sections[2] or not (sections[0] and sections[1]):
        raise TokenRefused("an unsecured token has two sections, each with a dot behind it")
    return _json_object(sections[0]), _json_object(sections[1])


def _json_object(section: str) -> Mapping[str, Any]:
    if _BASE64.fullmatch(section) is None:
        raise TokenRefused("a token that is not base64")
    try:
        bare = section.rstrip("=")
        found = json.loads(base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4)))
    except (ValueError, RecursionError) as e:
        raise TokenRefused("a token that is no JSON") from e
    if not isinstance(found, dict):
        raise TokenRefused("a token that is no JSON object")
    return found


def _milliseconds(claims: Mapping[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST_DATE_S:
        raise TokenRefused(f"a token whose {name} is no time")
    return float(value) * 1000
