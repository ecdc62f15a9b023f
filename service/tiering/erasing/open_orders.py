"""Open the documents of orders to erase keys: read from the bucket once and verified, the keys of a few kept.

The metadata has an order's id, size and checksum alone; keys, even as hashes, are where records are judged:
in local logs, in chains, in tails, in answers of `firn erase`. All of these share the one `OpenOrders` of
their node. Owned by the event loop; the store is read on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.errors import StorageError
from service.base.threads import Threads
from service.records.erasure import ErasureKeys
from service.remote.catalog import Erasure
from service.remote.format.erase_codec import ErasureOrder
from service.remote.reading.erasure_orders import open_order
from service.remote.stores.store import ObjectStore

MOST_KEPT: Final = 4
"""Orders whose keys are in memory, 5 MB each at most. Ends are kept of all, a million at most."""

Ends = Mapping[UUID, tuple[int, ...]]
"""Of each partition the offset below which records go, exclusive; by topic."""


class OpenOrder(NamedTuple):
    """An order whose document was read, and what judges records by it."""

    order: ErasureOrder
    keys: ErasureKeys
    ends: Ends

    def end(self, topic_id: UUID, partition: int) -> int:
        """Return the offset below which records go in a partition."""
        return end_of(self.ends, topic_id, partition)


def opened(order: ErasureOrder) -> OpenOrder:
    """Return an order, ready to judge records."""
    ends = {topic.topic_id: topic.ends for topic in order.topics}
    return OpenOrder(order, ErasureKeys.of(order.secret, order.hashes, order.before_ms), ends)


def end_of(ends: Ends, topic_id: UUID, partition: int) -> int:
    """Return the offset below which records go; 0 in a partition that is younger than the order."""
    found = ends.get(topic_id, ())
    return found[partition] if partition < len(found) else 0


class OrderDocuments(Protocol):
    """Source of orders' documents. Used on the event loop."""

    async def open(self, erasure: Erasure) -> OpenOrder:
        """Return the order. `StorageError` where the bucket does not answer or has no such object,
        `CorruptionError` where it is not the one that the metadata names."""

    async def ends(self, erasure: Erasure) -> Ends:
        """Return the ends of an order; raises as `open`, which it calls once."""

    def keep(self, erasures: Mapping[UUID, Erasure]) -> None:
        """Forget orders that are not among `erasures`, and the keys of those that are done."""


class NoDocuments:
    """Documents of a node without a bucket, which cannot carry out any order."""

    async def open(self, erasure: Erasure) -> OpenOrder:
        raise StorageError(
            f"firn.remote.url is not set on this node, and the keys of order {erasure.id} are in the bucket"
        )

    async def ends(self, erasure: Erasure) -> Ends:
        return (await self.open(erasure)).ends

    def keep(self, erasures: Mapping[UUID, Erasure]) -> None:
        pass


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
