"""Prefix owner of a node that shares its prefix with no other node. [P]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry


class StandaloneOwner:
    """`PrefixOwner` of one node: it is the keeper, leads every partition, and its image holds all that is
    committed."""

    def __init__(self, offset: Callable[[], int]) -> None:
        """`offset` returns the metadata offset of the image."""
        self._offset = offset

    def is_keeper(self) -> bool:
        return True

    def is_unfenced(self) -> bool:
        return True

    def rank(self) -> int:
        return 0

    def broker_of(self, incarnation: UUID, /) -> int | None:
        return None

    def archived(self) -> Iterable[CatalogEntry]:
        return ()

    def knows(self, incarnation: UUID, /) -> bool:
        return False

    def members(self) -> tuple[UUID, ...]:
        return ()

    def leader_epoch(self, topic_id: UUID, partition: int, /) -> int | None:
        return None

    def others(self) -> Iterable[TopicIdPartition]:
        return ()

    def life(self) -> int:
        return 0  # only a shared prefix uses it

    async def barrier(self) -> int:
        return self._offset()

    def watch(self, changed: Callable[[], None], /) -> None:
        """Ignore `changed`: nothing here ever changes."""
