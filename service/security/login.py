"""ServerLogin of one connection: which message may come in which state, and what ends it. [P]

The states move by the table `MOVES`; an illegal move raises `InvariantError`. `network/authenticating` reads
the messages and calls the methods; whatever raises `LoginEnded` or `SaslRefused` has moved to FAILED.

    INITIAL -> VERSIONS_OR_HANDSHAKE -> HANDSHAKE -> AUTHENTICATE -> COMPLETE | FAILED
    COMPLETE -> REAUTHENTICATE -> AUTHENTICATE | WRONG_MECHANISM -> …

Source: Kafka ``SaslServerAuthenticator`` (`SaslState`), KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from service.base.errors import FirnError, InvariantError
from service.security.principal import USER, Principal
from service.security.sasl_server import Evaluation, SaslRefused, SaslServer, SlowEvaluation

MOST_ROUNDS: Final = 8
"""Tokens of one login; SCRAM takes two, and OAUTHBEARER two if it fails."""
MIN_REAUTHENTICATION_S: Final = 1.0
"""Time between two reauthentications (Kafka's ``MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``)."""


class LoginState(IntEnum):
    """Progress of a connection's login, or of its reauthentication."""

    INITIAL = 0
    """nothing that could be read has come yet"""
    VERSIONS_OR_HANDSHAKE = 1
    HANDSHAKE = 2
    """ApiVersions is answered: SaslHandshake comes next"""
    AUTHENTICATE = 3
    COMPLETE = 4
    FAILED = 5
    REAUTHENTICATE = 6
    """a SaslHandshake came although the login is complete"""
    WRONG_MECHANISM = 7
    """reauthentication with another mechanism: its handshake was answered, its first token ends it"""


_S = LoginState
MOVES: Final[Mapping[LoginState, frozenset[LoginState]]] = {
    _S.INITIAL: frozenset({_S.VERSIONS_OR_HANDSHAKE, _S.FAILED}),
    _S.VERSIONS_OR_HANDSHAKE: frozenset({_S.HANDSHAKE, _S.AUTHENTICATE, _S.FAILED}),
    _S.HANDSHAKE: frozenset({_S.AUTHENTICATE, _S.FAILED}),
    _S.AUTHENTICATE: frozenset({_S.COMPLETE, _S.FAILED}),
    _S.COMPLETE: frozenset({_S.REAUTHENTICATE}),
    _S.REAUTHENTICATE: frozenset({_S.AUTHENTICATE, _S.WRONG_MECHANISM, _S.FAILED}),
    _S.WRONG_MECHANISM: frozenset({_S.FAILED}),
    _S.FAILED: frozenset(),
}


class LoginEnded(FirnError):
    """A message that may not come now. The text is for the log."""


class UnsupportedMechanism(LoginEnded):
    """A mechanism that the listener does not have: the client is told which it has."""


class ServerLogin:
    """State of one connection's login."""

    __slots__ = (
        "_began_s",
        "_mechanisms",
        "_rounds",
        "_server",
        "has_headers",
        "mechanism",
        "principal",
        "state",
    )

    def __init__(self, mechanisms: Mapping[str, Callable[[], SaslServer]]) -> None:
        """`mechanisms` are those that are enabled, by name; each returns the server of a new login."""
        self.state = LoginState.INITIAL
        self.mechanism = ""
        self.principal: Principal | None = None
        """who logged in, once complete; kept through a reauthentication"""
        self.has_headers = False
        """whether tokens come in SaslAuthenticate requests (KIP-152), or bare"""
        self._mechanisms = mechanisms
        self._server: SaslServer | None = None
        self._rounds = 0
        self._began_s: float | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Names of the mechanisms that are enabled."""
        return tuple(self._mechanisms)

    @property
    def is_complete(self) -> bool:
        return self.state is LoginState.COMPLETE

    @property
    def takes_tokens(self) -> bool:
        """True if the next message is a token, or has one."""
        return self.state in (LoginState.AUTHENTICATE, LoginState.WRONG_MECHANISM)

    def request_came(self) -> None:
        """Note that a request of an expected API could be read. Raises `LoginEnded` where tokens are due."""
        if self.state is LoginState.INITIAL:
            self._move(LoginState.VERSIONS_OR_HANDSHAKE)
        elif self.state not in (
            LoginState.VERSIONS_OR_HANDSHAKE, LoginState.HANDSHAKE, LoginState.REAUTHENTICATE,
        ):  # fmt: skip
            raise InvariantError(f"a request is no message of the state {self.state.name}")

    def versions_came(self, *, is_valid: bool) -> None:
        """Note an ApiVersions request; after an invalid one (of an unknown version) another may come."""
        if self.state is not LoginState.VERSIONS_OR_HANDSHAKE:
            raise self.ended(f"ApiVersions in the state {self.state.name}")
        if is_valid:
            self._move(LoginState.HANDSHAKE)

    def handshake_came(self, mechanism: str, version: int) -> None:
        """Note a SaslHandshake request, which is to be answered. Raises `UnsupportedMechanism`."""
        self.has_headers = version >= 1
        made = self._mechanisms.get(mechanism)
        if made is None:
            self._move(LoginState.FAILED)
            raise UnsupportedMechanism(f"SASL mechanism {mechanism} is not enabled")
        if self.state is LoginState.REAUTHENTICATE and mechanism != self.mechanism:
            self._move(LoginState.WRONG_MECHANISM)
            return
        self._move(LoginState.AUTHENTICATE)
        self.mechanism, self._server, self._rounds = mechanism, made(), 0

    def token_came(self, token: bytes) -> Evaluation | SlowEvaluation:
        """Return the mechanism's answer to a token, or what takes its time: then `computed` follows.

        Raises `SaslRefused`, after which the login has failed."""
        if self.state is LoginState.WRONG_MECHANISM:
            raise self.ended(f"reauthentication with another mechanism than {self.mechanism}")
        if self.state is not LoginState.AUTHENTICATE or self._server is None:
            raise InvariantError(f"a token is no message of the state {self.state.name}")
        self._rounds += 1
        try:
            if self._rounds > MOST_ROUNDS:
                raise SaslRefused(f"{self.mechanism}: more than {MOST_ROUNDS} tokens")
            found = self._server.evaluate(token)
            return found if isinstance(found, SlowEvaluation) else self._evaluated(found)
        except SaslRefused:
            self._fail()
            raise

    def computed(self, slow: SlowEvaluation, result: object) -> Evaluation:
        """Return the answer to the last token, from what its computing gave. Raises as `token_came`."""
        try:
            return self._evaluated(slow.answer(result))
        except SaslRefused:
            self._fail()
            raise

    def _evaluated(self, found: Evaluation) -> Evaluation:
        if found.name is not None:
            self._identify(Principal(USER, found.name, found.is_delegation_token))
            self._move(LoginState.COMPLETE)
            self._server = None
        return found

    def _fail(self) -> None:
        self._move(LoginState.FAILED)
        self._server = None

    def _identify(self, principal: Principal) -> None:
        before = self.principal
        if before is not None and before[:2] != principal[:2]:
            told = f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
            told += f"{principal.type}.{principal.name}"
            raise SaslRefused(told, told)
        self.principal = principal

    def reauthenticate(self, now_s: float) -> bool:
        """Begin a reauthentication, unless one began less than a second ago; return whether it begins."""
        if self._began_s is not None and now_s - self._began_s < MIN_REAUTHENTICATION_S:
            return False
        self._move(LoginState.REAUTHENTICATE)
        self._began_s = now_s
        return True

    def ended(self, reason: str) -> LoginEnded:
        """Move to FAILED; return the error to raise."""
        self._move(LoginState.FAILED)
        return LoginEnded(reason)

    def _move(self, state: LoginState) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"a login cannot go from {self.state.name} to {state.name}")
        self.state = state
