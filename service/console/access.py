"""Access to an HTTP listener: its certificate and its token, read again when their files change.

A file that cannot be used changes nothing, and `checks` says so until it can.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from service.base.addresses import is_loopback
from service.base.errors import ConfigError
from service.base.secret_file import read_secret_file
from service.base.threads import Threads
from service.console.access_settings import AccessSettings
from service.health.findings import Finding
from service.health.kinds import HTTP_ACCESS

if TYPE_CHECKING:
    from service.base.world import World
    from service.console.sealed import HttpTls

_LOG = logging.getLogger(__name__)
LEAST_TOKEN: Final = 16
"""Fewest characters of a token: wrong ones are not counted, so it must be beyond guessing."""


class Token:
    """Bearer token of a listener. `look` is for a thread."""

    def __init__(self, path: str, option: str) -> None:
        """Read the file. Raises `ConfigError`."""
        self._path = path
        self._option = option
        self._digest = b""
        self._is_exposed = False
        self.look()

    def look(self) -> None:
        """Read the file again. Raises `ConfigError`, which leaves the token as it was."""
        try:
            found = read_secret_file(self._path, LEAST_TOKEN)
        except ConfigError as e:
            raise ConfigError(f"{self._option}: {e}") from e
        digest, before = hashlib.sha256(found.text.encode()).digest(), self._digest
        if found.is_exposed and not self._is_exposed:
            _LOG.warning("%s: others than its owner may read %s: chmod 600", self._option, self._path)
        self._is_exposed, self._digest = found.is_exposed, digest
        if before not in (b"", digest):
            _LOG.info("%s: %s has a new token", self._option, self._path)

    def admits(self, authorization: str) -> bool:
        """Return whether the value of an Authorization header has the token. Takes the same time for each
        wrong one."""
        kind, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(digest, self._digest) and kind.lower() == "bearer"


class HttpAccess:
    """Certificate and token of one listener. Owned by the event loop."""

    def __init__(self, settings: AccessSettings, world: World) -> None:
        """Read the files. Raises `ConfigError`, which names the key or option."""
        self.name = settings.name
        self._interval_s = settings.interval_s
        self._threads: Threads = world.threads
        self._token = None if settings.token is None else Token(settings.token, settings.token_option)
        self.tls: HttpTls | None = None
        if settings.certificate is not None:
            from service.console.sealed import HttpTls  # a listener without TLS does not load it

            self.tls = HttpTls(settings, world)
        self._looks: dict[str, Callable[[], None]] = {}
        if self._token is not None:
            self._looks["keeps its old token"] = self._token.look
        if self.tls is not None:
            self._looks["keeps its old certificate"] = self.tls.look
        self._pool: Executor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._problems: dict[str, str] = {}

    def watch(self, what: str, look: Callable[[], None]) -> None:
        """Look at one more file, before `start`. `look` runs on a thread; it raises `ConfigError` for a file
        that cannot be used, and `what` says what becomes of that."""
        self._looks[what] = look

    def protocols(self, above: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.BaseProtocol]:
        """Return what makes the protocol of a new connection; `above` makes the one that gets clear bytes."""
        tls, loop = self.tls, asyncio.get_running_loop()
        return above if tls is None else lambda: tls.connection(loop, above)

    def admits(self, authorization: str) -> bool:
        """Return whether a request with this Authorization header is served; "" is none."""
        return self._token is None or self._token.admits(authorization)

    @property
    def has_files(self) -> bool:
        """Return whether there are files that can be unusable."""
        return bool(self._looks)

    def findings(self) -> tuple[Finding, ...]:
        """Return whether the files cannot be used, and whether the certificate ends soon."""
        reasons = [f"{self.name} {what}: {why}" for what, why in self._problems.items()]
        if self.tls is not None and (words := self.tls.ending()) is not None:
            reasons.append(f"the certificate of {self.name} {words}")
        return tuple(HTTP_ACCESS.found(self.name, one) for one in reasons)

    def start(self, host: str) -> None:
        """Begin to look at the files, where there are any. `host`: the address that is listened on."""
        if self._token is not None and self.tls is None and not is_loopback(host):
            _LOG.warning("%s: its token comes over connections that are not encrypted", self.name)
        if self.tls is not None:
            self.tls.start(asyncio.get_running_loop())
        self._arm()

    def close(self) -> None:
        """Look no more, and end the threads."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        if self.tls is not None:
            self.tls.close()

    def _arm(self) -> None:
        if self._looks and self._interval_s > 0 and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        if self._pool is None:
            self._pool = self._threads.pool("http-files", 1)
        looking = asyncio.get_running_loop().run_in_executor(self._pool, self._found)
        looking.add_done_callback(self._looked)

    def _found(self) -> dict[str, str]:
        """Look at all files; return what is wrong with them. Runs on a thread."""
        problems = {}
        for what, look in self._looks.items():
            try:
                look()
            except ConfigError as e:
                problems[what] = str(e)
            except Exception as e:  # a bug, or a library's: what was there goes on, and it is told
                problems[what] = f"{type(e).__name__}: see the log"
                if self._problems.get(what) != problems[what]:
                    _LOG.error("%s: its files cannot be looked at", self.name, exc_info=e)
        return problems

    def _looked(self, looking: asyncio.Future[dict[str, str]]) -> None:
        if looking.cancelled() or self._is_closed:
            return
        self._arm()
        found, before = looking.result(), self._problems
        self._problems = found
        for what, why in found.items():
            if before.get(what) != why:
                _LOG.error("%s %s: %s", self.name, what, why)
