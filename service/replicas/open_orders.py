"""Orders of erasure whose documents were read, as replicas use them, and who reads them. [P]"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from service.base.errors import StorageError
from service.records.erasure import ErasureKeys
from service.remote.catalog import Erasure

Ends = Mapping[UUID, tuple[int, ...]]
"""Ends of partitions, by topic."""


class OpenOrder(NamedTuple):
    """An order whose document was read."""

    keys: ErasureKeys
    ends: Ends


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

    def keep(self, orders: Container[UUID], with_keys: Container[UUID]) -> None:
        """Forget orders that are not among `orders`, and the keys of those not among `with_keys`."""

    def close(self) -> None:
        """End what reads."""


class NoDocuments:
    """Documents of a node without a bucket, which cannot carry out any order."""

    async def open(self, erasure: Erasure) -> OpenOrder:
        raise StorageError(
            f"firn.remote.url is not set on this node, and the keys of order {erasure.id} are in the bucket"
        )

    async def ends(self, erasure: Erasure) -> Ends:
        return (await self.open(erasure)).ends

    def keep(self, orders: Container[UUID], with_keys: Container[UUID]) -> None:
        pass

    def close(self) -> None:
        pass
