"""SASL OAUTHBEARER (RFC 7628): a bearer token in the client's first message. [P]

A token that does not count is answered with JSON, which the client acknowledges with one byte; that fails the
login with the same JSON. Extensions are read, as their form may be wrong, and dropped: nothing here asks for
them. Source: Kafka ``OAuthBearerClientInitialResponse``, ``OAuthBearerSaslServer``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from service.base.errors import ConfigError, FirnError
from service.security.sasl_server import Evaluation, SaslRefused

ACKNOWLEDGED: Final = b"\x01"
"""The client's answer to the JSON of an error."""
INVALID_TOKEN: Final = "invalid_token"
_AUTH: Final = "auth"
_SEPARATOR: Final = "\x01"
_MOST_BYTES: Final = 64 << 10
"""Longest message. Tokens have one or two KiB; more would only cost time."""
_MOST_NAME_BYTES: Final = 32_767 - len("User:")
"""Longest name in UTF-8: what older versions of messages carry."""

_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_KEY: Final = r"[A-Za-z]+"
_VALUE: Final = r"[\x21-\x7e \t\r\n]+"
_PAIRS: Final = rb"(?:%s=%s\x01)*" % (_KEY.encode(), _VALUE.encode())
_FIRST: Final = re.compile(rb"n,(?:a=(?P<authzid>%s))?,\x01(?P<pairs>%s)\x01" % (_NAME, _PAIRS))
_BEARER: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_EXTENSION_KEY: Final = re.compile(_KEY)
_EXTENSION_VALUE: Final = re.compile(_VALUE)


class InitialResponse(NamedTuple):
    """The client's first message. `authzid` is "" where the client names none."""

    token: str
    authzid: str
    extensions: Mapping[str, str]


class AcceptedToken(NamedTuple):
    """Owner of a token that counts, and its end in milliseconds since the epoch."""

    name: str
    expires_ms: int


class TokenRefused(FirnError):
    """A token that does not count. The text is for the log and repeats nothing of the token but its claims.

    `status` and `scope` are what the client is told (RFC 6750).
    """

    def __init__(self, reason: str, status: str = INVALID_TOKEN, scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


ValidateToken = Callable[[str], AcceptedToken]
"""Returns the owner of a token; raises `TokenRefused`, or `SaslUnavailable` where it cannot know."""


def read_initial(data: bytes) -> InitialResponse:
    """Read the client's first message. Raises `SaslRefused`."""
    match = _FIRST.fullmatch(data) if len(data) <= _MOST_BYTES else None
    if match is None:
        raise SaslRefused("OAUTHBEARER: an invalid first message")
    pairs = match["pairs"].decode("ascii").split(_SEPARATOR)[:-1]
    found = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    auth = found.pop(_AUTH, None)
    bearer = None if auth is None else _BEARER.fullmatch(auth)
    if bearer is None or bearer["scheme"].lower() != "bearer":
        raise SaslRefused("OAUTHBEARER: a first message without a bearer token")
    return InitialResponse(bearer["token"], (match["authzid"] or b"").decode("ascii"), found)


def write_initial(token: str, extensions: Mapping[str, str]) -> bytes:
    """Return the client's first message. Raises `ConfigError` for what Kafka would refuse."""
    if _BEARER.fullmatch(f"Bearer {token}") is None:
        raise ConfigError("the token has characters that no bearer token has, or is empty")
    for key, value in extensions.items():
        if key == _AUTH or not (_EXTENSION_KEY.fullmatch(key) and _EXTENSION_VALUE.fullmatch(value)):
            raise ConfigError(
                f"the extension {key[:100]!r} of OAUTHBEARER has a name or a value that none has"
            )
    pairs = [f"{_AUTH}=Bearer {token}", *(f"{key}={value}" for key, value in extensions.items())]
    return f"n,,{_SEPARATOR}{_SEPARATOR.join(pairs)}{_SEPARATOR}{_SEPARATOR}".encode("ascii")


class OAuthBearerServer:
    """The server's side of one login."""

    __slots__ = ("_error", "_reason", "_validate")

    def __init__(self, validate: ValidateToken) -> None:
        self._validate = validate
        self._error: str | None = None
        self._reason = ""

    def evaluate(self, token: bytes) -> Evaluation:
        """Check the first message, or end a login whose token was refused. Raises `SaslRefused`."""
        if token == ACKNOWLEDGED and self._error is not None:
            raise SaslRefused(f"OAUTHBEARER: {self._reason}", self._error)
        self._error = None
        initial = read_initial(token)
        try:
            accepted = self._validate(initial.token)
            _check_name(accepted.name)
        except TokenRefused as e:
            self._error, self._reason = _error_json(e), str(e)
            return Evaluation(self._error.encode())
        if initial.authzid and initial.authzid != accepted.name:
            raise SaslRefused(
                "OAUTHBEARER: another authorization id",
                f"Authentication failed: Client requested an authorization id ({initial.authzid}) that is "
                f"different from the token's principal name ({accepted.name})",
            )
        return Evaluation(b"", accepted.name, accepted.expires_ms)


def _check_name(name: str) -> None:
    """Raise `TokenRefused` for a name that no message carries, as a list of sessions would have it."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as e:
        raise TokenRefused("a token of a name with half a character") from e
    if size > _MOST_NAME_BYTES:
        raise TokenRefused(f"a token of a name of {size} bytes")


def _error_json(error: TokenRefused) -> str:
    """Return what the client is told, with Kafka's blanks."""
    scope = "" if error.scope is None else f', "scope":{json.dumps(error.scope)}'
    return f'{{"status":"{error.status}"{scope}}}'
