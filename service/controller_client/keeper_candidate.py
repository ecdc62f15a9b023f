"""Candidate for keeper of the prefix that a cluster's brokers share, by this node's own image.

It is the unfenced broker of the lowest id, until `tiering.keeper_election` passes it over. Images lag, so two
brokers may take themselves for it for a moment: each passes a barrier before it deletes anything, after which
its image holds all that was committed before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from service.base.types import TopicIdPartition
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, MetadataImage
from service.remote.catalog import CatalogEntry

MAX_REMEMBERED: Final = 10_000
"""Broker processes that are remembered after they ended; each start of a broker is one."""


class ClusterPrefixOwner:
    """A `tiering.ports.PrefixOwner`. Owned by the event loop.

    Call `published` with each change of the image before anything acts on that change.
    """

    def __init__(
        self,
        node_id: int,
        incarnation: UUID,
        image: Callable[[], MetadataImage],
        barrier: Callable[[], Awaitable[int]],
    ) -> None:
        """`incarnation` is the incarnation id with which this process registers."""
        self._node_id = node_id
        self._incarnation = incarnation
        self._image = image
        self._barrier = barrier
        self._remembered: dict[UUID, None] = {}
        self._changed: Callable[[], None] = lambda: None
        self._remember(image().brokers.values())

    def published(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Remember the brokers that changed, and call the watcher if any did."""
        if delta.brokers:
            self._remember(image.brokers[one] for one in sorted(delta.brokers) if one in image.brokers)
            self._changed()

    def _remember(self, brokers: Iterable[BrokerImage]) -> None:
        for broker in brokers:
            self._remembered.pop(broker.incarnation_id, None)
            self._remembered[broker.incarnation_id] = None
        while len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def is_keeper(self) -> bool:
        return self.rank() == 0 and self.is_unfenced()

    def rank(self) -> int:
        brokers = self._image().brokers.values()
        return sum(not one.fenced and one.id < self._node_id for one in brokers)

    def broker_of(self, incarnation: UUID, /) -> int | None:
        brokers = self._image().brokers.values()
        return next((one.id for one in brokers if one.incarnation_id == incarnation), None)

    def archived(self) -> Iterable[CatalogEntry]:
        return self._image().remote.values()

    def is_unfenced(self) -> bool:
        own = self._image().brokers.get(self._node_id)
        return own is not None and own.incarnation_id == self._incarnation and not own.fenced

    def knows(self, incarnation: UUID, /) -> bool:
        registered = (one.incarnation_id for one in self._image().brokers.values())
        return incarnation in self._remembered or incarnation in registered

    def members(self) -> tuple[UUID, ...]:
        return tuple(sorted(one.incarnation_id for one in self._image().brokers.values()))

    def leads(self, topic_id: UUID, partition: int) -> bool:
        """Return whether this node leads the partition."""
        found = self._image().partition(topic_id, partition)
        return found is not None and found.leader == self._node_id

    def moved(
        self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta
    ) -> Iterator[tuple[UUID, int]]:
        """Yield the partitions whose leader or leader epoch changed and that this node leads or led."""
        for topic_id in delta.topics:
            for number in delta.changed_partitions(topic_id):
                one, other = before.partition(topic_id, number), image.partition(topic_id, number)
                was, now = (None if p is None else (p.leader, p.leader_epoch) for p in (one, other))
                if was != now and any(state and state[0] == self._node_id for state in (was, now)):
                    yield topic_id, number

    def leader_epoch(self, topic_id: UUID, partition: int, /) -> int | None:
        found = self._image().partition(topic_id, partition)
        return found.leader_epoch if found is not None else None

    def others(self) -> Iterable[TopicIdPartition]:
        for topic in self._image().topics_by_id.values():
            for number, partition in topic.partitions.items():
                if partition.leader != self._node_id:
                    yield TopicIdPartition(topic.id, topic.name, number)

    def life(self) -> int:
        return self._image().life

    async def barrier(self) -> int:
        return await self._barrier()

    def watch(self, changed: Callable[[], None], /) -> None:
        self._changed = changed
