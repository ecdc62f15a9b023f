"""SCRAM's two sides against published exchanges, against each other and against what attackers send."""

from __future__ import annotations

import base64
import hmac
import time
from statistics import median

import pytest

from service.base.errors import ConfigError
from service.security.sasl_server import SaslRefused
from service.security.scram import (
    ScramClient,
    ScramServer,
    UnknownUsers,
    base36,
    credential_from,
    salted_password,
)
from service.security.scram_credential import ScramCredential

UNKNOWN = UnknownUsers(b"4L6g3nShT-eMCtK--X86sw")
SALT = b"salt of bob"


def credential(mechanism: str, password: str, iterations: int = 4096) -> ScramCredential:
    salted = salted_password(mechanism, password.encode(), SALT, iterations)
    return credential_from(mechanism, salted, SALT, iterations)


def server(
    mechanism: str = "SCRAM-SHA-256", nonce: str = "of-the-server", iterations: int = 4096
) -> ScramServer:
    users = {"bob": credential(mechanism, "pencil", iterations), "b,o=b": credential(mechanism, "pencil")}
    return ScramServer(mechanism, users.get, UNKNOWN, nonce)


def test_the_server_answers_as_in_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password("SCRAM-SHA-256", b"pencil", salt, 4096)
    users = {"user": credential_from("SCRAM-SHA-256", salted, salt, 4096)}
    login = ScramServer("SCRAM-SHA-256", users.get, UNKNOWN, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = login.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    both = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == (b"r=" + both + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", None, None, False)
    last = login.evaluate(b"c=biws,r=" + both + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert last == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user", None, False)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["bob", "b,o=b"])
def test_both_sides_prove_themselves(mechanism: str, name: str) -> None:
    client, login = ScramClient(mechanism, name, "pencil", "of-the-client"), server(mechanism)
    final = client.answer(login.evaluate(client.first()).token)
    assert final is not None
    done = login.evaluate(final)
    assert done.name == name
    assert client.answer(done.token) is None


def test_a_client_recognises_a_server_that_does_not_know_the_password() -> None:
    client, login = ScramClient("SCRAM-SHA-256", "bob", "pencil", "of-the-client"), server()
    final = client.answer(login.evaluate(client.first()).token)
    assert final is not None
    token = login.evaluate(final).token
    with pytest.raises(ConfigError, match="does not know the password itself"):
        client.answer(token[:-6] + b"AAAAA=")


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0bob\0pencil",
        b"y,,n=bob,r=x",
        b"p=tls-unique,,n=bob,r=x",
        b"n,,n=bob",
        b"n,,n=bob,r=",
        b"n,,n=bob,r=a b",
        b"n,,n=,r=x",
        b"n,,n=b=2cb,r=x",
        b"n,,n=b=b,r=x",
        b"n,,n=b\0b,r=x",
        "n,,n=bäb,r=x".encode(),
        b"n,,m=must,n=bob,r=x",
        b"n,,n=bob,r=x,1=2",
        b"n,,n=bob,r=x,e",
        b"n,,n=bob,r=x,",
        b"n,,n=bob,r=x\n",
        b"n,,n=bob,r=" + b"x" * 16_500,
    ],
)
def test_a_malformed_first_message_is_refused_without_a_word(token: bytes) -> None:
    with pytest.raises(SaslRefused) as refused:
        server().evaluate(token)
    assert refused.value.told is None


def test_another_authorization_id_is_refused_before_a_user_is_looked_for() -> None:
    for name in (b"bob", b"nobody"):
        with pytest.raises(SaslRefused) as refused:
            server().evaluate(b"n,a=eve,n=" + name + b",r=x")
        assert refused.value.told == (
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    assert server().evaluate(b"n,a=bob,n=bob,r=x").token.startswith(b"r=xof-the-server,s=")


def final(
    first: bytes, answer: bytes, *, binding: bytes = b"n,,", nonce: bytes | None = None, proof: int = 32
) -> bytes:
    """The final message of bob, who knows the password, with one thing changed."""
    nonce = answer[2 : answer.index(b",")] if nonce is None else nonce
    own = b"c=" + base64.b64encode(binding) + b",r=" + nonce
    keys = credential("SCRAM-SHA-256", "pencil")
    salted = salted_password("SCRAM-SHA-256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(keys.stored_key, first + b"," + answer + b"," + own, "sha256")
    made = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return own + b",p=" + base64.b64encode((made + bytes(32))[:proof])


FIRST = b"n=bob,r=of-the-client"


@pytest.mark.parametrize(
    "change",
    [
        {"binding": b"y,,"},
        {"binding": b"n,a=bob,"},
        {"binding": b""},
        {"nonce": b"of-the-client"},
        {"nonce": b"of-the-clientof-the-serveX"},
        {"nonce": b"of-the-clientof-the-server1"},
        {"proof": 31},
        {"proof": 33},
        {"proof": 0},
    ],
)
def test_a_final_message_that_differs_in_one_thing_is_refused(change: dict[str, object]) -> None:
    login = server()
    answer = login.evaluate(b"n,," + FIRST).token
    good = final(FIRST, answer)
    with pytest.raises(SaslRefused) as refused:
        login.evaluate(final(FIRST, answer, **change))  # type: ignore[arg-type]
    assert refused.value.told is None
    other = server()
    other.evaluate(b"n,," + FIRST)
    assert other.evaluate(good).name == "bob"


def test_a_proof_is_of_no_use_to_another_login() -> None:
    login = server(nonce="another")
    login.evaluate(b"n,," + FIRST)
    first = server()
    used = final(FIRST, first.evaluate(b"n,," + FIRST).token)
    with pytest.raises(SaslRefused):
        login.evaluate(used)


def test_extensions_are_signed_as_they_came() -> None:
    first = FIRST + b",b=2,a=1"
    login = server()
    answer = login.evaluate(b"n,," + first).token
    assert login.evaluate(final(first, answer)).name == "bob"


def test_a_token_id_is_no_users_name() -> None:
    first = FIRST + b",tokenauth=true"
    login = server()
    answer = login.evaluate(b"n,," + first).token
    with pytest.raises(SaslRefused):
        login.evaluate(final(first, answer))


def test_credentials_of_few_iterations_are_refused() -> None:
    with pytest.raises(SaslRefused) as refused:
        server(iterations=4095).evaluate(b"n,," + FIRST)
    assert refused.value.told is None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_an_unknown_user_has_a_salt_of_its_own_and_fails_at_the_end(mechanism: str) -> None:
    def challenge(name: str, nonce: str = "n") -> bytes:
        return server(mechanism, nonce).evaluate(f"n,,n={name},r=x".encode()).token

    nobody = challenge("nobody")
    assert nobody == challenge("nobody"), "asking twice tells nothing"
    assert nobody != challenge("nobody2")
    salt = base64.b64decode(nobody.split(b",s=")[1].split(b",")[0])
    assert nobody.endswith(b",i=4096")
    assert 23 <= len(salt) <= 26
    assert set(salt) <= set(b"0123456789abcdefghijklmnopqrstuvwxyz")
    login = server(mechanism)
    client = ScramClient(mechanism, "nobody", "pencil", "of-the-client")
    last = client.answer(login.evaluate(client.first()).token)
    assert last is not None
    with pytest.raises(SaslRefused) as refused:
        login.evaluate(last)
    assert refused.value.told is None


def test_an_unknown_user_takes_as_long_as_a_wrong_password() -> None:
    """By the CPU time of both messages, the medians of many, in turns."""
    mechanism, users = "SCRAM-SHA-512", {"bob": credential("SCRAM-SHA-512", "pencil")}
    took: dict[str, list[int]] = {"bob": [], "eve": []}
    last = b"c=biws,r=xof-the-server,p=" + base64.b64encode(bytes(64))
    for _ in range(400):
        for name, times in took.items():
            login = ScramServer(mechanism, users.get, UNKNOWN, "of-the-server")
            began = time.thread_time_ns()
            login.evaluate(f"n,,n={name},r=x".encode())
            with pytest.raises(SaslRefused):
                login.evaluate(last)
            times.append(time.thread_time_ns() - began)
    known, unknown = median(took["bob"]), median(took["eve"])
    assert abs(known - unknown) < 0.5 * known + 20_000, "20 µs are nothing beside a network"


def test_the_keys_of_an_unknown_user_open_nothing() -> None:
    mechanism = "SCRAM-SHA-256"
    made_up = UNKNOWN.credential(mechanism, "nobody")
    login = server()
    answer = login.evaluate(b"n,,n=nobody,r=x").token
    own = b"c=biws,r=xof-the-server"
    signature = hmac.digest(made_up.stored_key, b"n=nobody,r=x," + answer + b"," + own, "sha256")
    with pytest.raises(SaslRefused):
        login.evaluate(own + b",p=" + base64.b64encode(signature))


def test_nodes_of_another_cluster_make_other_salts() -> None:
    other = UnknownUsers(b"another cluster")
    assert other.credential("SCRAM-SHA-256", "x").salt != UNKNOWN.credential("SCRAM-SHA-256", "x").salt


def test_keys_are_in_no_repr() -> None:
    assert repr(credential("SCRAM-SHA-256", "pencil")) == "ScramCredential(4096 iterations)"


def test_nonces_are_written_with_36_digits() -> None:
    assert [base36(n) for n in (0, 35, 36, 2**130 - 1)] == ["0", "z", "10", base36(2**130 - 1)]
    assert int(base36(2**130 - 1), 36) == 2**130 - 1
