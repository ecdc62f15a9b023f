"""Watch over the clients of the object store: what one last said of the store does not stay said for ever.

A client that is used seldom, such as that of cold reads, would call the store unreachable for days after it
is back, and one that nobody uses would not notice that it is away. So a client that has not called the store
for a while is made to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final, NamedTuple

from service.base.clock import Clock
from service.base.errors import CorruptionError, StorageError
from service.remote.format.keys import CLUSTER_KEY
from service.remote.metrics import StoreMetrics
from service.remote.stores.store import ObjectStore

CHECK_S: Final = 2.0
QUIET_MS: Final = 5_000
"""Age of the last call above which the store is asked again while it has a problem."""
IDLE_MS: Final = 8_000
"""The same while it has none: a node that copies nothing is to notice a store that is away, too."""


class WatchedClient(NamedTuple):
    """Client of the store, its counters, and whether it is to call the store while all is well."""

    metrics: StoreMetrics
    store: ObjectStore
    asks_always: bool


class StoreWatch:
    """Asks for a small object where a client has been quiet. Owned by the event loop."""

    def __init__(self, clients: Iterable[WatchedClient], clock: Clock, pool: Executor) -> None:
        """Calls run on `pool`."""
        self._clients = tuple(clients)
        self._clock = clock
        self._pool = pool
        self._began_ms = clock.monotonic_ms()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Ask the store by each client that has been quiet."""
        now_ms = self._clock.monotonic_ms()
        for metrics, store, asks_always in self._clients:
            quiet_ms = now_ms - max(metrics.called_ms, self._began_ms)
            is_well = metrics.problem is None
            if quiet_ms > (IDLE_MS if is_well else QUIET_MS) and (asks_always or not is_well):
                await asyncio.get_running_loop().run_in_executor(self._pool, _ask, store)


def _ask(store: ObjectStore) -> None:
    with contextlib.suppress(StorageError, CorruptionError):  # its counters have it
        store.head(CLUSTER_KEY)
