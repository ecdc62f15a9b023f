"""SCRAM logins by delegation tokens: who they are, keys that are derived late, and what tells nothing."""

from __future__ import annotations

import pytest

from service.security.principal import Principal
from service.security.sasl_server import Evaluation, SaslRefused, SlowEvaluation
from service.security.scram import ScramClient, ScramServer, UnknownUsers, credential_from
from service.security.scram_credential import ScramCredential
from service.security.scram_tokens import TokenCredentials
from service.security.tokens import DelegationToken, TokenLookup, TokenSecret

UNKNOWN = UnknownUsers(b"cluster")
SECRET = TokenSecret(b"key")
ALICE = Principal("User", "alice")
TOKEN = DelegationToken("token-1", ALICE, ALICE, (), 0, 9_000, 5_000)
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Node:
    """Tokens of a node at a time."""

    def __init__(self, most: int = 10) -> None:
        self.now_ms = 1_000
        self.tokens = {"token-1": TOKEN}
        self.users: dict[str, ScramCredential] = {}
        lookup = TokenLookup(SECRET, lambda one: self.tokens.get(one), lambda: self.now_ms)
        self.credentials = TokenCredentials(lookup, UNKNOWN, most)

    def server(self, mechanism: str = "SCRAM-SHA-256") -> ScramServer:
        return ScramServer(
            mechanism,
            self.users.get,
            UNKNOWN,
            "of-the-server",
            lambda one: self.credentials.find(mechanism, one),
        )


def first(name: str = "token-1", extensions: str = ",tokenauth=true") -> bytes:
    return f"n,,n={name},r=of-the-client{extensions}".encode()


def at_once(server: ScramServer, token: bytes) -> Evaluation:
    """The answer to a token, computed here where that takes its time."""
    found = server.evaluate(token)
    return found.answer(found.compute()) if isinstance(found, SlowEvaluation) else found


def log_in(
    node: Node, mechanism: str = "SCRAM-SHA-256", token_id: str = "token-1", password: bytes | None = None
) -> Evaluation:
    password = SECRET.password_of(token_id) if password is None else password
    client = ScramClient(mechanism, token_id, password.decode(), "of-the-client", is_token=True)
    server = node.server(mechanism)
    final = client.answer(at_once(server, client.first()).token)
    assert final is not None
    last = at_once(server, final)
    assert client.answer(last.token) is None
    return last


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_token_logs_in_as_its_owner_until_it_expires(mechanism: str) -> None:
    done = log_in(Node(), mechanism)
    assert (done.name, done.expires_ms, done.is_delegation_token) == ("alice", 5_000, True)


def test_keys_are_derived_at_the_first_login_and_kept() -> None:
    node = Node()
    assert isinstance(node.server().evaluate(first()), SlowEvaluation)
    log_in(node)
    assert isinstance(node.server().evaluate(first()), Evaluation)
    assert isinstance(node.server("SCRAM-SHA-512").evaluate(first()), SlowEvaluation)


def test_two_logins_at_once_derive_the_same_keys_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    one, other = (node.server().evaluate(first()) for _ in range(2))
    assert isinstance(one, SlowEvaluation)
    assert isinstance(other, SlowEvaluation)
    made = one.compute()
    monkeypatch.setattr("service.security.scram_tokens.salted_password", None)
    assert other.compute() is made


def test_so_many_keys_are_kept_and_the_oldest_goes() -> None:
    node = Node(most=2)
    for number in range(1, 4):
        node.tokens[f"token-{number}"] = TOKEN._replace(id=f"token-{number}")
        log_in(node, token_id=f"token-{number}")
    is_slow = [isinstance(node.server().evaluate(first(f"token-{n}")), SlowEvaluation) for n in range(1, 4)]
    assert is_slow == [True, False, False]


@pytest.mark.parametrize("case", ["expired", "removed", "wrong password", "password of another"])
def test_an_ended_token_and_a_wrong_password_do_not_log_in(case: str) -> None:
    node = Node()
    log_in(node)  # so that its keys are there
    password = SECRET.password_of("token-1")
    match case:
        case "expired":
            node.now_ms = 5_001
        case "removed":
            node.tokens.clear()
        case "wrong password":
            password = b"wrong"
        case _:
            password = SECRET.password_of("token-2")
    with pytest.raises(SaslRefused, match="wrong name or password") as caught:
        log_in(node, password=password)
    assert caught.value.told is None, "the client hears what everybody hears"


def test_a_renewed_token_logs_in_longer_with_the_same_password() -> None:
    node = Node()
    node.tokens["token-1"] = TOKEN._replace(expiry_ms=8_000)
    node.now_ms = 6_000
    assert log_in(node).expires_ms == 8_000


def test_a_node_asks_for_a_token_in_the_same_way_whether_there_is_one_or_not() -> None:
    node = Node()
    known = at_once(node.server(), first())
    node.tokens.clear()
    assert node.server().evaluate(first()) == known
    nobody: dict[str, ScramCredential] = {}
    without = ScramServer("SCRAM-SHA-256", nobody.get, UNKNOWN, "of-the-server")
    assert without.evaluate(first()) == known
    assert known.token.endswith(b",i=4096")


def test_users_and_tokens_are_never_taken_for_each_other() -> None:
    node = Node()
    salted = b"\x01" * 32
    node.users["token-1"] = credential_from("SCRAM-SHA-256", salted, b"salt of a user", 4096)
    node.users["bob"] = node.users["token-1"]
    of_the_user = node.server().evaluate(first(extensions=""))
    assert isinstance(of_the_user, Evaluation)
    assert of_the_user.token.endswith(b",s=c2FsdCBvZiBhIHVzZXI=,i=4096")
    assert at_once(node.server(), first()).token != of_the_user.token
    bob = node.server()
    assert not at_once(bob, first("bob")).token.endswith(b",s=c2FsdCBvZiBhIHVzZXI=,i=4096")


@pytest.mark.parametrize(
    ("extensions", "is_token"),
    [
        (",tokenauth=true", True),
        (",tokenauth=TRUE", True),
        (",x=y,tokenauth=true", True),
        (",tokenauth=false,tokenauth=true", True),
        (",tokenauth=true,tokenauth=false", False),
        (",tokenauth=false", False),
        (",tokenauth=yes", False),
        (",TokenAuth=true", False),
        (",xtokenauth=true", False),
        ("", False),
    ],
)
def test_an_extension_asks_for_a_token_as_it_asks_kafka_for_one(extensions: str, is_token: bool) -> None:
    found = Node().server().evaluate(first(extensions=extensions))
    assert isinstance(found, SlowEvaluation) == is_token


def test_another_authorization_id_than_the_tokens_is_refused() -> None:
    with pytest.raises(SaslRefused, match="another authorization id"):
        Node().server().evaluate(b"n,a=alice,n=token-1,r=x,tokenauth=true")
    assert isinstance(Node().server().evaluate(b"n,a=token-1,n=token-1,r=x,tokenauth=true"), SlowEvaluation)
