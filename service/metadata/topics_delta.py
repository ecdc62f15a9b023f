"""Changes to topics and partitions, collected from records and turned into the next image's maps. [P]"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.steps import Steps
from service.metadata.image import MetadataImage, PartitionImage, TopicImage, collision_key
from service.metadata.partition_index import PartitionIndex, Shelf, shelves
from service.metadata.persistent import REMOVED, PartitionMap, PersistentMap, Removed
from service.metadata.records import (
    LEADER_UNCHANGED,
    ZERO_UUID,
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    filled_ids,
)

RECOVERING: Final = 1


@dataclass(slots=True)
class _TopicChange:
    name: str
    before: PartitionMap[PartitionImage]
    partitions: dict[int, PartitionImage]

    def partition(self, partition: int) -> PartitionImage | None:
        return self.partitions.get(partition) or self.before.get(partition)


class RemovedTopic(NamedTuple):
    """A topic that a record removes. ``partitions``: a number above all of its partitions'."""

    id: UUID
    name: str
    partitions: int


class TopicMaps(NamedTuple):
    """The next image's maps of topics."""

    topics_by_id: PersistentMap[UUID, TopicImage]
    topics_by_name: PersistentMap[str, TopicImage]
    collisions: PersistentMap[str, tuple[str, ...]]
    partition_index: PartitionIndex


class TopicsDelta:
    """Changes to the topics of an image (Kafka `TopicsDelta`). Records raise `CorruptionError` where they
    contradict it.

    ``deleted``: topics of the image that are gone.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._changes: dict[UUID, _TopicChange] = {}
        self._created: dict[str, UUID] = {}
        self.deleted: dict[UUID, TopicImage] = {}
        self.elections = 0
        """changes of a partition to another leader"""
        self.unclean_elections = 0
        """those whose leader may lack committed records"""

    @property
    def changed(self) -> set[UUID]:
        """Ids of topics that were created or have changed partitions, without deleted ones."""
        return set(self._changes)

    def changed_partitions(self, topic_id: UUID) -> Collection[int]:
        """Return the new and the changed partitions of one of `changed`."""
        return self._changes[topic_id].partitions.keys()

    def has(self, topic_id: UUID) -> bool:
        """Return whether the topic exists after the changes."""
        return topic_id in self._changes or (
            topic_id in self._image.topics_by_id and topic_id not in self.deleted
        )

    def partition(self, topic_id: UUID, number: int) -> PartitionImage | None:
        """Return a partition after the changes, None if it does not exist."""
        change = self._changes.get(topic_id)
        if change is not None:
            return change.partition(number)
        return None if topic_id in self.deleted else self._image.partition(topic_id, number)

    # -- records

    def _change(self, topic_id: UUID | None) -> _TopicChange:
        topic_id = topic_id or ZERO_UUID
        change = self._changes.get(topic_id)
        if change is not None:
            return change
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None or topic_id in self.deleted:
            raise CorruptionError(f"metadata record for topic id {topic_id}, which is not there")
        self._changes[topic_id] = change = _TopicChange(topic.name, topic.partitions, {})
        return change

    def create(self, record: TopicRecord) -> None:
        """Create a topic, without partitions."""
        topic_id = record.topic_id or ZERO_UUID
        existing = self._image.topics_by_name.get(record.name)
        taken = existing is not None and existing.id not in self.deleted
        if taken or record.name in self._created or topic_id in self._image.topics_by_id:
            raise CorruptionError(f"metadata record creates topic {record.name!r} ({topic_id}) again")
        self._changes[topic_id] = _TopicChange(record.name, PartitionMap(), {})
        self._created[record.name] = topic_id

    def set_partition(self, record: PartitionRecord) -> None:
        """Create a partition, or replace it."""
        self._change(record.topic_id).partitions[record.partition_id] = PartitionImage(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=filled_ids(record.directories),
            removing_replicas=record.removing_replicas,
            adding_replicas=record.adding_replicas,
            leader_recovery_state=record.leader_recovery_state,
            eligible_leader_replicas=record.eligible_leader_replicas or (),
            last_known_elr=record.last_known_elr or (),
        )

    def change_partition(self, record: PartitionChangeRecord) -> None:
        """Change the fields of a partition that the record has."""
        change = self._change(record.topic_id)
        old = change.partition(record.partition_id)
        if old is None:
            raise CorruptionError(
                f"metadata record for {change.name}-{record.partition_id}, which is not there"
            )
        new = change.partitions[record.partition_id] = changed_partition(old, record)
        if new.has_leader and new.leader != old.leader:
            self.elections += 1
            known = new.leader in old.isr or new.leader in old.eligible_leader_replicas
            self.unclean_elections += new.leader_recovery_state == RECOVERING and not known

    def clear_elr(self, record: ClearElrRecord) -> None:
        """Clear the ELR by one change of each partition that has any (Apache Kafka ``removeTopicElrs``)."""
        if record.topic_name:
            topic_id = self._created.get(record.topic_name)
            known = self._image.topics_by_name.get(record.topic_name)
            if topic_id is None and known is not None and known.id not in self.deleted:
                topic_id = known.id
            if topic_id is None:
                raise CorruptionError(f"metadata record for topic {record.topic_name!r}, which is not there")
            self._clear_elr_of(topic_id)
            return
        alive = [topic_id for topic_id in self._image.topics_by_id if topic_id not in self.deleted]
        for topic_id in dict.fromkeys([*alive, *self._changes]):
            self._clear_elr_of(topic_id)

    def _clear_elr_of(self, topic_id: UUID) -> None:
        change = self._changes.get(topic_id)
        topic = self._image.topics_by_id.get(topic_id)
        before = change.before if change is not None else topic.partitions if topic is not None else ()
        for number in dict.fromkeys([*before, *(change.partitions if change is not None else ())]):
            partition = self._changes[topic_id].partition(number) if change else before[number]
            if partition is not None and (partition.eligible_leader_replicas or partition.last_known_elr):
                self._change(topic_id).partitions[number] = partition._replace(
                    partition_epoch=partition.partition_epoch + 1,
                    eligible_leader_replicas=(),
                    last_known_elr=(),
                )

    def remove(self, record: RemoveTopicRecord) -> RemovedTopic:
        """Remove a topic with its partitions."""
        change = self._change(record.topic_id)
        topic_id = record.topic_id or ZERO_UUID
        del self._changes[topic_id]
        if self._created.get(change.name) == topic_id:
            del self._created[change.name]
        else:
            self.deleted[topic_id] = self._image.topics_by_id[topic_id]
        return RemovedTopic(topic_id, change.name, max(len(change.before), *change.partitions, 0) + 1)

    # -- the next image

    def build_in_steps(self) -> Steps[TopicMaps]:
        """Build the next image's maps."""
        image = self._image
        changed: dict[UUID, TopicImage | Removed] = {}
        for topic_id, change in self._changes.items():
            yield
            partitions = change.before.with_changes(change.partitions)
            changed[topic_id] = TopicImage(change.name, topic_id, partitions)
        yield
        by_name: dict[str, TopicImage | Removed] = {t.name: REMOVED for t in self.deleted.values()}
        by_name.update({topic.name: topic for topic in changed.values() if isinstance(topic, TopicImage)})
        changed.update(dict.fromkeys(self.deleted, REMOVED))
        collisions = yield from self._collisions()
        toggles = yield from self._toggles()
        return TopicMaps(
            topics_by_id=(yield from image.topics_by_id.with_changes_in_steps(changed)),
            topics_by_name=(yield from image.topics_by_name.with_changes_in_steps(by_name)),
            collisions=(yield from image.collisions.with_changes_in_steps(collisions)),
            partition_index=(yield from image.index.toggled_in_steps(toggles)),
        )

    def _toggles(self) -> Steps[dict[Shelf, dict[UUID, list[int]]]]:
        """Return the partitions that enter or leave shelves of the index."""
        toggles: dict[Shelf, dict[UUID, list[int]]] = {}

        def toggle(topic_id: UUID, partition: int, before: set[Shelf], after: set[Shelf]) -> None:
            for shelf in before ^ after:
                toggles.setdefault(shelf, {}).setdefault(topic_id, []).append(partition)

        for topic_id, change in self._changes.items():
            for number, partition in change.partitions.items():
                yield
                old = change.before.get(number)
                toggle(topic_id, number, _shelves(old) if old is not None else set(), _shelves(partition))
        for topic_id, topic in self.deleted.items():
            for number, partition in topic.partitions.items():
                yield
                toggle(topic_id, number, _shelves(partition), set())
        return toggles

    def _collisions(self) -> Steps[dict[str, tuple[str, ...] | Removed]]:
        changes: dict[str, set[str]] = {}
        for topic in self.deleted.values():
            yield
            if (key := collision_key(topic.name)) is not None:
                changes.setdefault(key, set(self._image.collisions.get(key, ()))).discard(topic.name)
        for name in self._created:
            yield
            if (key := collision_key(name)) is not None:
                changes.setdefault(key, set(self._image.collisions.get(key, ()))).add(name)
        return {k: tuple(sorted(v)) or REMOVED for k, v in changes.items()}


def changed_partition(old: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """Return the partition after the change.

    A leader in the record, even the same one, starts a leader epoch; any change starts a partition epoch.
    """
    led = record.leader != LEADER_UNCHANGED
    state = record.leader_recovery_state
    return PartitionImage(
        replicas=_or(record.replicas, old.replicas),
        isr=_or(record.isr, old.isr),
        leader=record.leader if led else old.leader,
        leader_epoch=old.leader_epoch + led,
        partition_epoch=old.partition_epoch + 1,
        directories=old.directories if record.directories is None else filled_ids(record.directories),
        removing_replicas=_or(record.removing_replicas, old.removing_replicas),
        adding_replicas=_or(record.adding_replicas, old.adding_replicas),
        leader_recovery_state=old.leader_recovery_state if state < 0 else state,
        eligible_leader_replicas=_or(record.eligible_leader_replicas, old.eligible_leader_replicas),
        last_known_elr=_or(record.last_known_elr, old.last_known_elr),
    )


def _shelves(one: PartitionImage) -> set[Shelf]:
    return shelves(
        one.replicas,
        one.isr,
        one.eligible_leader_replicas,
        one.leader,
        one.directories,
        adding=one.adding_replicas,
        is_moving=one.is_moving,
    )


def _or(new: tuple[int, ...] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else new
