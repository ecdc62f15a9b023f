"""The remote catalog as the controller keeps it: commits, tombstones, and what is adopted from a bucket."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from service.base.types import TopicIdPartition
from service.metadata.controller import adoption_control, catalog_control, erase_control, rewrite_control
from service.metadata.controller.activation import gates_catalog
from service.metadata.controller.decision_queue import DecisionQueue
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION, CatalogSender
from service.metadata.image import Erased, FeatureRange, live_rewrite
from service.metadata.persistent import PersistentMap
from service.metadata.publisher import Publisher
from service.remote.catalog import (
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    ErasedPlace,
    ErasedPlaces,
    Erasure,
    LoadedTail,
    Notes,
    RewriteAnswer,
    RewriteIntent,
    Tombstone,
)
from service.remote.erased_notes import NoteQueue

_NO_NOTES: Final[Erased] = PersistentMap()


class ControllerCatalog:
    """A `remote.catalog.NodeCatalog`. Owned by the event loop; for the errors and `deadline_ms` see
    `Controller`.

    `supported`: with ``firn.catalog.version`` a commit, a rewrite and an erasure need that feature's levels.
    """

    def __init__(
        self,
        node_id: int,
        supported: Sequence[FeatureRange],
        publisher: Publisher,
        decisions: DecisionQueue,
    ) -> None:
        self._node_id = node_id
        self._needs_level = gates_catalog(supported)
        self._publisher = publisher
        self._decisions = decisions
        self._notes = NoteQueue(
            self._note_erased, most=MAX_RECORDS_PER_OPERATION, most_keys=MAX_RECORDS_PER_OPERATION
        )

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Compare-and-set remote catalog entries, all of a call in one batch."""
        return await self._decisions.decide(
            lambda image: catalog_control.commit_catalog(image, commits, needs_level=self._needs_level)
        )

    async def commit_from(
        self, sender: CatalogSender, commits: Sequence[CatalogCommit], *, deadline_ms: int | None = None
    ) -> tuple[list[CatalogResult], int]:
        """Commit catalog entries for another node's broker; also returns the offset that the results depend
        on.

        Without commits it is a barrier: everything that was committed before is in the log at or below that
        offset.
        """
        return await self._decisions.run(
            lambda image: catalog_control.commit_catalog(
                image, commits, sender=sender, needs_level=self._needs_level
            ),
            deadline_ms=deadline_ms,
        )

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        """Return the committed remote catalog entry of a partition."""
        return self._publisher.image.remote.get((topic_id, partition))

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        """Return the committed tombstones: deleted topics that may still have objects in the bucket."""
        return self._publisher.image.tombstones

    async def forget_topics(
        self, topic_ids: Collection[UUID], *, sender: CatalogSender | None = None
    ) -> None:
        """Remove the tombstones of topics whose last object is deleted. `sender`: another node's broker."""
        await self._decisions.decide(
            lambda image: catalog_control.forget_topics(image, topic_ids, sender=sender)
        )

    async def tails_loaded(
        self, loaded: Collection[LoadedTail], *, sender: CatalogSender | None = None
    ) -> None:
        """Note that restored partitions have their tails (`catalog_control.tails_loaded`). `sender`: another
        node's broker."""
        await self._decisions.decide(lambda image: catalog_control.tails_loaded(image, loaded, sender=sender))

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        """Return the committed live rewrite of a partition."""
        return live_rewrite(self._publisher.image, (topic_id, partition))

    async def change_rewrites(
        self, changes: Sequence[rewrite_control.RewriteChange], *, sender: CatalogSender | None = None
    ) -> list[RewriteAnswer]:
        """Begin rewrites, and give them up. `sender`: another node's broker."""
        return await self._decisions.decide(
            lambda image: rewrite_control.change_rewrites(
                image, changes, sender=sender, needs_level=self._needs_level
            )
        )

    async def begin_rewrite(self, tip: TopicIdPartition, intent: RewriteIntent) -> RewriteAnswer:
        """Begin a rewrite of a partition that this node leads."""
        change = rewrite_control.RewriteChange(tip, intent.rewrite_id, intent)
        [answer] = await self.change_rewrites([change])
        return answer

    async def give_up_rewrite(self, tip: TopicIdPartition, rewrite_id: UUID) -> None:
        """Remove the intent with this id, if it is the partition's."""
        await self.change_rewrites([rewrite_control.RewriteChange(tip, rewrite_id)])

    def erasures(self) -> Mapping[UUID, Erasure]:
        """Return the committed orders to erase."""
        return self._publisher.image.erasures

    def erased(self, erasure_id: UUID) -> ErasedPlaces:
        """Return what is clean of an order's records."""
        return self._publisher.image.erased.get(erasure_id, _NO_NOTES)

    async def note_erased(self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int) -> None:
        """Note clean places of this node; those of several calls in one decision."""
        await self._notes.note(erasure_id, places, broker_id)

    async def _note_erased(self, notes: Notes) -> None:
        await self.note_erased_from(
            None, [erase_control.ErasedNotes(*key, places) for key, places in notes.items()]
        )

    async def note_erased_from(
        self, sender: CatalogSender | None, notes: Sequence[erase_control.ErasedNotes]
    ) -> None:
        """Note clean places (`erase_control.note_erased`). `sender`: another node's broker."""
        await self._decisions.decide(
            lambda image: erase_control.note_erased(
                image, notes, sender=sender, needs_level=self._needs_level
            )
        )

    async def start_erasure(self, erasure: Erasure, *, sender: CatalogSender | None = None) -> None:
        """Put an order into the metadata (`erase_control.start_erasure`)."""
        await self._decisions.decide(
            lambda image: erase_control.start_erasure(
                image, erasure, sender=sender, needs_level=self._needs_level
            )
        )

    async def finish_erasure(
        self, erasure_id: UUID, done_ms: int, *, sender: CatalogSender | None = None
    ) -> None:
        """Note that an order is done (`erase_control.finish_erasure`)."""
        await self._decisions.decide(
            lambda image: erase_control.finish_erasure(
                image, erasure_id, done_ms, sender=sender, needs_level=self._needs_level
            )
        )

    async def remove_erasure(self, erasure_id: UUID, *, sender: CatalogSender | None = None) -> None:
        """Remove an order with its notes (`erase_control.remove_erasure`)."""
        await self._decisions.decide(
            lambda image: erase_control.remove_erasure(
                image, erasure_id, sender=sender, needs_level=self._needs_level
            )
        )

    async def adopt(self, found: adoption_control.BucketContent, life_id: UUID) -> adoption_control.Adoption:
        """Adopt the bucket's content that the metadata lacks, on an operator's order."""
        node_id = self._node_id
        return await self._decisions.decide(
            lambda image: adoption_control.adopt(image, found, node_id=node_id, life_id=life_id)
        )

    async def checked_with_archive(self, partitions: Collection[tuple[UUID, int]]) -> None:
        """Note that the local logs of these partitions match their adopted archives."""
        await self._decisions.decide(lambda image: adoption_control.checked(image, partitions))
