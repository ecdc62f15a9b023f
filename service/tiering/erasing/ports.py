"""Interfaces that erasing requires of the node. [P]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

from service.base.types import TopicIdPartition
from service.records.erasure import ErasureKeys
from service.remote.catalog import CatalogEntry, ErasedPlace, ErasedPlaces, Erasure
from service.tiering.ports import TieredPartition


class ErasureCatalog(Protocol):
    """The part of `remote.catalog.NodeCatalog` that orders need."""

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None: ...
    def erasures(self) -> Mapping[UUID, Erasure]: ...
    def erased(self, erasure_id: UUID, /) -> ErasedPlaces: ...
    async def note_erased(
        self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int, /
    ) -> None: ...
    async def start_erasure(self, erasure: Erasure, /) -> None: ...
    async def finish_erasure(self, erasure_id: UUID, done_ms: int, /) -> None: ...
    async def remove_erasure(self, erasure_id: UUID, /) -> None: ...


class ErasureCluster(Protocol):
    """Topics and brokers by this node's own metadata. Used on the event loop only."""

    def replicas(self, topic_id: UUID, /) -> Sequence[Sequence[int]]:
        """Return the assigned replicas of each partition; empty where the topic does not exist."""

    def name_of(self, topic_id: UUID, /) -> str:
        """Return a topic's name; its id as text where it does not exist."""

    def fenced_brokers(self) -> Collection[int]:
        """Return the brokers that are registered, and fenced."""


class RunOutcome(Enum):
    """End of the rewriting of one run."""

    DONE = "done"
    CHANGED = "the chain has changed meanwhile"
    BUSY = "another rewriting of the partition is under way"
    FENCED = "the partition has another leader"


class ErasedRun(NamedTuple):
    """Neighbouring objects of a chain that are to be written anew; offsets are inclusive.

    `end_offset` is the order's end, exclusive.
    """

    tip: TopicIdPartition
    base_offset: int
    last_offset: int
    order_id: UUID
    keys: ErasureKeys
    end_offset: int


RewriteRun = Callable[[ErasedRun], Awaitable[RunOutcome]]
"""Writes a run anew without the keys, and publishes it. Raises what the store raises."""


class LedPartitions(Protocol):
    """Partitions that this node leads, and the line in which each is archived
    (`tiering.task_scheduler.TaskScheduler`)."""

    def led(self) -> Iterator[TieredPartition]: ...

    async def quiet(self, topic_id: UUID, partition: int, /) -> bool:
        """Wait until the task of a partition that runs now has ended; return whether all that it has
        proposed is settled."""
