"""An order to erase keys whose document was read, and where its readers get such documents.

The metadata has an order's id, size and checksum alone; keys, even as hashes, are where records are judged:
in local logs, in chains, in tails, in answers of `firn erase`. A node without a bucket loads this and nothing
that reads one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from service.base.errors import StorageError
from service.base.types import NO_LEADER_EPOCH
from service.records.erasure import ErasureKeys
from service.remote.catalog import Erasure
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder
from service.remote.order_end import OrderEnd

Ends = Mapping[UUID, ErasedTopic]
"""Topics of an order by id, with the ends of their partitions."""


_NO_END: Final = OrderEnd(0)


class OpenOrder(NamedTuple):
    """An order whose document was read, and what judges records by it."""

    order: ErasureOrder
    keys: ErasureKeys
    ends: Ends

    def end(self, topic_id: UUID, partition: int) -> OrderEnd:
        """Return where the order ends in a partition."""
        return end_of(self.ends, topic_id, partition)


def opened(order: ErasureOrder) -> OpenOrder:
    """Return an order, ready to judge records."""
    ends = {topic.topic_id: topic for topic in order.topics}
    return OpenOrder(order, ErasureKeys.of(order.secret, order.hashes, order.before_ms), ends)


def end_of(ends: Ends, topic_id: UUID, partition: int) -> OrderEnd:
    """Return where an order ends; at 0 in a partition that is younger than the order."""
    found = ends.get(topic_id)
    if found is None or partition >= len(found.ends):
        return _NO_END
    epoch = found.leader_epochs[partition] if found.leader_epochs else NO_LEADER_EPOCH
    return OrderEnd(found.ends[partition], epoch)


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
