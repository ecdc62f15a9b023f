"""Gate of a listener with SASL: sessions, their ends, reauthentication, and what is told to whom."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from typing import Any

import pytest

from service.network.authenticating import Authenticator
from service.network.request import Closing, LoggedIn, PeerContext, RequestContext, Response
from service.security.oauthbearer import AcceptedToken, OAuthBearerServer
from service.security.principal import Principal
from service.security.scram import ScramClient, UnknownUsers
from service.security.scram_tokens import TokenCredentials
from service.security.tokens import DelegationToken, TokenLookup, TokenSecret
from service.wire.errors import MalformedMessage, WireError
from tests.support.login_frames import message
from tests.support.logins import Clock, Listener

METADATA = 3


class Peer:
    """A client of the gate; `send` returns the body of the answer, None without one."""

    def __init__(self, listener: Listener) -> None:
        self.gate: Authenticator = listener.connect()
        self.context: PeerContext = self.gate.context
        self.handler: Any = self.gate.handle
        self.last: Response | None = None
        self.is_open = True

    def send(self, frame: bytes) -> bytes | None:
        assert self.is_open
        return self.heard(self.handler(self.context, memoryview(bytearray(frame))))

    async def send_and_wait(self, frame: bytes) -> bytes | None:
        """Do what `send` does, for an answer that comes later."""
        answer = self.handler(self.context, memoryview(bytearray(frame)))
        assert isinstance(answer, Awaitable)
        return self.heard(await answer)

    def heard(self, answer: Any) -> bytes | None:
        assert isinstance(answer, Response)
        self.last = answer
        if isinstance(answer, LoggedIn):
            self.context, self.handler = answer.context, answer.handler
        if isinstance(answer, Closing):
            self.is_open = False
        return b"".join(map(bytes, answer.parts))[8:] if answer.parts else None  # type: ignore[arg-type]

    def log_in(self) -> bytes | None:
        self.send(message("plain", 1))
        return self.send(message("right", 2))


def authenticate(token: bytes, version: int = 1) -> bytes:
    return struct.pack(">hhih", 36, version, 7, -1) + struct.pack(">i", len(token)) + token


def handshake(mechanism: str) -> bytes:
    return struct.pack(">hhih", 17, 1, 7, -1) + struct.pack(">h", len(mechanism)) + mechanism.encode()


def told(body: bytes | None) -> tuple[int, str | None]:
    """(code, message) of SaslAuthenticate 1."""
    assert body is not None
    code, size = struct.unpack_from(">hh", body)
    return code, None if size < 0 else body[4 : 4 + size].decode()


def lifetime(body: bytes | None) -> int:
    assert body is not None
    return struct.unpack(">q", body[-8:])[0]  # type: ignore[no-any-return]


def test_a_login_gives_a_session_and_the_listeners_own_handler() -> None:
    listener = Listener()
    peer = Peer(listener)
    assert peer.log_in() is not None
    context = peer.context
    assert isinstance(context, RequestContext)
    assert context.session.principal == Principal("User", "alice")
    assert (context.session.protocol, context.session.listener) == ("SASL_PLAINTEXT", "SASL")
    assert context.session.expires_s is None
    assert peer.handler == listener.logins.handler
    peer.send(message("metadata", 3))
    assert listener.asked == [("User:alice", METADATA)]
    assert (listener.metrics.succeeded, listener.metrics.failed) == (1, 0)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_takes_two_tokens(mechanism: str) -> None:
    listener = Listener()
    peer, client = Peer(listener), ScramClient(mechanism, "bob", "pencil", "of-the-client")
    peer.send(handshake(mechanism))
    body = peer.send(authenticate(client.first()))
    assert body is not None
    final = client.answer(body[8:-8])
    assert final is not None
    peer.send(authenticate(final))
    assert isinstance(peer.context, RequestContext)
    assert peer.context.session.principal == Principal("User", "bob")


@pytest.mark.parametrize(
    ("mechanism", "token", "words"),
    [
        ("PLAIN", b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"\0nobody\0wrong", "Authentication failed: Invalid username or password"),
        (
            "SCRAM-SHA-256",
            b"nonsense",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            "SCRAM-SHA-256",
        ),
    ],
)
def test_a_failed_login_is_told_in_kafkas_words_after_the_delay(
    mechanism: str, token: bytes, words: str
) -> None:
    listener = Listener(failed_delay_ms=250)
    peer = Peer(listener)
    peer.send(handshake(mechanism))
    assert told(peer.send(authenticate(token))) == (58, words)
    assert isinstance(peer.last, Closing)
    assert peer.last.delay_s == 0.25
    assert (listener.metrics.succeeded, listener.metrics.failed) == (0, 1)
    assert not listener.asked


def test_a_mechanism_of_another_listener_is_not_enabled_here() -> None:
    peer = Peer(Listener(mechanisms=("SCRAM-SHA-512",)))
    assert peer.send(handshake("PLAIN")) == struct.pack(">hih", 33, 1, 13) + b"SCRAM-SHA-512"
    assert isinstance(peer.last, Closing)


@pytest.mark.parametrize("count", [8, 9])
def test_empty_tokens_end_a_login(count: int) -> None:
    peer = Peer(Listener())
    peer.send(handshake("SCRAM-SHA-256"))
    assert told(peer.send(authenticate(b"")))[0] == 58
    assert not peer.is_open


# -- sessions that end (KIP-368)

MAX_REAUTH: dict[str, Any] = {"max_reauth_ms": {"PLAIN": 60_000}}


def test_a_session_has_the_lifetime_of_its_mechanism() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.send(handshake("PLAIN"))
    assert lifetime(peer.send(authenticate(b"\0alice\0secret"))) == 60_000
    assert isinstance(peer.context, RequestContext)
    assert peer.context.session.expires_s == 1060.0
    listener.clock.now_s = 1060.0
    assert peer.send(message("metadata", 3)) is not None
    listener.clock.now_s = 1060.001
    assert peer.send(message("metadata", 4)) is None
    assert isinstance(peer.last, Closing)
    assert peer.last.delay_s == 0
    assert listener.metrics.expired == 1
    assert listener.asked == [("User:alice", METADATA)]


def test_scram_of_a_listener_with_a_lifetime_for_plain_does_not_end() -> None:
    listener = Listener(**MAX_REAUTH)
    peer, client = Peer(listener), ScramClient("SCRAM-SHA-256", "bob", "pencil", "of-the-client")
    peer.send(handshake("SCRAM-SHA-256"))
    body = peer.send(authenticate(client.first()))
    assert body is not None
    assert lifetime(body) == 0
    final = client.answer(body[8:-8])
    assert final is not None
    assert lifetime(peer.send(authenticate(final))) == 0
    assert peer.handler == listener.logins.handler


def test_a_reauthentication_makes_a_new_session_even_after_the_end() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    context = peer.context
    assert isinstance(context, RequestContext)
    first = context.session
    listener.clock.now_s = 2000.0
    assert peer.send(handshake("PLAIN")) is not None
    listener.clock.now_s = 2000.5
    assert lifetime(peer.send(authenticate(b"\0alice\0secret"))) == 60_000
    assert context.session is not first
    assert context.session.expires_s == 2060.5
    assert peer.send(message("metadata", 3)) is not None
    metrics = listener.metrics
    assert (metrics.succeeded, metrics.succeeded_again, metrics.failed_again) == (1, 1, 0)
    assert sum(metrics.reauthentication.counts) == 1


@pytest.mark.parametrize(("pause_s", "is_in_time"), [(10.0, True), (10.001, False)])
def test_a_reauthentication_has_the_time_of_a_login(pause_s: float, is_in_time: bool) -> None:
    """Else one that was begun with a credential could be ended long after that was taken away."""
    listener = Listener(max_reauth_ms={"SCRAM-SHA-256": 60_000})
    peer = Peer(listener)
    for _ in range(2):
        client = ScramClient("SCRAM-SHA-256", "bob", "pencil", "of-the-client")
        peer.send(handshake("SCRAM-SHA-256"))
        body = peer.send(authenticate(client.first()))
        assert body is not None
        final = client.answer(body[8:-8])
        assert final is not None
        if listener.metrics.succeeded:
            listener.clock.now_s += pause_s
        peer.send(authenticate(final))
    assert (peer.is_open, listener.metrics.late) == (is_in_time, int(not is_in_time))
    assert listener.metrics.succeeded_again == is_in_time


def test_a_reauthentication_begins_once_a_second_and_is_refused_before() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    peer.send(handshake("PLAIN"))
    peer.send(authenticate(b"\0alice\0secret"))
    listener.clock.now_s += 0.9
    assert peer.send(handshake("PLAIN")) == struct.pack(">hi", 34, 0)
    assert peer.is_open
    assert peer.send(message("metadata", 3)) is not None
    listener.clock.now_s += 0.1
    assert peer.send(handshake("PLAIN")) == struct.pack(">hi", 0, 3) + (
        b"\0\x05PLAIN\0\x0dSCRAM-SHA-256\0\x0dSCRAM-SHA-512"
    )


def test_a_reauthentication_as_somebody_else_fails() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    peer.send(handshake("PLAIN"))
    assert told(peer.send(authenticate(b"\0eve\0evil"))) == (
        58, "Cannot change principals during re-authentication from User.alice: User.eve",
    )  # fmt: skip
    assert isinstance(peer.last, Closing)
    assert listener.metrics.failed_again == 1
    assert isinstance(peer.context, RequestContext)
    assert peer.context.session.principal == Principal("User", "alice")


def test_a_wrong_password_in_a_reauthentication_says_so() -> None:
    peer = Peer(Listener(**MAX_REAUTH, mechanisms=("PLAIN",)))
    peer.log_in()
    peer.send(handshake("PLAIN"))
    code, words = told(peer.send(authenticate(b"\0alice\0wrong")))
    assert (code, words) == (58, "Authentication failed: Invalid username or password")


def test_a_reauthentication_with_another_mechanism_is_answered_and_ends_at_its_token() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    answer = peer.send(handshake("SCRAM-SHA-256"))
    assert answer is not None
    assert answer[:2] == b"\0\0"
    assert peer.send(authenticate(b"\0alice\0secret")) is None
    assert isinstance(peer.last, Closing)
    assert listener.metrics.failed_again == 1


def test_no_request_is_handled_amid_a_reauthentication() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    peer.send(handshake("PLAIN"))
    assert peer.send(message("metadata", 5)) is not None, "Metadata's own answer with ILLEGAL_SASL_STATE"
    assert isinstance(peer.last, Closing)
    assert not listener.asked


def test_requests_that_waited_for_a_pause_count_as_come_when_they_were_read() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    listener.clock.now_s = 1070.0
    peer.gate.unmuted(last_read=1059.0)
    assert peer.send(message("metadata", 3)) is not None
    peer.gate.unmuted(last_read=1059.0)
    assert peer.send(message("metadata", 4)) is not None, "still of the first pause: nothing was read since"
    listener.clock.now_s = 1080.0
    assert peer.send(message("metadata", 5)) is None
    assert listener.metrics.expired == 1


def test_requests_read_after_the_end_are_late_behind_a_pause_too() -> None:
    listener = Listener(**MAX_REAUTH)
    peer = Peer(listener)
    peer.log_in()
    listener.clock.now_s = 1070.0
    peer.gate.unmuted(last_read=1065.0)
    assert peer.send(message("metadata", 3)) is None
    assert not peer.is_open


# -- what closes without an answer


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0",
        b"\x60\x82\x02\x00GSSAPI token of an old client",
        message("http", 0),
        message("metadata", 0),
        message("produce", 0),
        message("right", 0),
        struct.pack(">hhih", 17, 2, 0, -1),
        struct.pack(">hhih", 17, 1, 0, -1) + b"\x7f\xff",
        struct.pack(">hhih", 17, 1, 0, 5000) + b"x",
    ],
)
def test_anything_else_first_closes_without_an_answer(frame: bytes) -> None:
    listener = Listener()
    peer = Peer(listener)
    with pytest.raises(MalformedMessage):
        peer.send(frame)
    assert not listener.asked


@pytest.mark.parametrize("key", [0, 1, 2, 3, 8, 9, 10, 11, 12, 18, 19, 22, 32, 60, 68, 75])
def test_any_other_api_in_place_of_a_token_ends_the_login(key: int) -> None:
    listener = Listener()
    peer = Peer(listener)
    peer.send(handshake("PLAIN"))
    try:
        peer.send(struct.pack(">hhih", key, 0, 7, -1) + bytes(64))
    except WireError:
        peer.is_open = False
    assert not peer.is_open
    assert not listener.asked


# -- delegation tokens: an answer that comes later


def with_token(clock: Any, expiry_ms: int) -> tuple[Listener, bytes]:
    """A listener whose alice has the token "id", and its password."""
    secret, alice = TokenSecret(b"key"), Principal("User", "alice")
    token = DelegationToken("id", alice, alice, (), 0, expiry_ms, expiry_ms)
    lookup = TokenLookup(secret, {"id": token}.get, lambda: int(clock() * 1000))
    return Listener(clock, TokenCredentials(lookup, UnknownUsers(b"cluster"))), secret.password_of("id")


def by_token(password: bytes, mechanism: str = "SCRAM-SHA-256") -> ScramClient:
    return ScramClient(mechanism, "id", password.decode(), "of-the-client", is_token=True)


def test_a_login_by_a_token_is_answered_once_its_keys_are_derived_and_ends_with_it() -> None:
    async def scenario() -> None:
        clock = Clock()
        listener, password = with_token(clock, 1_060_000)
        peer, client = Peer(listener), by_token(password)
        peer.send(handshake("SCRAM-SHA-256"))
        body = await peer.send_and_wait(authenticate(client.first()))
        assert body is not None
        final = client.answer(body[8:-8])
        assert final is not None
        assert lifetime(peer.send(authenticate(final))) == 60_000
        assert isinstance(peer.context, RequestContext)
        assert peer.context.session.principal == Principal("User", "alice", is_token=True)
        assert peer.context.session.expires_s == 1_060.0
        clock.now_s = 1_060.5
        peer.send(message("metadata", 3))
        assert not peer.is_open
        assert listener.metrics.expired == 1

    asyncio.run(scenario())


def test_a_reauthentication_by_a_token_waits_for_its_keys_too() -> None:
    async def scenario() -> None:
        clock = Clock()
        listener, password = with_token(clock, 1_060_000)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            peer = Peer(listener)
            for again in range(2):
                client = by_token(password, mechanism)
                peer.send(handshake(mechanism))
                if again:
                    body = peer.send(authenticate(client.first()))
                else:
                    body = await peer.send_and_wait(authenticate(client.first()))
                assert body is not None
                final = client.answer(body[8:-8])
                assert final is not None
                peer.send(authenticate(final))
                clock.now_s += 2
        assert (listener.metrics.succeeded, listener.metrics.succeeded_again) == (2, 2)

    asyncio.run(scenario())


def test_a_wrong_token_is_told_what_every_wrong_login_is_told() -> None:
    async def scenario() -> None:
        listener, _ = with_token(Clock(), 1_060_000)
        peer, client = Peer(listener), by_token(b"wrong")
        peer.send(handshake("SCRAM-SHA-256"))
        body = await peer.send_and_wait(authenticate(client.first()))
        assert body is not None
        final = client.answer(body[8:-8])
        assert final is not None
        words = "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        assert told(peer.send(authenticate(final))) == (58, words + "SCRAM-SHA-256")
        assert not peer.is_open

    asyncio.run(scenario())


def test_a_bare_first_message_of_a_token_is_answered_bare() -> None:
    async def scenario() -> None:
        listener, password = with_token(Clock(), 1_060_000)
        peer, client = Peer(listener), by_token(password)
        name = b"SCRAM-SHA-256"
        peer.send(struct.pack(">hhih", 17, 0, 7, -1) + struct.pack(">h", len(name)) + name)
        answer = peer.handler(peer.context, memoryview(client.first()))
        assert isinstance(answer, Awaitable)
        (frame,) = (await answer).parts
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        final = client.answer(bytes(frame[4:]))
        assert final is not None
        peer.heard(peer.handler(peer.context, memoryview(final)))
        assert isinstance(peer.context, RequestContext)
        assert peer.context.session.principal.is_token

    asyncio.run(scenario())


def test_a_refusal_that_repeats_a_long_name_fits_in_every_version() -> None:
    listener = Listener()
    listener.logins.servers = {
        "OAUTHBEARER": lambda: OAuthBearerServer(lambda _: AcceptedToken("alice", 1 << 50))
    }
    peer = Peer(listener)
    peer.send(handshake("OAUTHBEARER"))
    code, words = told(peer.send(authenticate(b"n,a=" + b"x" * 40_000 + b",\x01auth=Bearer t\x01\x01")))
    assert (code, peer.is_open) == (58, False)
    assert words is not None
    assert words.startswith("Authentication failed: Client requested an authorization id (xxx")
    assert len(words) == 1000
