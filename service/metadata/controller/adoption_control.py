"""Takes over what an archive says that the metadata lacks, on an order of the operator. [P]

After a lost disk, or one restored from a backup. The operator has said that nobody else writes there, so the
bucket's archives win over older entries of ours, and the newest copy of the metadata over ours unless ours
went on from it: topics, ids, partitions, settings of topics, brokers and all brokers, and which topics are
deleted. A topic that only the bucket knows comes back under its id. One that was deleted here stays deleted;
one that the copy knows to be deleted, or whose name it gave to another, goes here, too. Partitions get the
archive's leader epoch and no leader: when the broker is unfenced it leads them in the next one, which nobody
has led in before.

The node that was lost went on after what is known of it: after the last segment that it archived, after the
last copy of its metadata, after the backup of its disk. Whatever it may have given out since, producer
ids and leader epochs of any partition, is not given out again: both go on above the highest that anything
tells, by a margin. That is so with every order to take over, also where nothing else is news.

All of it is one metadata transaction, which begins the next life of the cluster (docs/adr/0020). What is left
to do afterwards is in the records, too: which local logs are to be compared with their archives, and which
topics keep everything until an operator has said for how long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.metadata.controller.activation import MIN_ISR
from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.controller.decision import Decision
from service.metadata.controller.recovered_topics import AdoptedPartition, AdoptedTopic
from service.metadata.controller.requests import ResourceType
from service.metadata.frames import newest
from service.metadata.image import ConfigResource, MetadataImage, RecoveredTopic, TopicImage
from service.metadata.image_frames import partition_record
from service.metadata.records import (
    NO_LEADER,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    LifeRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecoveredTopicRecord,
    RemoveTopicRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import MAX_EPOCH

EPOCH_MARGIN: Final = 1_000
"""Leader epochs that may have begun after the last one that is known of; none of them begins again."""
PRODUCER_ID_MARGIN: Final = 1_000_000_000
"""Producer ids that may have been given away after the last one that is known of, likewise."""
_RETENTION: Final = {"retention.ms": "log.retention.ms", "retention.bytes": "log.retention.bytes"}
"""Overrides of topics, and what brokers are told for topics without them."""
TRANSACTION: Final = "recovery"
_MAX_PRODUCER_ID: Final = (1 << 63) - 1
_NOTHING_FOUND: Final = MetadataImage()


class Found(NamedTuple):
    """What the bucket says. `copy` is the newest copy of the metadata, None where none can be read;
    `is_copy_newer` False where ours goes on from it. `last_producer_id` is the highest in the archive, `life`
    the greatest that anything in the bucket tells. `doubt`: why settings may have been altered after all
    that is known, None where nothing says so."""

    topics: Sequence[AdoptedTopic]
    copy: MetadataImage | None
    is_copy_newer: bool
    last_producer_id: int
    life: int
    doubt: str | None = None


class Adoption(NamedTuple):
    """What was taken over: names of topics, partitions by (topic id, index); names of topics that went; and
    what was not taken over, in words."""

    topics: Sequence[str]
    partitions: frozenset[tuple[UUID, int]]
    removed: Sequence[str]
    refused: Sequence[str]
    settings_unknown: Sequence[str]


def adopt(image: MetadataImage, found: Found, *, node_id: int, life_id: UUID) -> Decision[Adoption]:
    """Records that make the metadata say what the bucket does, of this one node's partitions. `life_id` is
    drawn for this recovery."""
    adopting = _Adopting(image, found, node_id, life_id)
    frames = tuple(map(newest, adopting.records()))
    adoption = Adoption(
        adopting.created,
        frozenset(adopting.changed),
        adopting.removed,
        adopting.refused,
        adopting.settings_unknown,
    )
    return Decision(frames, adoption, is_atomic=False)


def checked(image: MetadataImage, partitions: Collection[tuple[UUID, int]]) -> Decision[None]:
    """The local logs of these partitions fit their archives: a recovery has nothing left to do about them."""
    done: dict[UUID, set[int]] = {}
    for topic_id, number in partitions:
        done.setdefault(topic_id, set()).add(number)
    records: list[MetadataRecord] = []
    for topic_id, numbers in done.items():
        state = image.recovered.get(topic_id)
        if state is not None:
            left = tuple(number for number in state.unchecked_partitions if number not in numbers)
            records.append(recovered_record(topic_id, state._replace(unchecked_partitions=left)))
    return Decision(tuple(map(newest, records)), None)


def recovered_record(topic_id: UUID, state: RecoveredTopic) -> RecoveredTopicRecord:
    """The record of what a recovery has left to do for one topic."""
    return RecoveredTopicRecord(topic_id=topic_id, **state._asdict())


class _Adopting:
    """One adoption while its records are made."""

    def __init__(self, image: MetadataImage, found: Found, node_id: int, life_id: UUID) -> None:
        self._image = image
        self._life_id = life_id
        self._found = found
        self._node_id = node_id
        self._copy = found.copy or _NOTHING_FOUND
        self._gone: set[UUID] = set()
        self._above: dict[tuple[UUID, int], int] = {}
        self.created: list[str] = []
        self.removed: list[str] = []
        self.changed: set[tuple[UUID, int]] = set()
        self.refused: list[str] = []
        self.settings_unknown: list[str] = []

    def records(self) -> Iterator[MetadataRecord]:
        yield BeginTransactionRecord(name=TRANSACTION)
        life = max(self._image.life, self._found.life, self._copy.life) + 1
        yield LifeRecord(life=life, life_id=self._life_id)
        yield from self._deletions()
        if self._found.is_copy_newer:
            yield from self._broker_settings()
        for topic in self._found.topics:
            yield from self._topic(topic)
        found = {topic.topic_id for topic in self._found.topics}
        for topic_id, own in self._image.topics_by_id.items():
            if topic_id in self._gone:
                continue
            if topic_id not in found:
                yield from self._doubted(own)
            yield from self._next_epochs(own)
        ids = (self._image.next_producer_id, self._copy.next_producer_id, self._found.last_producer_id + 1)
        yield ProducerIdsRecord(broker_id=self._node_id, next_producer_id=_next_producer_id(max(ids)))
        yield EndTransactionRecord()

    def _deletions(self) -> Iterator[MetadataRecord]:
        """Topics of ours that the copy knows to be deleted, or whose name was given to another one since.

        Ours is the older of two where the copy has it and lacks the other one, and where the bucket is of
        later metadata than ours and the copy lacks ours.
        """
        is_newer = self._found.is_copy_newer
        is_bucket_later = is_newer or self._found.doubt is not None
        ids = {one.name: one.topic_id for one in self._found.topics}
        for topic in self._image.topics_by_id.values():
            other = ids.get(topic.name, topic.id)
            is_dead = is_newer and topic.id in self._copy.tombstones
            is_renamed = other not in self._image.topics_by_id and other not in self._image.tombstones
            is_older = (
                other not in self._copy.topics_by_id
                if topic.id in self._copy.topics_by_id
                else is_bucket_later
            )
            if is_dead or (is_renamed and is_older):
                self._gone.add(topic.id)
                self.removed.append(topic.name)
                yield RemoveTopicRecord(topic_id=topic.id)
        if not is_newer:
            return
        for topic_id, tombstone in self._copy.tombstones.items():
            if topic_id not in self._image.tombstones:
                yield TombstoneRecord(**tombstone._asdict())

    def _broker_settings(self) -> Iterator[MetadataRecord]:
        """Of brokers, of all brokers and of groups as the copy has them; but for a setting of all brokers
        that may not be taken away."""
        resources: set[ConfigResource] = {
            one for one in (*self._image.configs, *self._copy.configs) if one[0] != ResourceType.TOPIC
        }
        for resource in sorted(resources):
            old, new = self._image.config(*resource), dict(self._copy.config(*resource))
            if MIN_ISR in old:
                new.setdefault(MIN_ISR, old[MIN_ISR])
            yield from _settings(resource, old, new)

    def _topic(self, topic: AdoptedTopic) -> Iterator[MetadataRecord]:
        image = self._image
        if topic.topic_id in image.tombstones:
            return
        own = image.topics_by_id.get(topic.topic_id)
        resource = (int(ResourceType.TOPIC), topic.name)
        state = image.recovered.get(topic.topic_id, RecoveredTopic())
        if own is None:
            named = image.topics_by_name.get(topic.name)
            if named is not None and named.id not in self._gone:
                self.refused.append(f"{topic.name} ({topic.topic_id}): another topic has that name here")
                return
            self.created.append(topic.name)
            yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
            yield from _settings(resource, {}, topic.configs)
            state = state._replace(settings_unknown=topic.settings_unknown)
        elif self._found.is_copy_newer and topic.topic_id in self._copy.topics_by_id:
            yield from _settings(resource, image.config(*resource), topic.configs)
            state = state._replace(settings_unknown=topic.settings_unknown)
        changed = set(state.unchecked_partitions)
        for number in range(topic.partition_count):
            yield from self._partition(topic, number)
            entry = topic.partitions.get(number, AdoptedPartition(None, 0)).entry
            if (topic.topic_id, number) in self.changed and entry is not None and not entry.is_given_up:
                changed.add(number)
        if self._is_doubted(own, has_news=bool(changed)) or self._is_kept_otherwise(topic):
            state = state._replace(settings_unknown=True)
        state = state._replace(unchecked_partitions=tuple(sorted(changed)))
        if state != image.recovered.get(topic.topic_id, RecoveredTopic()):
            yield recovered_record(topic.topic_id, state)
        if state.settings_unknown:
            self.settings_unknown.append(topic.name)

    def _is_doubted(self, own: TopicImage | None, *, has_news: bool) -> bool:
        """Whether nobody knows the last settings of a topic. Of ours, where no copy is newer, also where its
        archive went on: the cluster lived on after our metadata."""
        went_on = own is not None and not self._found.is_copy_newer and has_news
        return self._found.doubt is not None or went_on

    def _is_kept_otherwise(self, topic: AdoptedTopic) -> bool:
        """Whether brokers that had the topic were told by dynamic settings of their own to keep it longer, or
        shorter, than this one is: it leads the topic now."""
        lost = self._copy.topics_by_id.get(topic.topic_id)
        if lost is None or not self._found.is_copy_newer:
            return False
        brokers = {one for partition in lost.partitions.values() for one in partition.replicas}
        return any(
            override not in topic.configs
            and self._says(broker, default) != self._says(self._node_id, default)
            for override, default in _RETENTION.items()
            for broker in brokers
        )

    def _says(self, broker: int, name: str) -> str | None:
        """A dynamic setting of one broker, as the copy has it."""
        return self._copy.config(ResourceType.BROKER, str(broker)).get(name)

    def _doubted(self, own: TopicImage) -> Iterator[MetadataRecord]:
        """A topic of ours that the bucket says nothing of."""
        state = self._image.recovered.get(own.id, RecoveredTopic())
        if self._found.doubt is not None and not state.settings_unknown:
            yield recovered_record(own.id, state._replace(settings_unknown=True))
            self.settings_unknown.append(own.name)

    def _partition(self, topic: AdoptedTopic, number: int) -> Iterator[MetadataRecord]:
        key = topic.topic_id, number
        found = topic.partitions.get(number, AdoptedPartition(None, 0))
        own = self._image.partition(*key)
        self._above[key] = found.leader_epoch
        if own is None:
            yield _new_partition(key, _raised(self._copy, key, found.leader_epoch), self._node_id)
        if found.entry is not None and (own is None or _is_news(found.entry, self._image.remote.get(key))):
            yield remote_log_record(*key, found.entry)
            self.changed.add(key)

    def _next_epochs(self, topic: TopicImage) -> Iterator[MetadataRecord]:
        for number, own in topic.partitions.items():
            key = topic.id, number
            epoch = _raised(self._copy, key, max(own.leader_epoch, self._above.get(key, 0)))
            yield _again(topic, number, epoch)


def _settings(
    resource: tuple[int, str], old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[MetadataRecord]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield ConfigRecord(
                resource_type=resource[0], resource_name=resource[1], name=name, value=new.get(name)
            )


def _is_news(found: CatalogEntry | None, own: CatalogEntry | None) -> bool:
    """HEAD may lag behind our entry by a crash; then ours is the newer truth."""
    if found is None or found == own:
        return False
    return own is None or found.version >= own.version


def _raised(lost: MetadataImage, key: tuple[UUID, int], epoch: int) -> int:
    """A leader epoch that nobody has led the partition in; `CorruptionError` where none is left."""
    before = lost.partition(*key)
    highest = max(epoch, before.leader_epoch if before is not None else 0)
    if highest > MAX_EPOCH - 2 * EPOCH_MARGIN:
        raise CorruptionError(
            f"{key[0]}/{key[1]}: the bucket says that it was led in epoch {highest}; too few are left"
        )
    return highest + EPOCH_MARGIN


def _next_producer_id(unused: int) -> int:
    if unused > _MAX_PRODUCER_ID - 2 * PRODUCER_ID_MARGIN:
        raise CorruptionError(f"the bucket says that all producer ids below {unused} are given away")
    return unused + PRODUCER_ID_MARGIN


def _new_partition(key: tuple[UUID, int], leader_epoch: int, node_id: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=key[1],
        topic_id=key[0],
        replicas=(node_id,),
        isr=(node_id,),
        leader=NO_LEADER,
        leader_epoch=leader_epoch,
        partition_epoch=0,
        directories=(None,),
    )


def _again(topic: TopicImage, number: int, leader_epoch: int) -> PartitionRecord:
    """A partition of ours as it is, but led by nobody, in an epoch that nobody has led it in."""
    own = topic.partitions[number]._replace(leader=NO_LEADER, leader_epoch=leader_epoch)
    return partition_record(topic, number, own._replace(partition_epoch=own.partition_epoch + 1))
