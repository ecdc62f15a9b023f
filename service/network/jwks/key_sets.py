"""Key sets of the issuers whose tokens a node takes.

Each is read on a thread when the node starts, then every `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and
when a token names a key that is not there. What cannot be read changes nothing: the keys of before count,
`problems` says why, and it is tried again. A login with a token while no keys were read yet ends without an
answer, so that its client tries again.

Source: Kafka ``RefreshingHttpsJwks``, ``JwksFileVerificationKeyResolver``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final, Protocol

from service.base.backoff import doubled
from service.base.bounded_http import Fetching, fetch
from service.base.disk import Disk
from service.base.errors import FirnError
from service.base.files import read_file
from service.base.printable import printable
from service.base.threads import Threads
from service.config.oauthbearer import KeySetSettings
from service.config.security import TlsSettings
from service.network.jwks.missing_ids import MissingIds
from service.security.oauthbearer import TokenRefused
from service.security.sasl_server import SaslUnavailable
from service.security.verification_keys import VerificationKeys, read_keys

_LOG = logging.getLogger(__name__)
MOST_BYTES: Final = 1 << 20
"""Largest key set."""
_TIMEOUT_S: Final = 20.0
"""Deadline of one answer, from the first packet to the last."""
_LOOK_S: Final = 10.0
"""Longest time between two looks at a file."""


class KeySetWorld(Protocol):
    """The parts of `World` that are needed."""

    @property
    def disk(self) -> Disk: ...
    @property
    def threads(self) -> Threads: ...


class KeySet:
    """Keys of one issuer. Owned by the event loop."""

    def __init__(
        self, settings: KeySetSettings, tls: ssl.SSLContext | None, disk: Disk, pool: Executor
    ) -> None:
        """`tls`: of https, None for the system's certificates."""
        self._settings = settings
        self._tls = tls
        self._disk = disk
        self._pool = pool
        self._missing = MissingIds()
        self._keys: VerificationKeys | None = None
        self._content = b""
        self._failures = 0
        self._running: asyncio.Future[tuple[bytes, VerificationKeys | None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self.problem: str | None = "its keys are not read yet"
        """reason why the keys are missing, old or of no use"""

    def find(self, algorithm: str, kid: str | None) -> Any:
        """Return joserfc's key of a token. Raises `TokenRefused` where there is none, and `SaslUnavailable`
        while there are no keys at all."""
        if self._keys is None:
            raise SaslUnavailable(f"the keys of {self.name} are not read: {self.problem}")
        key = self._keys.find(algorithm, kid)
        if key is not None:
            return key
        at_s = self._missing.ask_at(kid, self._loop.time())
        if at_s is not None and self._running is None and at_s < self._due_s:
            self._arm(at_s - self._loop.time())
        raise TokenRefused(f"a token whose key {printable(str(kid)[:100])!r} the issuer does not have")

    @property
    def name(self) -> str:
        """Place of the key set, without what may be a secret."""
        return self._settings.url.partition("?")[0]

    def start(self) -> None:
        """Begin to read."""
        self._read()

    def close(self) -> None:
        """Begin nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = self._loop.time() + after_s
        self._timer = self._loop.call_later(max(after_s, 0), self._read)

    def _read(self) -> None:
        self._timer = None
        self._missing.asked(self._loop.time())
        self._running = self._loop.run_in_executor(self._pool, self._load, self._content)
        self._running.add_done_callback(self._loaded)

    def _load(self, before: bytes) -> tuple[bytes, VerificationKeys | None]:
        """Return what the issuer says, and its keys unless it said that `before`. Runs on a thread."""
        settings = self._settings
        if settings.path is not None:
            data = read_file(self._disk, Path(settings.path), MOST_BYTES)
        else:
            allows = settings.allowed_urls.__contains__
            data = fetch(settings.url, Fetching(MOST_BYTES, _TIMEOUT_S, self._tls, allows))
        return data, None if data == before else read_keys(data)

    def _loaded(self, running: asyncio.Future[tuple[bytes, VerificationKeys | None]]) -> None:
        self._running = None
        if self._is_closed or running.cancelled():
            return
        settings = self._settings
        error = running.exception()
        if error is not None:
            self._failures += 1
            if isinstance(error, FirnError):
                self._note(str(error))
            else:  # a bug, or a library's: the keys of before count, and it is tried again
                self._note(f"{type(error).__name__}: see the log", error)
            self._arm(doubled(self._failures, settings.retry_ms, settings.retry_max_ms) / 1000)
            return
        self._failures = 0
        self._content, keys = running.result()
        if keys is not None:
            self._take(keys)
        assert self._keys is not None
        self._note(None if len(self._keys) else "none of its keys can be used")
        after_s = settings.refresh_ms / 1000
        self._arm(after_s if settings.path is None else min(after_s, _LOOK_S))

    def _take(self, keys: VerificationKeys) -> None:
        self._keys = keys
        self._missing.found(keys.ids)
        _LOG.info("%s has %d keys; %d of others are of no use", self.name, len(keys), keys.ignored)

    def _note(self, problem: str | None, error: BaseException | None = None) -> None:
        if problem is not None and problem != self.problem:
            _LOG.error("the keys of %s: %s", self.name, printable(problem), exc_info=error)
        self.problem = problem


class KeySets:
    """Key sets of one node, by their settings."""

    def __init__(self, world: KeySetWorld) -> None:
        self._world = world
        self._sets: dict[tuple[KeySetSettings, TlsSettings | None], KeySet] = {}
        self._pools: list[Executor] = []

    def of(self, settings: KeySetSettings, tls: TlsSettings | None) -> KeySet:
        """Return the key set, which is read from now on. Raises `ConfigError`.

        `tls`: of https, None for the system's certificates."""
        found = self._sets.get((settings, tls))
        if found is None:
            context = None if tls is None else _context(tls, self._world.disk)
            pool = self._world.threads.pool("jwks", 1)  # each its own: one that hangs delays no other
            self._pools.append(pool)
            found = self._sets[settings, tls] = KeySet(settings, context, self._world.disk, pool)
            found.start()
        return found

    @property
    def problems(self) -> Mapping[str, str]:
        """Reasons why keys are missing or old, by place."""
        return {one.name: one.problem for one in self._sets.values() if one.problem is not None}

    def close(self) -> None:
        """Stop reading."""
        for one in self._sets.values():
            one.close()
        for pool in self._pools:
            pool.shutdown(wait=False)


def _context(tls: TlsSettings, disk: Disk) -> ssl.SSLContext:
    from service.network.tls.node_tls import client_tls  # only for trust stores of issuers

    return client_tls(tls, disk).context
