"""Random configurations and messages of SASL mean what they mean to Kafka's classes (`capture_java.py`)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.security.jaas import parse_jaas
from service.security.plain import PlainServer, PlainUsers
from service.security.sasl_server import SaslRefused
from service.security.scram import FINAL, FIRST, credential_from, salted_password

GOLDEN = Path(__file__).with_name("java.txt")
USERS = PlainUsers({"user_alice": "secret", "user_bob": "ö"})


def encoded(text: str | bytes) -> str:
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return base64.b64encode(data).decode()


def refused(reason: str) -> str:
    return f"no\t{encoded(reason)}"


def jaas(data: bytes) -> str:
    try:
        modules = parse_jaas(data.decode())
    except ConfigError as e:
        return refused(str(e))
    if len(modules) != 1:
        return refused(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    found = modules[0]
    options = [f"{encoded(key)}={encoded(found.options[key])}" for key in sorted(found.options)]
    return "\t".join(("ok", encoded(found.name), found.flag, *options))


def plain(data: bytes) -> str:
    try:
        return f"ok\t{encoded(PlainServer(USERS).evaluate(data).name or '')}"
    except SaslRefused as e:
        return refused(e.told or "")


def first(data: bytes) -> str:
    match = FIRST.fullmatch(data)
    if match is None:
        return refused(f"Invalid SCRAM client first message format: {data.decode('utf-8', 'replace')}")
    name = match["name"].replace(b"=2C", b",").replace(b"=3D", b"=")
    return "\t".join(("ok", encoded(match["authzid"] or b""), encoded(name), encoded(match["nonce"])))


def last(data: bytes) -> str:
    match = FINAL.fullmatch(data)
    if match is None:
        return refused(f"Invalid SCRAM client final message format: {data.decode('utf-8', 'replace')}")
    binding, proof = (base64.b64decode(match[name]) for name in ("binding", "proof"))
    return "\t".join(("ok", encoded(binding), encoded(match["nonce"]), encoded(proof)))


def keys(mechanism: str) -> Callable[[bytes], str]:
    def made(password: bytes) -> str:
        found = credential_from(mechanism, salted_password(mechanism, password, b"salt", 4096), b"salt", 4096)
        return f"ok\t{encoded(found.stored_key)}\t{encoded(found.server_key)}"

    return made


READERS: dict[str, Callable[[bytes], str]] = {
    "jaas": jaas,
    "plain": plain,
    "first": first,
    "last": last,
    "SCRAM-SHA-256": keys("SCRAM-SHA-256"),
    "SCRAM-SHA-512": keys("SCRAM-SHA-512"),
}


@pytest.mark.parametrize("kind", READERS)
def test_kafkas_classes_say_the_same(kind: str) -> None:
    differing, accepted = [], 0
    for line in GOLDEN.read_text().splitlines():
        name, data, wanted = line.split(" ", 2)
        if name != kind:
            continue
        given = base64.b64decode(data)
        accepted += wanted.startswith("ok")
        found = READERS[kind](given)
        if found != wanted and not is_ours(kind, given, found, wanted):
            differing.append((given, found, wanted))
    assert not differing, f"{len(differing)}: {differing[:5]}"
    assert accepted >= {"plain": 1, "jaas": 300, "first": 40, "last": 60}.get(kind, 3)


def is_ours(kind: str, given: bytes, found: str, wanted: str) -> bool:
    """Return whether Firn differs on purpose: a mandatory extension of SCRAM (``m=``) is refused at once, a
    module without a name in words of its own, and no text is repeated that may be a piece of a password."""
    if kind == "jaas" and found.startswith("no") and wanted.startswith("no"):
        ours, kafkas = (base64.b64decode(one.partition("\t")[2]).decode() for one in (found, wanted))
        if kafkas == "null":
            return ours == "Login module name in JAAS config is no word"
        unquoted = re.sub(
            "(control flag|Value not specified for key) '.*' in JAAS", r"\1 in JAAS", kafkas, flags=re.S
        )
        return unquoted == re.sub(r"for key \d+ in", "for key in", ours)
    return kind == "first" and b"m=" in given and found.startswith("no") and wanted.startswith("ok")
