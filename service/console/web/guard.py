"""Who may look: the token, the sessions made with it, and what one address may try. [P]

A token is compared in constant time. Whoever is wrong too often from one address is not compared any more for
a while, right or not: so guesses cost time. Without a token only names of this machine are served, so that no
page of somebody else's can have a browser look here under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

MOST_WRONG: Final = 5
WINDOW_MS: Final = 60_000
MOST_ADDRESSES: Final = 10_000
MOST_SESSIONS: Final = 1_000
SESSION_MS: Final = 12 * 3_600_000
LEAST_TOKEN: Final = 8


class Verdict(Enum):
    """What becomes of a request."""

    WELCOME = "welcome"
    UNKNOWN = "unknown"
    """no token, or a wrong one"""
    TOO_OFTEN = "too often"


class Guard:
    """`new_secret` makes what nobody can guess, `now_ms` is a clock that never goes back."""

    def __init__(self, token: str | None, new_secret: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._digest = None if token is None else _digest(token)
        self._new_secret = new_secret
        self._now_ms = now_ms
        self._wrong: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._sessions: OrderedDict[bytes, int] = OrderedDict()

    @property
    def asks(self) -> bool:
        """Whether a token is needed at all."""
        return self._digest is not None

    def admits_host(self, host: str) -> bool:
        """Whether a request that names `host` (its header, port included) is for us."""
        return self.asks or is_loopback(_bare(host))

    def judge_token(self, address: str, token: str | None) -> Verdict:
        """A token from `address`; None where there is none, which counts as no try."""
        if self._digest is None:
            return Verdict.WELCOME
        if token is None:
            return Verdict.UNKNOWN
        address = _source(address)
        begin, wrong = self._wrong.get(address, (0, 0))
        now = self._now_ms()
        if wrong and now - begin >= WINDOW_MS:
            begin, wrong = 0, 0
        if wrong >= MOST_WRONG:
            return Verdict.TOO_OFTEN
        if hmac.compare_digest(self._digest, _digest(token)):
            self._wrong.pop(address, None)
            return Verdict.WELCOME
        self._wrong[address] = (begin if wrong else now, wrong + 1)
        self._wrong.move_to_end(address)
        if len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)
        return Verdict.UNKNOWN

    def open_session(self) -> str:
        """The secret of a new session, for who has shown the token."""
        secret = self._new_secret()
        self._sessions[_digest(secret)] = self._now_ms() + SESSION_MS
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return secret

    def knows_session(self, secret: str | None) -> bool:
        """Whether a session of this secret is open."""
        if self._digest is None:
            return True
        if not secret:
            return False
        # Found by its digest: how long that takes says nothing of other secrets.
        until = self._sessions.get(_digest(secret))
        return until is not None and self._now_ms() < until

    def close_session(self, secret: str) -> None:
        self._sessions.pop(_digest(secret), None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _bare(host: str) -> str:
    """The name or address of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _source(address: str) -> str:
    """Who is counted as one: an IPv4 address, or the 2^64 addresses of one IPv6 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> 64 << 64))


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine and no other. A name that begins as an address does is a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
