"""Open the documents of orders to erase keys: read from the bucket once and verified, the keys of a few kept.

All that judge records by an order share the one `OpenOrders` of their node. Owned by the event loop; the
store is read on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from service.base.threads import Threads
from service.remote.catalog import Erasure
from service.remote.opened_order import Ends, OpenOrder, opened
from service.remote.reading.erasure_orders import open_order
from service.remote.stores.store import ObjectStore

MOST_KEPT: Final = 4
"""Orders whose keys are in memory, 5 MB each at most. Ends are kept of all, a million at most."""


class OpenOrders:
    """`OrderDocuments` that are read from the bucket; concurrent callers share one read."""

    def __init__(self, store: ObjectStore, threads: Threads) -> None:
        self._store = store
        self._pool = threads.pool("erasure-orders", 1)
        self._reading: OrderedDict[UUID, asyncio.Future[OpenOrder]] = OrderedDict()
        self._ends: dict[UUID, Ends] = {}

    async def open(self, erasure: Erasure) -> OpenOrder:
        reading = self._reading.get(erasure.id)
        if reading is None:
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(self._pool, _open, self._store, erasure)
            self._reading[erasure.id] = reading
        self._reading.move_to_end(erasure.id)
        try:
            found = await asyncio.shield(reading)
        except Exception:
            if self._reading.get(erasure.id) is reading:
                del self._reading[erasure.id]  # what could not be read may be readable later
            raise
        self._ends[erasure.id] = found.ends
        for old in [one for one, future in self._reading.items() if future.done()][:-MOST_KEPT]:
            del self._reading[old]
        return found

    async def ends(self, erasure: Erasure) -> Ends:
        known = self._ends.get(erasure.id)
        return (await self.open(erasure)).ends if known is None else known

    def keep(self, erasures: Mapping[UUID, Erasure]) -> None:
        for one in [one for one in self._ends if one not in erasures]:
            del self._ends[one]
        for one, reading in tuple(self._reading.items()):
            if reading.done() and (one not in erasures or not erasures[one].is_open):
                del self._reading[one]

    def close(self) -> None:
        """End the thread that reads: nobody opens an order any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _open(store: ObjectStore, erasure: Erasure) -> OpenOrder:
    return opened(open_order(store, erasure))
