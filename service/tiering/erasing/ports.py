"""Interfaces that erasing requires of the node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol
from uuid import UUID

from service.remote.catalog import CatalogEntry, ErasedPlace, ErasedPlaces, Erasure, RewriteIntent
from service.tiering.ports import TieredPartition
from service.tiering.rewriting.rewriter import RewriteOutcome
from service.tiering.rewriting.rules import Rule


class ErasureCatalog(Protocol):
    """The part of `remote.catalog.NodeCatalog` that orders need."""

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None: ...
    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None: ...
    def erasures(self) -> Mapping[UUID, Erasure]: ...
    def erased(self, erasure_id: UUID, /) -> ErasedPlaces: ...
    async def note_erased(
        self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int, /
    ) -> None: ...
    async def start_erasure(self, erasure: Erasure, /) -> None: ...
    async def finish_erasure(self, erasure_id: UUID, done_ms: int, /) -> None: ...
    async def remove_erasure(self, erasure_id: UUID, /) -> None: ...


class RunWriter(Protocol):
    """The node's worker that writes runs anew (`tiering.rewriting.rewriter.Rewriter`)."""

    def running(self, topic_id: UUID, partition: int, /) -> UUID | None:
        """Return the rewrite of the partition that is made or published now; None without one."""

    async def rewrite(
        self, topic_id: UUID, partition: int, base_offset: int, last_offset: int, rule: Rule, /
    ) -> RewriteOutcome:
        """Write a run anew by `rule`, and publish it. Raises what the store and the catalog raise."""


class LedPartitions(Protocol):
    """Partitions that this node leads, and the line in which each is archived
    (`tiering.task_scheduler.TaskScheduler`)."""

    def led(self) -> Iterator[TieredPartition]: ...

    async def quiet(self, topic_id: UUID, partition: int, /) -> bool:
        """Wait until the task of a partition that runs now has ended; return whether all that it has
        proposed is settled."""
