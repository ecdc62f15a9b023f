"""The partitions that this node holds, by name and by id. Owned by the event loop.

What it does not hold is told by the metadata: another node may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import TopicIdPartition
from service.metadata.image import MetadataImage
from service.partition.partition import Partition


class Replicas:
    """Registry of partitions, online and offline. Both keys of a partition lie in one dict: produce and fetch
    look it up every time.
    """

    def __init__(self) -> None:
        self._online: dict[tuple[str | UUID, int], Partition] = {}
        self._offline: dict[tuple[str | UUID, int], str] = {}
        self._changed: Callable[[UUID, int], None] | None = None
        self._image: Callable[[], MetadataImage] = MetadataImage
        self.may_let_go: Callable[[], bool] = lambda: True
        """whether local bytes may go because the bucket has them: it is known to be the cluster's"""

    def known_by(self, image: Callable[[], MetadataImage]) -> None:
        """`image` is the newest metadata, which tells what there is elsewhere."""
        self._image = image

    def watch(self, changed: Callable[[UUID, int], None]) -> None:
        """Call `changed` with topic id and number of each partition that comes or goes, or whose entry of the
        bucket is another, from now on."""
        self._changed = changed

    def tell(self, partition: Partition) -> None:
        """Something of that has happened to `partition`."""
        if self._changed is not None:
            self._changed(partition.tip.topic_id, partition.tip.partition)

    def add(self, partition: Partition) -> None:
        """The partition serves from now on."""
        for key in _keys(partition.tip):
            self._offline.pop(key, None)
            self._online[key] = partition
        self.tell(partition)

    def remove(self, partition: Partition) -> None:
        for key in _keys(partition.tip):
            # A topic of the same name may have been created anew in the same change of the image.
            if self._online.get(key) is partition:
                del self._online[key]
        self.tell(partition)

    def take_offline(self, tip: TopicIdPartition, reason: str) -> None:
        """The partition is this node's and cannot be served: who asks for it is told KAFKA_STORAGE_ERROR."""
        partition = self._online.get((tip.topic_id, tip.partition))
        if partition is not None:
            self.remove(partition)
            partition.close()
        for key in _keys(tip):
            self._offline[key] = reason

    def forget(self, tip: TopicIdPartition) -> None:
        """A partition that was offline is not this node's any more."""
        if self._offline.pop((tip.topic_id, tip.partition), None) is not None:
            self._offline.pop((tip.topic, tip.partition), None)

    @property
    def closed_count(self) -> int:
        """Partitions that are this node's and could not be opened, or were taken offline."""
        return len(self._offline) // 2

    def __iter__(self) -> Iterator[Partition]:
        """Those that are online."""
        return iter([one for key, one in self._online.items() if isinstance(key[0], UUID)])

    def get(self, topic_id: UUID, partition: int) -> Partition | None:
        """The partition, None where it is not here, or offline."""
        return self._online.get((topic_id, partition))

    def get_by(self, topic: str | UUID, partition: int) -> Partition | None:
        """As `get`, by the topic's name or id."""
        return self._online.get((topic, partition))

    def why_offline(self, topic_id: UUID, partition: int) -> str | None:
        """Why a partition of this node cannot be served; None where it can, or is not here."""
        online = self._online.get((topic_id, partition))
        if online is not None:
            return None if online.log.failure is None else str(online.log.failure)
        return self._offline.get((topic_id, partition))

    def find(self, topic: str | UUID, partition: int) -> Partition:
        """The partition by its topic's name or id, as the request names it.

        `RequestError` KAFKA_STORAGE_ERROR where it is offline, NOT_LEADER_OR_FOLLOWER where it is another
        node's, or not here yet; UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID where no topic has that id.
        """
        found = self._online.get((topic, partition))
        if found is not None:
            return found
        reason = self._offline.get((topic, partition))
        if reason is not None:
            raise RequestError(ErrorCode.kafka_storage_error, f"{topic}-{partition} is offline: {reason}")
        known = self._image().topic(topic)
        if known is not None and partition in known.partitions:
            raise RequestError(ErrorCode.not_leader_or_follower, f"{topic}-{partition} is not here")
        unknown_id = isinstance(topic, UUID) and known is None
        code = ErrorCode.unknown_topic_id if unknown_id else ErrorCode.unknown_topic_or_partition
        raise RequestError(code, f"there is no partition {topic}-{partition}")


def _keys(tip: TopicIdPartition) -> tuple[tuple[str | UUID, int], ...]:
    return (tip.topic_id, tip.partition), (tip.topic, tip.partition)
