"""Registry of the partitions that this node holds, by name and by id. Owned by the event loop.

For partitions that it does not hold, the metadata tells whether another node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import TopicIdPartition
from service.metadata.image import MetadataImage
from service.partition.gate import CutGate
from service.partition.partition import Partition
from service.partition.traffic import TrafficByTopic


class Replicas:
    """Registry of partitions, online and offline. One dict has both keys of a partition: produce and fetch
    read it for every partition."""

    def __init__(self) -> None:
        self._online: dict[tuple[str | UUID, int], Partition] = {}
        self._offline: dict[tuple[str | UUID, int], str] = {}
        self._failed: set[Partition] = set()
        self._changed: Callable[[UUID, int], None] | None = None
        self._image: Callable[[], MetadataImage] = MetadataImage
        self.may_let_go: Callable[[], bool] = lambda: True
        """local bytes may be deleted because the bucket has them: the bucket is known to be the cluster's"""
        self.traffic = TrafficByTopic()
        self.gate = CutGate()
        self.version = 0
        """changes when a partition that was here is removed, replaced, or has failed"""

    def known_by(self, image: Callable[[], MetadataImage]) -> None:
        """Set the source of the newest image, which names the partitions of other nodes."""
        self._image = image

    def watch(self, changed: Callable[[UUID, int], None]) -> None:
        """Call `changed` with topic id and number of each partition that is added or removed, or whose
        catalog entry changes, from now on."""
        self._changed = changed

    def notify(self, partition: Partition) -> None:
        """Notify the watcher of a change of `partition`."""
        if self._changed is not None:
            self._changed(partition.tip.topic_id, partition.tip.partition)

    def add(self, partition: Partition) -> None:
        """Add a partition that serves from now on."""
        partition.gate = self.gate
        if partition.leading is not None:
            self.gate.doubt(partition)
        partition.traffic = self.traffic.opened(partition.tip.topic)
        for key in _keys(partition.tip):
            self._offline.pop(key, None)
            if key in self._online:
                self.version += 1
            self._online[key] = partition
        self.notify(partition)

    def note_failure(self, partition: Partition) -> None:
        """Note that the log of an online partition has failed."""
        self._failed.add(partition)
        self.version += 1
        self.gate.cannot_lead(partition)

    @property
    def offline_places(self) -> set[tuple[UUID, int]]:
        """Topic ids and numbers of the partitions here whose logs have failed, or could not be opened."""
        failed = {(one.tip.topic_id, one.tip.partition) for one in self._failed}
        return failed | {(topic, number) for topic, number in self._offline if isinstance(topic, UUID)}

    def remove(self, partition: Partition) -> None:
        self._failed.discard(partition)
        self.version += 1
        self.traffic.closed(partition.tip.topic, partition.traffic)
        for key in _keys(partition.tip):
            # The same change of the image may have created a topic of the same name again.
            if self._online.get(key) is partition:
                del self._online[key]
        self.notify(partition)

    def take_offline(self, tip: TopicIdPartition, reason: str) -> None:
        """Take a partition of this node offline: requests get KAFKA_STORAGE_ERROR."""
        partition = self._online.get((tip.topic_id, tip.partition))
        if partition is not None:
            self.remove(partition)
            partition.close()
        for key in _keys(tip):
            self._offline[key] = reason

    def forget(self, tip: TopicIdPartition) -> None:
        """Drop an offline partition that is no longer on this node."""
        if self._offline.pop((tip.topic_id, tip.partition), None) is not None:
            self._offline.pop((tip.topic, tip.partition), None)

    @property
    def closed_count(self) -> int:
        """Number of this node's partitions that could not be opened, or were taken offline."""
        return len(self._offline) // 2

    @property
    def failed_count(self) -> int:
        """Number of online partitions whose log has failed."""
        return len(self._failed)

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the online partitions."""
        return iter(dict.fromkeys(self._online.values()))  # each is there under two keys

    def get(self, topic_id: UUID, partition: int) -> Partition | None:
        """Return the partition; None if it is not here, or offline."""
        return self._online.get((topic_id, partition))

    def get_by(self, topic: str | UUID, partition: int) -> Partition | None:
        """Return the partition by its topic's name or id; None if it is not here, or offline."""
        return self._online.get((topic, partition))

    def why_offline(self, topic_id: UUID, partition: int) -> str | None:
        """Return why a partition of this node cannot be served; None if it can, or is not here."""
        online = self._online.get((topic_id, partition))
        if online is not None:
            return None if online.log.failure is None else str(online.log.failure)
        return self._offline.get((topic_id, partition))

    def find(self, topic: str | UUID, partition: int) -> Partition:
        """Return the partition by its topic's name or id, as the request names it.

        Raises `RequestError` KAFKA_STORAGE_ERROR if it is offline, NOT_LEADER_OR_FOLLOWER if it is on another
        node, or not here yet, UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID if no topic has that id.
        """
        found = self._online.get((topic, partition))
        if found is not None:
            return found
        reason = self._offline.get((topic, partition))
        if reason is not None:
            raise RequestError(ErrorCode.kafka_storage_error, f"{topic}-{partition} is offline: {reason}")
        known = self._image().topic(topic)
        if known is not None and partition in known.partitions:
            raise RequestError(
                ErrorCode.not_leader_or_follower, f"this node has no replica of {topic}-{partition}"
            )
        unknown_id = isinstance(topic, UUID) and known is None
        code = ErrorCode.unknown_topic_id if unknown_id else ErrorCode.unknown_topic_or_partition
        raise RequestError(code, f"there is no partition {topic}-{partition}")


def _keys(tip: TopicIdPartition) -> tuple[tuple[str | UUID, int], ...]:
    return (tip.topic_id, tip.partition), (tip.topic, tip.partition)
