"""Server's side of a SASL mechanism: what each of them returns and raises. [P]

A mechanism is a machine: it takes the client's tokens one after the other and returns what to answer, with
the name of the client once it is known. It reads no clock and makes no randomness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from service.base.errors import FirnError


class Evaluation(NamedTuple):
    """Answer to a token: a challenge, or the last answer of a login that is complete."""

    token: bytes
    name: str | None = None
    """name of the client; None while the login goes on"""
    expires_ms: int | None = None
    """time since the epoch at which the credential ends, None if it does not"""
    is_delegation_token: bool = False


class SlowEvaluation(NamedTuple):
    """A token whose answer takes some milliseconds of computing, which is for a thread.

    `compute` is pure and may run anywhere; `answer` makes the answer of its result, and raises `SaslRefused`.
    """

    compute: Callable[[], Any]
    answer: Callable[[Any], Evaluation]


class SaslRefused(FirnError):
    """A token that ends the login. The text is for the log.

    `told`: what the client is told in place of the words that all wrong credentials have; None for those. It
    never says whether a user exists.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


class SaslUnavailable(SaslRefused):
    """A token that cannot be judged now. The connection ends without an answer, so that its client tries
    again: an answer would tell it that its credentials are wrong."""


class SaslServer(Protocol):
    """The server's side of one login (Java's ``javax.security.sasl.SaslServer``)."""

    def evaluate(self, token: bytes) -> Evaluation | SlowEvaluation:
        """Return the answer to the client's next token. Raises `SaslRefused`, which ends the login."""
