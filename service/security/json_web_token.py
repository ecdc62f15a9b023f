"""Signed tokens (RFC 7519): the signature, by joserfc, and the claims, by Kafka's rules. [P]

Source: Kafka ``BrokerJwtValidator`` and ``ClaimValidationUtils``, jose4j's ``JwtConsumer``. Refused besides:
a header that demands something (``crit``), a token in a token, a list of scopes that has anything but texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.security.oauthbearer import AcceptedToken, TokenRefused
from service.security.verification_keys import ALGORITHMS, MOST_KID

_MOST_BYTES: Final = 64 << 10
"""Longest token, header and signature, in bytes; whole messages are no longer."""
_SECTIONS: Final = 3
_MOST_DATE_S: Final = (2**63 - 1) // 1000
JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's ``trim`` removes."""
_NESTED: Final = ("jwt", "application/jwt")
_MILLISECONDS: Final = 1000

FindKey = Callable[[str, str | None], Any]
"""Returns joserfc's key of an algorithm and a key id. Raises `TokenRefused` or `SaslUnavailable`."""


@dataclass(frozen=True, slots=True)
class JwtRules:
    """Demands on the claims of a token; a field is its key, without `sasl.oauthbearer.`."""

    expected_audience: tuple[str, ...] = ()
    """a token has to be for one of these; without any, one that says whom it is for is refused"""
    expected_issuer: str | None = None
    clock_skew_seconds: int = 30
    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"


class JwtValidator:
    """Checks signed tokens."""

    def __init__(self, rules: JwtRules, find_key: FindKey, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._find_key = find_key
        self._now_ms = now_ms

    def validate(self, token: str) -> AcceptedToken:
        """Return the owner of the token. Raises as `ValidateToken`."""
        token = token.strip(JAVA_BLANKS)
        sections = token.split(".")
        if len(sections) != _SECTIONS or not all(sections):
            raise TokenRefused("a token without three sections")
        header, payload = _verified(token, sections[0], self._find_key)
        if str(header.get("cty", "")).lower() in _NESTED:
            raise TokenRefused("a token in a token")
        return check_claims(_json_object(payload, "claims"), self._rules, self._now_ms() // _MILLISECONDS)


def _verified(token: str, section: str, find_key: FindKey) -> tuple[Mapping[str, Any], bytes]:
    """Return header and payload of a token whose signature is right. Raises `TokenRefused`."""
    from joserfc.errors import JoseError  # only nodes that take tokens load it
    from joserfc.jws import JWSRegistry, deserialize_compact
    from joserfc.util import urlsafe_b64decode

    registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    registry.max_header_length = registry.max_signature_length = registry.max_payload_length = _MOST_BYTES
    try:
        header = _json_object(urlsafe_b64decode(section.encode()), "header")
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise TokenRefused(f"a token with the algorithm {str(algorithm)[:20]!r}")
        if "crit" in header or "b64" in header:
            raise TokenRefused("a token whose header demands what is not known here")
        if kid is not None and (not isinstance(kid, str) or len(kid) > MOST_KID):
            raise TokenRefused("a token with an impossible key id")
        found = deserialize_compact(token, find_key(algorithm, kid), registry=registry)
    except (JoseError, ValueError, TypeError, RecursionError) as e:
        raise TokenRefused(f"a token that cannot be verified: {type(e).__name__}") from e
    return header, found.payload


def check_claims(claims: Mapping[str, Any], rules: JwtRules, now_s: int) -> AcceptedToken:
    """Return who the claims say. Raises `TokenRefused`."""
    _check_audience(claims, rules.expected_audience)
    issuer = _text(claims, "iss")
    if rules.expected_issuer is not None and issuer != rules.expected_issuer:
        raise TokenRefused("a token of another issuer")
    _text(claims, "jti")
    _text(claims, "sub")
    expires_s = _check_dates(claims, now_s, rules.clock_skew_seconds)
    _check_scope(claims.get(rules.scope_claim_name), rules.scope_claim_name)
    name = _not_blank(_text(claims, rules.sub_claim_name), rules.sub_claim_name)
    return AcceptedToken(name, expires_s * _MILLISECONDS)


def _check_audience(claims: Mapping[str, Any], expected: tuple[str, ...]) -> None:
    given = claims.get("aud")
    if given is None:
        if expected:
            raise TokenRefused("a token without an audience")
        return
    audience = [given] if isinstance(given, str) else given
    if not isinstance(audience, list) or not all(isinstance(one, str) for one in audience):
        raise TokenRefused("a token whose audience is no text")
    if not any(one in expected for one in audience):
        raise TokenRefused("a token for another audience")


def _check_dates(claims: Mapping[str, Any], now_s: int, skew_s: int) -> int:
    """Return the time at which the token ends, in seconds."""
    expires, issued, begins = (_date(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise TokenRefused(f"a token without {'exp' if expires is None else 'iat'}")
    if now_s - skew_s >= expires:
        raise TokenRefused(f"a token that has expired, {now_s - expires} s ago")
    if expires < issued or (begins is not None and expires < begins):
        raise TokenRefused("a token that ends before it begins")
    if begins is not None and now_s + skew_s < begins:
        raise TokenRefused(f"a token that begins in {begins - now_s} s")
    if expires < 0 or issued < 0:
        raise TokenRefused("a token with a negative time")
    return expires


def _check_scope(given: Any, name: str) -> None:
    """Check the form of the scope, which has no use here (Kafka ``validateScopes``)."""
    scopes = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    trimmed = [_not_blank(one, name) for one in scopes]
    if len(set(trimmed)) < len(trimmed):
        raise TokenRefused("a token with the same scope twice")


def _date(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a claim in whole seconds since the epoch, None if there is none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TokenRefused(f"a token whose {name} is no number")
    if abs(value) > _MOST_DATE_S:
        raise TokenRefused(f"a token whose {name} is no time")
    return int(value)


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise TokenRefused(f"a token whose {name[:100]!r} is no text")
    return value


def _not_blank(value: Any, name: str) -> str:
    trimmed = value.strip(JAVA_BLANKS) if isinstance(value, str) else ""
    if not trimmed:
        raise TokenRefused(f"a token whose {name[:100]!r} is missing or blank")
    return trimmed


def _json_object(data: bytes, what: str) -> Mapping[str, Any]:
    """Return a JSON object without a name twice. Raises `TokenRefused`."""
    try:
        found = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise TokenRefused(f"a token whose {what} is no JSON") from e
    if not isinstance(found, dict):
        raise TokenRefused(f"a token whose {what} is no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")
