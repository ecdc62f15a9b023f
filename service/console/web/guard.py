"""Access control: the token, sessions, forms of other sites, a limit of wrong tokens per address. [P]

Tokens are compared in constant time. After too many wrong ones an address is refused for a while, even with
the right token, so guesses cost time. Without a token only loopback names are served, so that no other site's
page can make a browser read the console under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Final

from service.base.addresses import is_loopback, source_of

MOST_WRONG: Final = 5
WINDOW_MS: Final = 60_000
MOST_ADDRESSES: Final = 10_000
MOST_SESSIONS: Final = 1_000
SESSION_MS: Final = 12 * 3_600_000
LEAST_TOKEN: Final = 8


class TokenVerdict(Enum):
    """Result of the check of a token."""

    WELCOME = "welcome"
    UNKNOWN = "unknown"
    """no token, or a wrong one"""
    TOO_OFTEN = "too often"


class Guard:
    """Access control of one console. `new_secret` returns a random secret, `now_ms` is a monotonic clock."""

    def __init__(self, token: str | None, new_secret: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._digest = None if token is None else _digest(token)
        self._new_secret = new_secret
        self._now_ms = now_ms
        self._wrong: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._sessions: OrderedDict[bytes, int] = OrderedDict()
        self._form_key: bytes | None = None

    @property
    def asks(self) -> bool:
        """True if a token is configured."""
        return self._digest is not None

    def is_token(self, token: str | None) -> bool:
        """Return whether this is the token; it is no attempt. True where none is set."""
        if self._digest is None:
            return True
        return token is not None and hmac.compare_digest(self._digest, _digest(token))

    def change_token(self, token: str) -> None:
        """Take another token from now on, and end all sessions: they were opened with the old one."""
        self._digest = _digest(token)
        self._sessions.clear()

    def admits_host(self, host: str) -> bool:
        """Return whether requests with this Host header (port included) are served."""
        return self.asks or is_loopback(_bare(host))

    def judge_token(self, address: str, token: str | None) -> TokenVerdict:
        """Check a token from `address`; None is no attempt."""
        if self._digest is None:
            return TokenVerdict.WELCOME
        if token is None:
            return TokenVerdict.UNKNOWN
        address = source_of(address)
        begin, wrong = self._wrong.get(address, (0, 0))
        now = self._now_ms()
        if wrong and now - begin >= WINDOW_MS:
            begin, wrong = 0, 0
        if wrong >= MOST_WRONG:
            return TokenVerdict.TOO_OFTEN
        if hmac.compare_digest(self._digest, _digest(token)):
            self._wrong.pop(address, None)
            return TokenVerdict.WELCOME
        self._wrong[address] = (begin if wrong else now, wrong + 1)
        self._wrong.move_to_end(address)
        if len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)
        return TokenVerdict.UNKNOWN

    def open_session(self) -> str:
        """Return the secret of a new session, after a check of the token."""
        secret = self._new_secret()
        self._sessions[_digest(secret)] = self._now_ms() + SESSION_MS
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return secret

    def knows_session(self, secret: str | None) -> bool:
        """Return whether a session with this secret is open; always True where no token is set."""
        if self._digest is None:
            return True
        if not secret:
            return False
        # A lookup by digest: its time reveals nothing about other secrets.
        until = self._sessions.get(_digest(secret))
        return until is not None and self._now_ms() < until

    def close_session(self, secret: str) -> None:
        self._sessions.pop(_digest(secret), None)

    def form_token(self, secret: str) -> str:
        """Return what a form of this session carries; it does not tell the session's secret."""
        if self._form_key is None:
            self._form_key = self._new_secret().encode()
        return hmac.new(self._form_key, _digest(secret), hashlib.sha256).hexdigest()

    def admits_form(self, secret: str, token: str) -> bool:
        """Return whether a form with this token was made for this session."""
        given = token.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(self.form_token(secret).encode(), given)

    @staticmethod
    def session_name(secret: str) -> str:
        """Return the name of a session in the log; it does not tell the secret."""
        return _digest(secret).hex()[:12]


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _bare(host: str) -> str:
    """Return the name or address of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def is_same_origin(origin: str | None, host: str | None) -> bool:
    """Return False for a request that a page of another site sent, by its Origin and Host headers.

    A request without an Origin, or with ``null``, passes: browsers send that for the console's own forms, as
    its pages have ``Referrer-Policy: no-referrer``. Session cookies are ``SameSite=Strict`` besides.
    """
    return origin is None or origin == "null" or origin.partition("://")[2] == host
