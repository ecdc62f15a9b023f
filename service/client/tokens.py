"""Tokens of a client that logs in by OAUTHBEARER: from a file, or from an issuer by the client's own secret.

A file is read for each login, and so for each renewal of one; an issuer's token is used again for four fifths
of its life. Blocking. Source: Kafka ``FileJwtRetriever``, ``HttpJwtRetriever``; RFC 6749.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from service.base.clock import Clock
from service.base.disk import Disk, DiskError
from service.base.errors import ConfigError, CorruptionError
from service.base.files import read_file
from service.client import sasl
from service.config.oauthbearer import OAUTHBEARER

if TYPE_CHECKING:
    import ssl

MOST_BYTES: Final = 64 << 10
_ISSUER_TIMEOUT_S: Final = 20.0
_TOKENS: Final = ("access_token", "id_token")
_KEPT: Final = 0.8
"""Part of a token's life in which it is used again (Kafka's `sasl.login.refresh.window.factor`)."""


@dataclass(frozen=True, slots=True)
class BearerCredentials:
    """Source of a client's token, and the extensions that go with it. No ``repr`` shows a secret."""

    fetch: Callable[[], str] = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)
    mechanism: str = OAUTHBEARER

    def login(self) -> sasl.Login:
        """Return a login for one connection, with the token of now. Raises `ConfigError` or `OSError`."""
        return sasl.OAuthBearerLogin(self.fetch(), self.extensions)


@dataclass(frozen=True, slots=True)
class FileToken:
    """A token in a file, which somebody else renews."""

    path: str
    disk: Disk = field(repr=False)

    def __call__(self) -> str:
        """Read the token. Raises `ConfigError`."""
        try:
            data = read_file(self.disk, Path(self.path), MOST_BYTES)
        except (DiskError, CorruptionError) as e:
            raise ConfigError(f"no token: {e}") from e
        return data.decode("utf-8", "replace").strip()


class IssuerToken:
    """A token that an issuer gives for the client's id and secret (grant ``client_credentials``)."""

    def __init__(
        self,
        url: str,
        client_id: str,
        secret: str,
        scope: str | None,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: of https, None for the system's certificates."""
        self._clock = clock
        self._url = url
        self._id_and_secret = f"{client_id}:{secret}".encode()
        self._scope = scope
        self._tls = tls
        self._token = ""
        self._until_ms = -math.inf

    def __call__(self) -> str:
        """Return a token. Raises `ConnectionError` where the issuer gives none."""
        asked_ms = self._clock.monotonic_ms()
        if asked_ms < self._until_ms:
            return self._token
        from service.base.bounded_http import FetchFailed, Fetching, fetch  # only clients of issuers load it

        form = {"grant_type": "client_credentials"} | ({} if self._scope is None else {"scope": self._scope})
        headers = {"Authorization": f"Basic {base64.b64encode(self._id_and_secret).decode()}"}
        bounds = Fetching(MOST_BYTES, _ISSUER_TIMEOUT_S, self._tls)
        try:
            data = fetch(self._url, bounds, form=urlencode(form).encode(), headers=headers)
        except FetchFailed as e:
            raise ConnectionError(f"no token: {e}") from e
        self._token, life_s = _read(data)
        self._until_ms = asked_ms + _KEPT * life_s * 1000
        return self._token


def _read(data: bytes) -> tuple[str, float]:
    """Return the token in an issuer's answer, and the seconds that it lives; 0 if that is not said."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    given = found if isinstance(found, dict) else {}
    texts = [one for one in map(given.get, _TOKENS) if isinstance(one, str) and one.strip()]
    if not texts:
        raise ConnectionError("no token: the issuer's answer has none")
    life_s = given.get("expires_in")
    if isinstance(life_s, bool) or not isinstance(life_s, int | float) or not math.isfinite(life_s):
        life_s = 0
    return texts[0].strip(), float(life_s)
