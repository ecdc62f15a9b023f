"""Messages and tokens of OAUTHBEARER mean what they mean to Kafka's classes (`capture_tokens.py`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.security.json_web_token import JwtRules, JwtValidator
from service.security.oauthbearer import AcceptedToken, TokenRefused, read_initial
from service.security.sasl_server import SaslRefused
from service.security.unsecured_token import UnsecuredValidator
from service.security.verification_keys import VerificationKeys, read_keys

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("tokens.json").read_text())
NOW_MS = GOLDEN["now_s"] * 1000
KEYS = read_keys(json.dumps({"keys": GOLDEN["keys"]}).encode())


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def shown(token: AcceptedToken) -> str:
    return f"ok\t{encoded(token.name)}\t{token.expires_ms}"


def initial(settings: Mapping[str, str], data: bytes) -> str:
    try:
        found = read_initial(data)
    except SaslRefused:
        return "no"
    extensions = [f"{encoded(key)}={encoded(found.extensions[key])}" for key in sorted(found.extensions)]
    return "\t".join(("ok", encoded(found.token), encoded(found.authzid), *extensions))


def find(keys: VerificationKeys) -> Any:
    def found(algorithm: str, kid: str | None) -> Any:
        key = keys.find(algorithm, kid)
        if key is None:
            raise TokenRefused("no such key")
        return key

    return found


def signed(settings: Mapping[str, str], data: bytes) -> str:
    given = {name.removeprefix("sasl.oauthbearer."): value for name, value in settings.items()}
    rules = JwtRules(
        expected_audience=tuple(given.get("expected.audience", "").split(","))
        if given.get("expected.audience")
        else (),
        expected_issuer=given.get("expected.issuer"),
        sub_claim_name=given.get("sub.claim.name", "sub"),
        scope_claim_name=given.get("scope.claim.name", "scope"),
    )
    try:
        return shown(JwtValidator(rules, find(KEYS), lambda: NOW_MS).validate(data.decode()))
    except TokenRefused:
        return "no"


def unsecured(settings: Mapping[str, str], data: bytes) -> str:
    try:
        return shown(UnsecuredValidator(settings, lambda: NOW_MS).validate(data.decode()))
    except TokenRefused as e:
        return "no" if e.scope is None else f"no\t{encoded(f'Exception: {e.status} {e.scope}')}"


READERS = {"initial": initial, "signed": signed, "unsecured": unsecured}


@pytest.mark.parametrize("kind", READERS)
def test_kafkas_classes_say_the_same(kind: str) -> None:
    differing, accepted = [], 0
    for line in GOLDEN["answers"]:
        name, settings_text, data_text, wanted = line.split(" ", 3)
        if name != kind:
            continue
        data = base64.b64decode(data_text)
        lines = base64.b64decode(settings_text).decode().splitlines()
        settings = dict(one.split("=", 1) for one in lines)
        accepted += wanted.startswith("ok")
        found = READERS[kind](settings, data)
        if not (wanted == found or (found == "no" and wanted.startswith("no"))):
            differing.append((settings, data, found, wanted))
    others = [one for one in differing if not is_stricter(one[1], one[2])]
    assert not others, f"{len(others)}: {others[:3]}"
    assert accepted >= {"initial": 40, "signed": 100, "unsecured": 90}[kind]
    assert len(differing) < 20


STRICTER = (
    '"HS256"',  # the keys of an issuer are public: what they sign as a shared secret, everybody can
    '"RS256", "kid": "other"',  # a key that is for RS512 alone
    *('"crit"', '"b64"'),
    *('"kid": null', '"typ": 5'),
    *("1e+18", "4611686018427387904"),  # ends beyond what milliseconds can count
    *('"sub": null', '"sub": true', '"scope": {}'),  # what is no text is turned into one there
    "} x",
)
"""Parts of the tokens that Kafka takes and Firn refuses."""


def is_stricter(data: bytes, found: str) -> bool:
    sections = data.decode().split(".")
    said = "".join(base64.urlsafe_b64decode(one + "==").decode() for one in sections[:2])
    return found == "no" and (any(one in said for one in STRICTER) or data.endswith(b"="))
