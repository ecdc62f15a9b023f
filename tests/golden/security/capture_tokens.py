"""Records what Kafka's own classes make of messages and tokens of OAUTHBEARER.

``python -m tests.golden.security.capture_tokens`` writes ``tokens.json``: the key set of an issuer, the time,
and lines of kind, settings, input (base64) and result, as `tests/java/clients/Tokens.java` prints it. The
private keys are thrown away.
"""

from __future__ import annotations

import base64
import hmac
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joserfc.jwk import ECKey, Key, OctKey, RSAKey
from joserfc.jws import JWSRegistry

from tests.support.java_programs import compiled
from tests.support.requirements import KAFKA_LIBS

GOLDEN = Path(__file__).with_name("tokens.json")
SEED = 35
NOW_S = 1_800_000_000
_PIECES = (
    *(
        b"n,",
        b",",
        b"\x01",
        b"auth=",
        b"auth=Bearer ",
        b"Bearer ",
        b"bearer  ",
        b"abc.def.ghi",
        b"==",
        b"a=bob",
    ),
    *(
        b"k=v",
        b"key=a value",
        b"1=2",
        b"=",
        b"n,,\x01auth=Bearer x\x01",
        b"=2C",
        "é".encode(),
        b"\x00",
        b"\t",
    ),
    *(b"\x01\x01", b"y,", b"a=", b"x\x01y", b"Basic ", b"auth=Bearer to-ken_~+/.=\x01", b" "),
)


def b64(data: bytes | str) -> str:
    raw = data.encode() if isinstance(data, str) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def token(header: Any, claims: Any, key: Key | None = None, algorithm: str = "RS256") -> str:
    """A token of these parts, JSON or text as it stands, signed by `key`."""
    parts = [b64(one if isinstance(one, str) else json.dumps(one)) for one in (header, claims)]
    signed = ".".join(parts)
    if key is None:
        return signed + "."
    return signed + "." + b64(JWSRegistry.algorithms[algorithm].sign(signed.encode(), key))


class Issuer:
    """Keys of every kind, most of them in the key set."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {
            "rsa": RSAKey.generate_key(2048),
            "other": RSAKey.generate_key(2048),
            "short": RSAKey.generate_key(1024),
            "p256": ECKey.generate_key("P-256"),
            "p384": ECKey.generate_key("P-384"),
            "p521": ECKey.generate_key("P-521"),
            "secret": OctKey.generate_key(256),
            "absent": RSAKey.generate_key(2048),
            "encryption": RSAKey.generate_key(2048),
        }

    def key_set(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        for name, key in self.keys.items():
            if name == "absent":
                continue
            one: dict[str, Any] = {**key.as_dict(private=name == "secret"), "kid": name}
            if name in ("rsa", "p256"):
                one["use"] = "sig"
            if name == "encryption":
                one["use"] = "enc"
            if name == "other":
                one["alg"] = "RS512"
            found.append(one)
        found += [{"kty": "unknown", "kid": "u"}, {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"}]
        return {"keys": found}


def claims(**changes: Any) -> dict[str, Any]:
    """Claims that are accepted; None takes one away."""
    given = {"sub": "alice", "exp": NOW_S + 600, "iat": NOW_S - 5, **changes}
    return {name: value for name, value in given.items() if value is not Ellipsis}


_SCOPES: tuple[Any, ...] = ("a b", "", " ", ["a", "b"], ["a", "a"], ["a", " a "], ["a", ""], [1], 5, None, {})
_AUDIENCES: tuple[Any, ...] = (
    "kafka",
    "other",
    "",
    ["kafka"],
    ["a", "kafka"],
    ["a"],
    [],
    [1],
    5,
    None,
    {"a": 1},
)
ALL_CLAIMS: tuple[dict[str, Any], ...] = (
    *({"sub": one} for one in ("bob", " bob\t", "", "  ", 5, None, True, ["bob"], "böb", "a,b", ...)),
    *({"exp": NOW_S + one} for one in (600.9, 1, 0, -29, -30, -31, -30.5, 10**9)),
    *({"exp": one} for one in ("soon", None, -1, 0, True, [1], 1e18, 2**62, ...)),
    *({"iat": NOW_S + one} for one in (-600, 0, 29, 31, 599, 600, 601, 0.5)),
    *({"iat": one} for one in ("now", None, -1, 0, ...)),
    *({"nbf": NOW_S + one} for one in (-10, 0, 29, 30, 31, 700)),
    {"nbf": "x"},
    *({"aud": one} for one in _AUDIENCES),
    *({"iss": one} for one in ("https://issuer", "https://issuer/", 5, None, ["https://issuer"])),
    *({"jti": one} for one in ("x", 5, None)),
    *({"scope": one} for one in _SCOPES),
    {"name": "carol"},
    {"name": 5},
    {"sub": "alice", "email": "x@y"},
)
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"sasl.oauthbearer.expected.audience": "kafka,more"},
    {"sasl.oauthbearer.expected.issuer": "https://issuer"},
    {"sasl.oauthbearer.sub.claim.name": "name"},
    {"sasl.oauthbearer.scope.claim.name": "name"},
)


def signed(issuer: Issuer) -> Iterator[tuple[dict[str, str], str]]:
    keys = issuer.keys
    for settings in SETTINGS:
        for changes in ALL_CLAIMS if not settings else ALL_CLAIMS[::3] + ALL_CLAIMS[-22:]:
            yield settings, token({"alg": "RS256", "kid": "rsa"}, claims(**changes), keys["rsa"])
    for algorithm, name in (
        *(("RS384", "rsa"), ("RS512", "rsa"), ("PS256", "rsa"), ("PS384", "rsa"), ("PS512", "rsa")),
        *(("RS512", "other"), ("RS256", "other"), ("RS256", "short"), ("ES256", "p256"), ("ES384", "p384")),
        *(("ES512", "p521"), ("HS256", "secret"), ("RS256", "absent"), ("RS256", "encryption")),
    ):
        for kid in ({"kid": name}, {}, {"kid": "rsa"}, {"kid": "nobody"}, {"kid": 5}, {"kid": None}):
            yield {}, token({"alg": algorithm, **kid}, claims(), keys[name], algorithm)
    yield from damaged(keys["rsa"])


def damaged(rsa: Key) -> Iterator[tuple[dict[str, str], str]]:
    """Tokens whose header, claims or signature is not in order."""
    good: dict[str, Any] = {"alg": "RS256", "kid": "rsa"}
    header: Any
    for header in (
        *(
            {**good, **one}
            for one in ({"typ": "JWT"}, {"typ": "at+jwt"}, {"typ": 5}, {"cty": "JWT"}, {"x": "y"})
        ),
        *({**good, "crit": one} for one in (["exp"], [], "x", ["b64"])),
        *(
            {**good, **one}
            for one in ({"b64": False, "crit": ["b64"]}, {"b64": True}, {"jku": "https://evil"})
        ),
        *(
            {"alg": one, "kid": "rsa"}
            for one in ("none", "None", "rs256", "ES256", "HS256", 5, None, "RS999")
        ),
        *({}, [], "x", "{", '{"alg":"RS256","alg":"RS256","kid":"rsa"}', '{"alg":"RS256","kid":"rsa"} ', ""),
        {**good, "kid": "k" * 5000},
        {**good, "more": "m" * 3000},
    ):
        yield {}, token(header, claims(), rsa)
    yield from damaged_bodies(rsa, good)


def damaged_bodies(rsa: Key, good: dict[str, Any]) -> Iterator[tuple[dict[str, str], str]]:
    """Tokens with another signature, other claims, or cut in other ways."""
    forged = token({"alg": "HS256", "kid": "rsa"}, claims())[:-1]
    proof = hmac.new(rsa.as_pem(private=False), forged.encode(), "sha256").digest()
    yield {}, f"{forged}.{b64(proof)}"
    yield {}, token({"alg": "none", "kid": "rsa"}, claims())
    for body in (
        "[]",
        "x",
        "",
        '"x"',
        "{",
        '{"sub":"a","sub":"b","exp":1800000009,"iat":1}',
        "1",
        "null",
    ):
        yield {}, token(good, body, rsa)
    yield {}, token(good, '{"sub":"a","exp":1800000009.0,"iat":1e3}', rsa)
    yield {}, token(good, '{"sub":"a","exp":NaN,"iat":1}', rsa)
    whole = token(good, claims(), rsa)
    head, body, signature = whole.split(".")
    yield from (
        ({}, one)
        for one in (
            *(
                " " + whole,
                whole + " ",
                whole + ".",
                "." + whole,
                f"{head}.{body}",
                f"{head}.{body}.",
                "",
                ".",
                "...",
            ),
            *(
                f"{head}.{body}.{signature[:-8]}",
                f"{head}.{body}.{signature}AAAA",
                f"{head}.{body}x.{signature}",
            ),
            *(
                f"{head}.{body}.{signature}=",
                f"{head}..{signature}",
                f"{head}.{body}.!",
                f"{body}.{head}.{signature}",
            ),
            *(
                whole + "=",
                f"{head}.{body}.{signature[:-1]}",
                f"{head}.{body}.{'A' * len(signature)}",
                "a.b.c.d.e",
            ),
        )
    )


UNSECURED: tuple[dict[str, str], ...] = (
    {},
    {"unsecuredValidatorPrincipalClaimName": "name"},
    {"unsecuredValidatorScopeClaimName": "name", "unsecuredValidatorRequiredScope": "carol"},
    {"unsecuredValidatorRequiredScope": "a"},
    {"unsecuredValidatorRequiredScope": "a b"},
    {"unsecuredValidatorAllowableClockSkewMs": "30000"},
)


def unsecured() -> Iterator[tuple[dict[str, str], str]]:
    header: Any
    for settings in UNSECURED:
        for changes in ALL_CLAIMS if not settings else ALL_CLAIMS[::2] + ALL_CLAIMS[-16:]:
            yield settings, token({"alg": "none"}, claims(**changes))
    for header in (
        {},
        {"alg": "RS256"},
        {"alg": "NONE"},
        {"alg": None},
        {"alg": 5},
        [],
        "x",
        "",
        {"alg": "none", "a": 1},
    ):
        yield {}, token(header, claims())
    whole = token({"alg": "none"}, claims())
    head, body, _ = whole.split(".")
    for one in (
        whole + "x",
        whole[:-1],
        whole + ".",
        f"{head}.{body}==.",
        "",
        ".",
        "..",
        f"{head}..",
        f".{body}.",
        "a.b.",
    ):
        yield {}, one
    yield {}, f"{head}.{b64('{}')}."
    yield {}, f"{head}.{b64(json.dumps(claims()) + ' x')}."
    yield {}, f"{head}.{body.replace('e', '+', 1)}."


def inputs(issuer: Issuer) -> Iterator[tuple[str, dict[str, str], bytes]]:
    rng = random.Random(SEED)
    for _ in range(500):
        yield "initial", {}, b"".join(rng.choices(_PIECES, k=rng.randrange(8)))
    for _ in range(300):
        middle = b"".join(rng.choices(_PIECES, k=rng.randrange(4)))
        yield "initial", {}, b"n,,\x01auth=Bearer abc.def\x01" + middle + b"\x01"
    for _ in range(200):
        name = b"".join(
            rng.choices((b"bob", b"=2C", b"=3D", b"=", b"\x01", b"x y", b","), k=rng.randrange(4))
        )
        yield "initial", {}, b"n,a=" + name + b",\x01auth=Bearer abc\x01\x01"
    for settings, one in signed(issuer):
        yield "signed", settings, one.encode()
    for settings, one in unsecured():
        yield "unsecured", settings, one.encode()


def main() -> None:
    issuer = Issuer()
    asked = [(kind, settings, data) for kind, settings, data in inputs(issuer)]
    lines = [
        " ".join((kind, base64.b64encode(_text(settings).encode()).decode(), base64.b64encode(data).decode()))
        for kind, settings, data in asked
    ]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(json.dumps(issuer.key_set()))
        done = subprocess.run(
            ["java", "-cp", f"{compiled('Tokens')}:{KAFKA_LIBS}/*", "Tokens", str(NOW_S), keys.as_uri()],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
        )
    answers = done.stdout.splitlines()
    found = [f"{line} {_short(answer)}" for line, answer in zip(lines, answers, strict=True)]
    document = {"now_s": NOW_S, "keys": issuer.key_set()["keys"], "answers": list(dict.fromkeys(found))}
    GOLDEN.write_text(json.dumps(document, indent=0) + "\n")


def _short(answer: str) -> str:
    """An answer without the end of a long reason."""
    word, _, rest = answer.partition("\t")
    if word == "ok":
        return answer
    return f"{word}\t{base64.b64encode(base64.b64decode(rest)[:90]).decode()}"


def _text(settings: dict[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in settings.items())


if __name__ == "__main__":
    main()
