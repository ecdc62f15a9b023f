"""The remote catalog as the controller keeps it: commits, tombstones, and what is adopted from a bucket."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from service.metadata.controller import adoption_control, catalog_control
from service.metadata.controller.activation import gates_catalog
from service.metadata.controller.decision_queue import DecisionQueue
from service.metadata.controller.requests import CatalogSender
from service.metadata.image import FeatureRange
from service.metadata.publisher import Publisher
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, LoadedTail, Tombstone


class ControllerCatalog:
    """A `remote.catalog.Catalog`. Owned by the event loop; for the errors and `deadline_ms` see `Controller`.

    `supported`: with ``firn.catalog.version`` a commit needs that feature's level.
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

    async def adopt(self, found: adoption_control.BucketContent, life_id: UUID) -> adoption_control.Adoption:
        """Adopt the bucket's content that the metadata lacks, on an operator's order."""
        node_id = self._node_id
        return await self._decisions.decide(
            lambda image: adoption_control.adopt(image, found, node_id=node_id, life_id=life_id)
        )

    async def checked_with_archive(self, partitions: Collection[tuple[UUID, int]]) -> None:
        """Note that the local logs of these partitions match their adopted archives."""
        await self._decisions.decide(lambda image: adoption_control.checked(image, partitions))
