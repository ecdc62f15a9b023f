"""Random messages to the machines of SASL: refused by name, never by accident, and nobody gets in."""

from __future__ import annotations

import random
import struct
import time
from contextlib import suppress
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.network.request import Closing, LoggedIn, Response
from service.security.jaas import parse_jaas
from service.security.json_web_token import JwtRules, JwtValidator
from service.security.oauthbearer import OAuthBearerServer, TokenRefused, write_initial
from service.security.plain import PlainServer, PlainUsers
from service.security.sasl_server import Evaluation, SaslRefused, SlowEvaluation
from service.security.scram import ScramClient, ScramMalformed, ScramServer, TokenLogin, UnknownUsers
from service.security.unsecured_token import UnsecuredValidator
from service.security.verification_keys import read_keys
from service.wire.errors import WireError
from tests.support.issuers import ISSUER, key_set, token_of
from tests.support.login_frames import NAMES, message
from tests.support.logins import Listener, bobs

SEEDS = range(6)
PIECES = (
    b"n,,",
    b"n=bob",
    b",r=x",
    b"c=biws",
    b",p=",
    b"YWJj",
    b"=2C",
    b"\0",
    b"alice",
    b"secret",
    b",",
    b"=",
    b"m=",
    b",tokenauth=true",
)


def some(chance: random.Random, most: int = 12) -> bytes:
    """Pieces of messages and random bytes."""
    return b"".join(
        chance.choice(PIECES) if chance.random() < 0.7 else chance.randbytes(chance.randrange(5))
        for _ in range(chance.randrange(most))
    )


def bobs_token(token_id: str) -> TokenLogin | None:
    """The delegation token whose id is bob; its keys are derived at each login."""
    credential = bobs(token_id, "SCRAM-SHA-256")
    return None if credential is None else TokenLogin("alice", 1, None, lambda: credential)


def at_once(found: Evaluation | SlowEvaluation) -> Evaluation:
    return found.answer(found.compute()) if isinstance(found, SlowEvaluation) else found


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_are_refused_by_name(seed: int) -> None:
    chance = random.Random(seed)
    users = PlainUsers({"user_alice": chance.randbytes(8).hex()})
    for _ in range(3000):
        with pytest.raises(SaslRefused):
            PlainServer(users).evaluate(some(chance))
        server = ScramServer(
            "SCRAM-SHA-256", lambda name: bobs(name, "SCRAM-SHA-256"), UnknownUsers(b""), "nonce", bobs_token
        )
        first = b"n,,n=bob,r=x" + chance.choice((b"", b",tokenauth=true"))
        tokens = first if chance.random() < 0.5 else some(chance), some(chance)
        with pytest.raises(SaslRefused):
            [at_once(server.evaluate(one)) for one in tokens]


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_with_tokens_are_refused_by_name_or_acknowledged(seed: int) -> None:
    chance = random.Random(seed)
    good = token_of("alice")
    keys = read_keys(key_set("one"))

    def find(algorithm: str, kid: str | None) -> Any:
        key = keys.find(algorithm, kid)
        if key is None:
            raise TokenRefused("no such key")
        return key

    signed = JwtValidator(JwtRules(("kafka",), ISSUER), find, lambda: int(time.time() * 1000))
    unsigned = UnsecuredValidator({}, lambda: int(time.time() * 1000))
    assert OAuthBearerServer(signed.validate).evaluate(write_initial(good, {})).name == "alice"
    for _ in range(1000):
        server = OAuthBearerServer(chance.choice((signed, unsigned)).validate)
        damaged = bytearray(write_initial(good, {}))
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(18, len(damaged) - 2)] = chance.choice(b"AZaz09-_.=\x01,")
        message = some(chance) if chance.random() < 0.3 else bytes(damaged)
        try:
            found = server.evaluate(message)
        except SaslRefused:
            continue
        if message != write_initial(good, {}):
            assert found.name is None
            with pytest.raises(SaslRefused):
                server.evaluate(b"\x01")


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_a_hostile_server_are_refused_by_name(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(1000):
        client = ScramClient("SCRAM-SHA-256", "bob", "pencil", "nonce")
        head = b"r=nonceX,s=c2FsdA==,i=" if chance.random() < 0.5 else b""
        with pytest.raises((ConfigError, ScramMalformed)):
            list(map(client.answer, (head + some(chance, 5), some(chance, 5))))


@pytest.mark.parametrize("seed", SEEDS)
def test_configurations_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    letters = "ab \"'\\/*=;\n\t1.-_$é\x85漢"
    for _ in range(3000):
        text = "".join(chance.choices(letters, k=chance.randrange(40)))
        with suppress(ConfigError):
            assert parse_jaas(text)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damaged_message_reaches_a_handler(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(1500):
        listener = Listener()
        peer = listener.connect()
        handler, context = peer.handle, peer.context
        for number in range(5):
            name = chance.choice([one for one in NAMES if one not in ("right", "right-0", "token")])
            frame = bytearray(message(name, number))
            for _ in range(chance.randrange(3)):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            try:
                answer = handler(context, memoryview(frame))
            except WireError:
                break
            assert isinstance(answer, Response)
            assert not isinstance(answer, LoggedIn)
            if answer.parts:
                whole = b"".join(map(bytes, answer.parts))  # type: ignore[arg-type]
                assert struct.unpack_from(">i", whole)[0] == len(whole) - 4
            if isinstance(answer, Closing):
                break
        assert not listener.asked
