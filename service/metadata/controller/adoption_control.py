"""Adopts topics and settings from the bucket that the metadata lacks, on an operator's order. [P]

This is the recovery from a lost disk, or from a disk that was restored from a backup. The operator has
confirmed that no other node writes to the bucket, so the bucket's archives replace older entries of ours,
and the newest copy of the metadata replaces ours unless ours continues it: topics, ids, partitions, settings
of topics, brokers and all brokers, ACLs, client quotas, and deletions of topics. SCRAM credentials are in
few copies; where they are not, ours stay, but no delegation token does. A topic that only the bucket has is
created with its id. A topic that was deleted here stays deleted; a topic that the copy has deleted, or whose
name it gave to another topic, is deleted here, too. Partitions get the archive's leader epoch and no leader:
the broker leads them, once unfenced, in the next epoch, in which no broker has led before.

The lost node may have gone on after its last archived segment, after the last copy of its metadata, and after
the backup of its disk. It may have handed out producer ids and leader epochs that no source shows. None of
them is handed out again: both continue above the highest known one, plus a margin. Every adoption raises
them, even where it changes nothing else.

All of it is one metadata transaction, which begins the next life of the cluster (docs/adr/0020). Its records
also hold the remaining work: local logs to compare with their archives, and topics that expire nothing until
an operator has set their retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.metadata.access_records import entry_differences, other_differences
from service.metadata.controller.activation import MIN_ISR
from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.recovered_topics import AdoptedPartition, AdoptedTopic
from service.metadata.controller.requests import ResourceType
from service.metadata.features import CATALOG_VERSION, REWRITES_LEVEL
from service.metadata.frames import newest
from service.metadata.image import ConfigResource, MetadataImage, RecoveredTopic, TopicImage
from service.metadata.image_frames import erasure_record, partition_record, restored_tail_record
from service.metadata.records import (
    NO_LEADER,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    LifeRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecoveredTopicRecord,
    RemoveErasureRecord,
    RemoveRestoredTailRecord,
    RemoveTopicRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.metadata.secret_settings import with_own_secrets
from service.remote.catalog import CatalogEntry, Erasure
from service.remote.format.keys import MAX_EPOCH

EPOCH_MARGIN: Final = 1_000
"""Leader epochs that may have begun after the last known one; none of them begins again."""
PRODUCER_ID_MARGIN: Final = 1_000_000_000
"""Producer ids that may have been handed out after the last known one; none is handed out again."""
_RETENTION: Final = {"retention.ms": "log.retention.ms", "retention.bytes": "log.retention.bytes"}
"""Topic overrides, and the broker settings that apply without them."""
TRANSACTION: Final = "recovery"
_MAX_PRODUCER_ID: Final = (1 << 63) - 1
_NOTHING_FOUND: Final = MetadataImage()


class BucketContent(NamedTuple):
    """Content of the bucket.

    `copy` is the newest copy of the metadata, None where none is readable; `is_copy_newer` is False where
    ours continues it. `last_producer_id` is the highest in the archive, `life` the greatest in the bucket.
    `doubt`: the reason why settings may have changed after every known source; None where there is none.
    `erasures` are the orders that are not gone: what the bucket brings back may have their records.
    """

    topics: Sequence[AdoptedTopic]
    copy: MetadataImage | None
    is_copy_newer: bool
    last_producer_id: int
    life: int
    doubt: str | None = None
    erasures: Sequence[Erasure] = ()


class Adoption(NamedTuple):
    """Result of an adoption.

    Holds the names of created topics, changed partitions by (topic id, index), the names of deleted topics,
    the topics refused with their reasons, and the names of topics whose settings are unknown.
    """

    topics: Sequence[str]
    partitions: frozenset[tuple[UUID, int]]
    removed: Sequence[str]
    refused: Sequence[str]
    settings_unknown: Sequence[str]


def adopt(
    image: MetadataImage, found: BucketContent, *, node_id: int, life_id: UUID
) -> ControllerResult[Adoption]:
    """Decide the records that make this node's metadata equal to the bucket's.

    `life_id` is drawn for this recovery.
    """
    adopting = _Adopting(image, found, node_id, life_id)
    frames = tuple(map(newest, adopting.records()))
    adoption = Adoption(
        adopting.created,
        frozenset(adopting.changed),
        adopting.removed,
        adopting.refused,
        adopting.settings_unknown,
    )
    return ControllerResult(frames, adoption, is_atomic=False)


def checked(image: MetadataImage, partitions: Collection[tuple[UUID, int]]) -> ControllerResult[None]:
    """Record that the local logs of these partitions match their archives, which completes their recovery.
    Partitions of topics that are not being recovered are skipped."""
    done: dict[UUID, set[int]] = {}
    for topic_id, number in partitions:
        done.setdefault(topic_id, set()).add(number)
    records: list[MetadataRecord] = []
    for topic_id, numbers in done.items():
        state = image.recovered.get(topic_id)
        if state is not None:
            left = tuple(number for number in state.unchecked_partitions if number not in numbers)
            records.append(recovered_record(topic_id, state._replace(unchecked_partitions=left)))
    return ControllerResult(tuple(map(newest, records)), None)


def recovered_record(topic_id: UUID, state: RecoveredTopic) -> RecoveredTopicRecord:
    """Return the record of a topic's remaining recovery work."""
    return RecoveredTopicRecord(topic_id=topic_id, **state._asdict())


class _Adopting:
    """One adoption while its records are generated."""

    def __init__(self, image: MetadataImage, found: BucketContent, node_id: int, life_id: UUID) -> None:
        self._image = image
        self._life_id = life_id
        self._found = found
        self._node_id = node_id
        self._copy = found.copy or _NOTHING_FOUND
        self._deleted: set[UUID] = set()
        self._archive_epochs: dict[tuple[UUID, int], int] = {}
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
            yield from self._access()
        for topic in self._found.topics:
            yield from self._topic(topic)
        found = {topic.topic_id for topic in self._found.topics}
        for topic_id, own in self._image.topics_by_id.items():
            if topic_id in self._deleted:
                continue
            if topic_id not in found:
                yield from self._mark_doubted(own)
            yield from self._next_epochs(own)
        yield from self._orders(found)
        ids = (self._image.next_producer_id, self._copy.next_producer_id, self._found.last_producer_id + 1)
        yield ProducerIdsRecord(broker_id=self._node_id, next_producer_id=_next_producer_id(max(ids)))
        yield EndTransactionRecord()

    def _orders(self, found: Collection[UUID]) -> Iterator[MetadataRecord]:
        """Open the bucket's orders to erase anew, for the topics that there are now; `found` are those of the
        bucket. Orders of ours that it lacks are gone."""
        for erasure_id in sorted(self._image.erasures):
            yield RemoveErasureRecord(id=erasure_id)
        there = {one for one in found if one not in self._image.tombstones}
        there |= {one for one in self._image.topics_by_id if one not in self._deleted}
        levels: tuple[MetadataRecord, ...] = ()
        if 0 < self._image.features.get(CATALOG_VERSION, 0) < REWRITES_LEVEL:  # other nodes may join this one
            levels = (FeatureLevelRecord(name=CATALOG_VERSION, feature_level=REWRITES_LEVEL),)
        for erasure in self._found.erasures:
            topics = tuple(one for one in erasure.topics if one in there)
            if topics:
                yield from levels
                levels = ()
                yield erasure_record(erasure._replace(topics=topics, done_ms=-1, is_restored=True))

    def _deletions(self) -> Iterator[MetadataRecord]:
        """Delete topics of ours that the copy has deleted, or whose name was given to another topic since.

        Of two topics with one name, ours is the older one in two cases: the copy has it and lacks the other;
        the bucket's metadata is later than ours and the copy lacks ours.
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
                self._deleted.add(topic.id)
                self.removed.append(topic.name)
                yield RemoveTopicRecord(topic_id=topic.id)
        if not is_newer:
            return
        for topic_id, tombstone in self._copy.tombstones.items():
            if topic_id not in self._image.tombstones:
                yield TombstoneRecord(**tombstone._asdict())

    def _broker_settings(self) -> Iterator[MetadataRecord]:
        """Replace settings of brokers, of all brokers and of groups by those of the copy.

        ``min.insync.replicas`` is kept where the copy has none: with ELR it cannot be removed. So are
        passwords, which few copies have.
        """
        resources: set[ConfigResource] = {
            one for one in (*self._image.configs, *self._copy.configs) if one[0] != ResourceType.TOPIC
        }
        for resource in sorted(resources):
            old, new = self._image.config(*resource), dict(self._copy.config(*resource))
            if resource[0] == ResourceType.BROKER:
                new = with_own_secrets(old, new)
            if MIN_ISR in old:
                new.setdefault(MIN_ISR, old[MIN_ISR])
            yield from _settings(resource, old, new)

    def _access(self) -> Iterator[MetadataRecord]:
        """Replace ACLs, quotas and delegation tokens by those of the copy; credentials, too, where the copy
        has any. Tokens of ours that the copy lacks may have been revoked, and new ones are soon made."""
        copy, own = self._copy, self._image
        scram = copy.scram or own.scram
        yield from entry_differences(own.acls, copy.acls)
        after = replace(own, client_quotas=copy.client_quotas, scram=scram, tokens=copy.tokens)
        yield from filter(None, other_differences(own, after))

    def _topic(self, topic: AdoptedTopic) -> Iterator[MetadataRecord]:
        image = self._image
        if topic.topic_id in image.tombstones:
            return
        own = image.topics_by_id.get(topic.topic_id)
        resource = (int(ResourceType.TOPIC), topic.name)
        state = image.recovered.get(topic.topic_id, RecoveredTopic())
        if own is None:
            named = image.topics_by_name.get(topic.name)
            if named is not None and named.id not in self._deleted:
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
        if self._is_doubted(own, has_news=bool(changed)) or self._has_other_retention(topic):
            state = state._replace(settings_unknown=True)
        state = state._replace(unchecked_partitions=tuple(sorted(changed)))
        if state != image.recovered.get(topic.topic_id, RecoveredTopic()):
            yield recovered_record(topic.topic_id, state)
        if state.settings_unknown:
            self.settings_unknown.append(topic.name)

    def _is_doubted(self, own: TopicImage | None, *, has_news: bool) -> bool:
        """Return whether the last settings of a topic are unknown.

        They are where the bucket gives a reason for doubt, and for a topic of ours whose archive continued
        while no copy is newer: the cluster went on after our metadata.
        """
        went_on = own is not None and not self._found.is_copy_newer and has_news
        return self._found.doubt is not None or went_on

    def _has_other_retention(self, topic: AdoptedTopic) -> bool:
        """Return whether brokers of the lost topic had dynamic retention defaults that differ from this
        broker's.

        This broker leads the topic from now on.
        """
        lost = self._copy.topics_by_id.get(topic.topic_id)
        if lost is None or not self._found.is_copy_newer:
            return False
        brokers = {one for partition in lost.partitions.values() for one in partition.replicas}
        return any(
            override not in topic.configs
            and self._broker_setting(broker, default) != self._broker_setting(self._node_id, default)
            for override, default in _RETENTION.items()
            for broker in brokers
        )

    def _broker_setting(self, broker: int, name: str) -> str | None:
        """Return a dynamic setting of one broker in the copy."""
        return self._copy.config(ResourceType.BROKER, str(broker)).get(name)

    def _mark_doubted(self, own: TopicImage) -> Iterator[MetadataRecord]:
        """Mark the settings of a topic of ours that the bucket does not have as unknown, where there is
        doubt."""
        state = self._image.recovered.get(own.id, RecoveredTopic())
        if self._found.doubt is not None and not state.settings_unknown:
            yield recovered_record(own.id, state._replace(settings_unknown=True))
            self.settings_unknown.append(own.name)

    def _partition(self, topic: AdoptedTopic, number: int) -> Iterator[MetadataRecord]:
        key = topic.topic_id, number
        found = topic.partitions.get(number, AdoptedPartition(None, 0))
        own = self._image.partition(*key)
        self._archive_epochs[key] = found.leader_epoch
        if own is None:
            yield _new_partition(key, _raised(self._copy, key, found.leader_epoch), self._node_id)
        if found.entry is not None and (own is None or _is_news(found.entry, self._image.remote.get(key))):
            yield remote_log_record(*key, found.entry)
            self.changed.add(key)
        yield from self._tail(key, found.entry or self._image.remote.get(key))

    def _tail(self, key: tuple[UUID, int], entry: CatalogEntry | None) -> Iterator[MetadataRecord]:
        """Keep what a restore has left to load: where the newer metadata have it, and the archive has not
        grown since, the archive's end is not the log's."""
        own = self._image.restored_tails.get(key)
        tail = self._copy.restored_tails.get(key) if self._found.is_copy_newer else own
        if tail is not None and entry is not None and entry.end_offset > tail.chain_end:
            tail = None
        if tail is None and own is not None:
            yield RemoveRestoredTailRecord(topic_id=key[0], partition_id=key[1])
        elif tail is not None and tail != own:
            yield restored_tail_record(key, tail)

    def _next_epochs(self, topic: TopicImage) -> Iterator[MetadataRecord]:
        for number, own in topic.partitions.items():
            key = topic.id, number
            epoch = _raised(self._copy, key, max(own.leader_epoch, self._archive_epochs.get(key, 0)))
            yield _without_leader(topic, number, epoch)


def _settings(
    resource: tuple[int, str], old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[MetadataRecord]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield ConfigRecord(
                resource_type=resource[0], resource_name=resource[1], name=name, value=new.get(name)
            )


def _is_news(found: CatalogEntry | None, own: CatalogEntry | None) -> bool:
    """Return whether the bucket's entry replaces ours. HEAD may lag behind our entry after a crash."""
    if found is None or found == own:
        return False
    return own is None or found.version >= own.version


def _raised(lost: MetadataImage, key: tuple[UUID, int], epoch: int) -> int:
    """Return a leader epoch in which no broker has led the partition.

    Raises `CorruptionError` where too few epochs are left.
    """
    before = lost.partition(*key)
    highest = max(epoch, before.leader_epoch if before is not None else 0)
    if highest > MAX_EPOCH - 2 * EPOCH_MARGIN:
        raise CorruptionError(
            f"{key[0]}/{key[1]}: the bucket has it led in epoch {highest}; too few epochs are left"
        )
    return highest + EPOCH_MARGIN


def _next_producer_id(unused: int) -> int:
    if unused > _MAX_PRODUCER_ID - 2 * PRODUCER_ID_MARGIN:
        raise CorruptionError(
            f"all producer ids below {unused} are allocated in the bucket; too few are left"
        )
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


def _without_leader(topic: TopicImage, number: int, leader_epoch: int) -> PartitionRecord:
    """Return the partition without a leader, in an epoch in which no broker has led it."""
    own = topic.partitions[number]._replace(leader=NO_LEADER, leader_epoch=leader_epoch)
    return partition_record(topic, number, own._replace(partition_epoch=own.partition_epoch + 1))
