"""TLS of a node: contexts of its listeners and of its connections, and their renewal while it runs.

The files of the stores are read again every `firn.ssl.reload.interval.ms`, on a thread. Where their content
has changed, a new context replaces the old one whole; open connections go on. A content that cannot be used
changes nothing, and `problems` says so until it can, or is what it was. As when a store is altered in Kafka,
a new certificate has to have the same name and at least the same alternative names, unless that is allowed;
and for brokers' own listener the old and the new side have to be able to shake hands with each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final, Protocol

from service.base.client_tls import ClientTls
from service.base.clock import Clock
from service.base.disk import Disk
from service.base.errors import ConfigError
from service.base.threads import Threads
from service.config.security import NodeSecurity, TlsSettings
from service.network.metrics import NetworkMetrics
from service.network.tls.changes import check_handshakes, check_stores
from service.network.tls.contexts import TlsContext, client_context, server_context
from service.network.tls.handshakes import Handshakes
from service.network.tls.listener import TlsListener
from service.network.tls.stores import StoreFiles, Stores, open_stores, read_store_files

_LOG = logging.getLogger(__name__)
_STEP_THREADS: Final = 2
"""Threads for steps of handshakes."""
_DAY_S: Final = 86_400


class TlsWorld(Protocol):
    """The parts of `World` that are needed."""

    @property
    def clock(self) -> Clock: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def threads(self) -> Threads: ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Contexts of one listener: `server` where it is this node's, `client` where the node connects to it."""

    settings: TlsSettings
    files: StoreFiles
    stores: Stores
    server: TlsContext | None
    client: TlsContext | None

    def unnamed_client(self) -> TlsContext:
        """Return a client that checks everything of a server but its name."""
        return client_context(replace(self.settings, checks_hostname=False), self.stores)


def client_tls(settings: TlsSettings, disk: Disk) -> ClientTls:
    """Return TLS for connections that are few, without renewal. Raises `ConfigError`."""
    stores = open_stores(settings, read_store_files(settings, disk))
    return ClientTls(client_context(settings, stores).openssl)


class NodeTls:
    """Owned by the event loop. `start` begins to look at the files."""

    def __init__(self, security: NodeSecurity, world: TlsWorld, metrics: NetworkMetrics) -> None:
        """Read all stores. Raises `ConfigError`, which names the listener."""
        self._world = world
        self._interval_s = security.reload_interval_ms / 1000
        self._own = {one.name: one.tls for one in security.listeners if one.tls is not None}
        outgoing = [one for one in (security.inter_broker, security.controller) if one is not None]
        self._reached = {one.listener: one.tls for one in outgoing if one.tls is not None}
        self._inter_broker = security.inter_broker.listener if security.inter_broker is not None else None
        self._controller = security.controller.listener if security.controller is not None else None
        self._steps: Executor | None = None
        self._looking: Executor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._looks: set[asyncio.Future[dict[str, _Loaded | str]]] = set()
        self._wanted = {**self._reached, **self._own}
        """settings by listener, which may not be in effect"""
        self._problems: dict[str, str] = {}
        self._loaded: dict[str, _Loaded] = {}
        for name, settings in self._wanted.items():
            try:
                self._loaded[name] = self._load(name, settings)
                if name == self._inter_broker:
                    self._check_self(self._loaded[name])
            except ConfigError as e:
                raise ConfigError(f"listener {name}: {e}") from e
        self.handshakes: Handshakes | None = None
        self._listeners: dict[str, TlsListener] = {}
        if self._own:
            self._steps = world.threads.pool("tls", _STEP_THREADS)
            self.handshakes = Handshakes(self._steps, security.tls_handshakes)
            self._make_listeners(security, self.handshakes, metrics)
        self._clients = {
            name: ClientTls(one.client.openssl)
            for name, one in self._loaded.items()
            if one.client is not None
        }

    def _check_self(self, loaded: _Loaded) -> None:
        """Raise `ConfigError` if this broker would refuse itself, and so its like."""
        if loaded.server is not None:
            check_handshakes(loaded.server, loaded.unnamed_client())

    def _make_listeners(
        self, security: NodeSecurity, handshakes: Handshakes, metrics: NetworkMetrics
    ) -> None:
        for name in self._own:
            server = self._loaded[name].server
            assert server is not None
            is_login = not security.listener(name).protocol.uses_sasl
            try:
                self._listeners[name] = TlsListener(
                    name,
                    server,
                    handshakes,
                    metrics=metrics.logins_of(name),
                    is_login=is_login,
                    timeout_s=security.authentication_timeout_ms / 1000,
                    now_s=self._now_s,
                    ends_sessions=is_login and security.expire_sessions,
                )
            except ConfigError as e:
                raise ConfigError(f"listener {name}: {e}") from e

    def _now_s(self) -> float:
        return self._world.clock.now_ms() / 1000

    # -- what the node is made of

    def listener(self, name: str) -> TlsListener | None:
        """Return the TLS of a listener; None where it has none."""
        return self._listeners.get(name)

    @property
    def inter_broker(self) -> ClientTls | None:
        """TLS of connections to other brokers."""
        return None if self._inter_broker is None else self._clients.get(self._inter_broker)

    @property
    def controller(self) -> ClientTls | None:
        """TLS of connections to controllers."""
        return None if self._controller is None else self._clients.get(self._controller)

    # -- what is told of it

    @property
    def problems(self) -> Mapping[str, str]:
        """Reasons why stores that have changed are not used, by listener."""
        return self._problems

    def days_left(self) -> dict[str, float]:
        """Return the days until the first certificate of each listener's own chain ends; negative after."""
        now_s = self._now_s()
        return {
            name: (one.server.keys.not_after_s - now_s) / _DAY_S
            for name, one in self._loaded.items()
            if one.server is not None and one.server.keys is not None
        }

    # -- looks at the files

    def start(self) -> None:
        """Begin to look at the files, where there are any."""
        self._arm()

    def configure(self, security: NodeSecurity) -> None:
        """Take changed settings of stores, once they are read and checked. Files are looked at, too."""
        if not self._wanted:
            return
        outgoing = (security.inter_broker, security.controller)
        found = {one.listener: one.tls for one in outgoing if one is not None and one.tls is not None}
        found |= {one.name: one.tls for one in security.listeners if one.tls is not None}
        self._wanted = {name: found.get(name, settings) for name, settings in self._wanted.items()}
        self._look()

    async def settled(self) -> None:
        """Wait until what `configure` has taken is in effect, or is known to be of no use."""
        if self._looks:
            await asyncio.wait(set(self._looks))

    async def refusal(self, security: NodeSecurity) -> str | None:
        """Return why this node could not take the settings of stores of `security`; None if it could."""
        found = {one.name: one.tls for one in security.listeners if one.tls is not None}
        for name, settings in found.items():
            if name in self._loaded and settings != self._loaded[name].settings:
                try:
                    await asyncio.get_running_loop().run_in_executor(
                        self._looker, self._checked, name, settings, None
                    )
                except ConfigError as e:
                    return f"listener {name}: {e}"
        return None

    def close(self) -> None:
        """Stop the threads."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for pool in (self._looking, self._steps):
            if pool is not None:
                pool.shutdown(wait=False)

    @property
    def _looker(self) -> Executor:
        if self._looking is None:
            self._looking = self._world.threads.pool("tls-reload", 1)
        return self._looking

    def _arm(self) -> None:
        if self._interval_s > 0 and any(one.files != (None, None) for one in self._loaded.values()):
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        running = asyncio.get_running_loop().run_in_executor(self._looker, self._changes)
        self._looks.add(running)
        running.add_done_callback(self._looked)

    def _looked(self, running: asyncio.Future[dict[str, _Loaded | str]]) -> None:
        self._looks.discard(running)
        if self._is_closed or running.cancelled():
            return
        if self._timer is None:
            self._arm()
        for name, found in running.result().items():
            if isinstance(found, str):
                self._note_problem(name, found)
            else:
                self._problems.pop(name, None)
                if found is not self._loaded[name]:
                    self._take(name, found)

    def _note_problem(self, name: str, why: str) -> None:
        if self._problems.get(name) != why:
            _LOG.error("listener %s keeps its old certificates: %s", name, why)
            self._problems[name] = why

    def _take(self, name: str, found: _Loaded) -> None:
        self._loaded[name] = found
        if found.server is not None:
            self._listeners[name].context = found.server
        if found.client is not None:
            self._clients[name].context = found.client.openssl
        _LOG.info("listener %s has new certificates; connections from now on use them", name)

    def _changes(self) -> dict[str, _Loaded | str]:
        """Return for each listener what it has now, or why that cannot be used. Runs on a thread."""
        return {name: self._change(name, one) for name, one in list(self._loaded.items())}

    def _change(self, name: str, before: _Loaded) -> _Loaded | str:
        try:
            settings = self._wanted[name]
            files = read_store_files(settings, self._world.disk)
            if settings == before.settings and files == before.files:
                return before
            try:
                return self._checked(name, settings, files)
            except ConfigError:
                is_one = files.keys == before.files.keys or files.trust == before.files.trust
                if is_one or settings != before.settings:
                    raise
                # Who trusts more first, and shows another certificate then, may have done both since the last
                # look: one after the other both are right. The next look takes the rest, or says why not.
                return self._checked(name, settings, StoreFiles(before.files.keys, files.trust))
        except ConfigError as e:
            return str(e)
        except Exception as e:  # a bug, or a library's: the other listeners are looked at, and it is told
            problem = f"{type(e).__name__}: see the log"
            if self._problems.get(name) != problem:
                _LOG.error("listener %s: its stores cannot be looked at", name, exc_info=e)
            return problem

    def _checked(self, name: str, settings: TlsSettings, files: StoreFiles | None) -> _Loaded:
        """Return new contexts of a listener, once it is certain that they can replace the old ones.

        Raises `ConfigError`. Reads files: for a thread.
        """
        before, after = self._loaded[name], self._load(name, settings, files)
        for old, new in ((before.server, after.server), (before.client, after.client)):
            if old is not None and new is not None:
                check_stores(old, new)
        if name == self._inter_broker and before.server is not None and after.server is not None:
            check_handshakes(before.server, after.unnamed_client())
            check_handshakes(after.server, before.unnamed_client())
        return after

    def _load(self, name: str, settings: TlsSettings, files: StoreFiles | None = None) -> _Loaded:
        files = read_store_files(settings, self._world.disk) if files is None else files
        stores = open_stores(settings, files)
        server = server_context(settings, stores) if name in self._own else None
        client = client_context(settings, stores) if name in self._reached else None
        return _Loaded(settings, files, stores, server, client)
