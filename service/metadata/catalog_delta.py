"""Changes to the remote catalog and to recoveries from the bucket, collected from records. [P]"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.steps import Steps
from service.metadata.image import MetadataImage, RecoveredTopic, RestoredTail
from service.metadata.persistent import REMOVED, PersistentMap, Removed
from service.metadata.records import (
    ZERO_UUID,
    LifeRecord,
    RecoveredTopicRecord,
    RemoteLogRecord,
    RemoveRestoredTailRecord,
    RemoveTombstoneRecord,
    RestoredTailRecord,
    TombstoneRecord,
)
from service.metadata.topics_delta import RemovedTopic, TopicsDelta
from service.remote.catalog import CatalogEntry, Tombstone


class CatalogMaps(NamedTuple):
    """The next image's maps of what is in the bucket."""

    remote: PersistentMap[tuple[UUID, int], CatalogEntry]
    tombstones: PersistentMap[UUID, Tombstone]
    recovered: PersistentMap[UUID, RecoveredTopic]
    restored_tails: PersistentMap[tuple[UUID, int], RestoredTail]


class CatalogDelta:
    """Changes to the catalog entries, tombstones, recovered topics and restored tails of an image. A record
    that contradicts it, or `topics`, is a `CorruptionError`.

    ``changed``: partitions whose entries have changed. ``recovered``: topics whose recovery has changed.
    ``restored``: partitions whose restored tail was set or removed. ``life``, ``life_id``: as in the next
    image.
    """

    def __init__(self, image: MetadataImage, topics: TopicsDelta) -> None:
        self._image = image
        self._topics = topics
        self._entries: dict[tuple[UUID, int], CatalogEntry | Removed] = {}
        self._tombstones: dict[UUID, Tombstone | Removed] = {}
        self._recovered: dict[UUID, RecoveredTopic | Removed] = {}
        self._tails: dict[tuple[UUID, int], RestoredTail | Removed] = {}
        self.changed: set[tuple[UUID, int]] = set()
        self.recovered: set[UUID] = set()
        self.restored: set[tuple[UUID, int]] = set()
        self.life = image.life
        self.life_id = image.life_id

    def set_entry(self, record: RemoteLogRecord) -> None:
        """Set the catalog entry of a partition."""
        topic_id = record.topic_id or ZERO_UUID
        if self._topics.partition(topic_id, record.partition_id) is None:
            raise CorruptionError(f"remote catalog of {topic_id}-{record.partition_id}, which is not there")
        self._entries[topic_id, record.partition_id] = CatalogEntry(
            version=record.version,
            manifest_key=record.manifest_key,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            end_offset=record.end_offset,
            segments=record.segments,
            size_bytes=record.size_bytes,
        )
        self.changed.add((topic_id, record.partition_id))

    def remove_topic(self, topic: RemovedTopic) -> None:
        """Remove what belongs to a topic that is removed; its tombstone is a record of its own."""
        for partition in range(topic.partitions):
            key = (topic.id, partition)
            if key in self._image.remote or key in self._entries:
                self._entries[key] = REMOVED
                self.changed.add(key)
            if self._tail(key) is not None:
                self._set_tail(key, REMOVED)
        if topic.id in self._image.recovered or topic.id in self._recovered:
            self._recovered[topic.id] = REMOVED
            self.recovered.add(topic.id)

    def add_tombstone(self, record: TombstoneRecord) -> None:
        """Note a deleted topic that may still have objects in the bucket."""
        topic_id = record.topic_id or ZERO_UUID
        if self._topics.has(topic_id):
            raise CorruptionError(f"tombstone of topic {record.name!r} ({topic_id}), which is there")
        self._tombstones[topic_id] = Tombstone(topic_id, record.name, record.partitions, record.deleted_ms)

    def remove_tombstone(self, record: RemoveTombstoneRecord) -> None:
        topic_id = record.topic_id or ZERO_UUID
        if self._tombstones.get(topic_id, self._image.tombstones.get(topic_id, REMOVED)) is REMOVED:
            raise CorruptionError(f"metadata record removes the tombstone of {topic_id}, which is not there")
        self._tombstones[topic_id] = REMOVED

    def set_life(self, record: LifeRecord) -> None:
        """Note a recovery of the cluster's metadata from the bucket."""
        if record.life < self.life:
            raise CorruptionError(f"the cluster's life goes back from {self.life} to {record.life}")
        self.life, self.life_id = record.life, record.life_id

    def set_recovered(self, record: RecoveredTopicRecord) -> None:
        """Set the remaining recovery work of a topic."""
        topic_id = record.topic_id or ZERO_UUID
        if not self._topics.has(topic_id):
            raise CorruptionError(f"state of the recovery of topic id {topic_id}, which is not there")
        state = RecoveredTopic(record.unchecked_partitions, record.settings_unknown)
        self._recovered[topic_id] = state if state != RecoveredTopic() else REMOVED
        self.recovered.add(topic_id)

    def set_tail(self, record: RestoredTailRecord) -> None:
        """Note that a partition's leader has yet to load its tails."""
        topic_id = record.topic_id or ZERO_UUID
        if self._topics.partition(topic_id, record.partition_id) is None:
            raise CorruptionError(f"restored tail of {topic_id}-{record.partition_id}, which is not there")
        tail = RestoredTail(
            record.chain_end, record.end_offset, record.go_on, record.cut_key, record.segment_key
        )
        if not 0 <= tail.chain_end <= tail.end_offset <= tail.go_on:
            raise CorruptionError(f"restored tail of {topic_id}-{record.partition_id} out of order: {tail}")
        self._set_tail((topic_id, record.partition_id), tail)

    def remove_tail(self, record: RemoveRestoredTailRecord) -> None:
        """Note that a partition's tails are in its leader's log."""
        key = (record.topic_id or ZERO_UUID, record.partition_id)
        if self._tail(key) is None:
            raise CorruptionError(f"metadata record removes the restored tail of {key}, which is not there")
        self._set_tail(key, REMOVED)

    def _tail(self, key: tuple[UUID, int]) -> RestoredTail | None:
        tail = self._tails.get(key, self._image.restored_tails.get(key))
        return None if isinstance(tail, Removed) else tail

    def _set_tail(self, key: tuple[UUID, int], tail: RestoredTail | Removed) -> None:
        self._tails[key] = tail
        self.restored.add(key)

    def build_in_steps(self) -> Steps[CatalogMaps]:
        """Build the next image's maps."""
        image = self._image
        return CatalogMaps(
            remote=(yield from image.remote.with_changes_in_steps(self._entries)),
            tombstones=(yield from image.tombstones.with_changes_in_steps(self._tombstones)),
            recovered=(yield from image.recovered.with_changes_in_steps(self._recovered)),
            restored_tails=(yield from image.restored_tails.with_changes_in_steps(self._tails)),
        )
