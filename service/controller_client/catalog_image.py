"""The remote catalog as a node's own image of the metadata has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from service.metadata.image import Erased, live_rewrite
from service.metadata.persistent import PersistentMap
from service.metadata.publisher import Publisher
from service.remote.catalog import CatalogEntry, ErasedPlaces, Erasure, RewriteIntent, Tombstone

_NO_NOTES: Final[Erased] = PersistentMap()


class CatalogImage:
    """`remote_log_catalog.CatalogView` of this node's own image."""

    def __init__(self, metadata: Publisher) -> None:
        self._metadata = metadata

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        return self._metadata.image.remote.get((topic_id, partition))

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        return self._metadata.image.tombstones

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        return live_rewrite(self._metadata.image, (topic_id, partition))

    def erasures(self) -> Mapping[UUID, Erasure]:
        return self._metadata.image.erasures

    def erased(self, erasure_id: UUID) -> ErasedPlaces:
        return self._metadata.image.erased.get(erasure_id, _NO_NOTES)

    async def reached(self, offset: int) -> None:
        await self._metadata.committed(offset)
