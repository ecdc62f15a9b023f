"""Replays records on an image: the only place that changes metadata. [P]

The controller, recovery, snapshots, listeners and tests all use `MetadataDelta.replay`. A record that
contradicts the image (of a partition of an unknown topic, say) is a `CorruptionError`: the log is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.base.steps import Steps, at_once
from service.metadata.frames import UnknownRecord
from service.metadata.image import (
    KRAFT_VERSION,
    BrokerImage,
    ConfigResource,
    ControllerImage,
    EndpointImage,
    FeatureRange,
    MetadataImage,
    OpenTransaction,
    PartitionImage,
    RecoveredTopic,
    TopicImage,
    collision_key,
)
from service.metadata.partition_index import Shelf, shelves
from service.metadata.persistent import REMOVED, PartitionMap, Removed
from service.metadata.records import (
    LEADER_UNCHANGED,
    REFUSED_TYPES,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    LifeRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecoveredTopicRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoteLogRecord,
    RemoveTombstoneRecord,
    RemoveTopicRecord,
    TombstoneRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from service.remote.catalog import CatalogEntry, Tombstone

ZERO_UUID: Final = UUID(int=0)


@dataclass(slots=True)
class _TopicChange:
    name: str
    before: PartitionMap[PartitionImage]
    partitions: dict[int, PartitionImage]

    def partition(self, partition: int) -> PartitionImage | None:
        return self.partitions.get(partition) or self.before.get(partition)


class MetadataDelta:
    """Changes to `image`, collected by `replay` and turned into the next image by `build`.

    The public attributes show listeners what changed; the values are in the two images. Records of a metadata
    transaction change nothing before its end. Where the end is not in this delta, the image keeps them
    (`MetadataImage.transaction`), and the delta of the batch that ends it shows all changes.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._transaction = image.transaction
        self._run: list[MetadataRecord] = []
        """Records of the open transaction in this delta."""
        self._kraft_version = image.kraft_version
        self.configs: set[ConfigResource] = set()
        self.brokers: set[int] = set()
        self.remote: set[tuple[UUID, int]] = set()
        self.recovered: set[UUID] = set()
        self.deleted_topics: dict[UUID, TopicImage] = {}
        self._topics: dict[UUID, _TopicChange] = {}
        self._created: dict[str, UUID] = {}
        self._config_values: dict[ConfigResource, dict[str, str]] = {}
        self._brokers: dict[int, BrokerImage] | None = None
        self._controllers: dict[int, ControllerImage] | None = None
        self._features: dict[str, int] | None = None
        self._remote: dict[tuple[UUID, int], CatalogEntry | Removed] = {}
        self._tombstones: dict[UUID, Tombstone | Removed] = {}
        self._recovered: dict[UUID, RecoveredTopic | Removed] = {}
        self._life = self.image.life
        self._life_id = self.image.life_id
        self._next_producer_id = self.image.next_producer_id

    @property
    def topics(self) -> set[UUID]:
        """Ids of topics that were created or have changed partitions, without deleted ones."""
        return set(self._topics)

    def changed_partitions(self, topic_id: UUID) -> Collection[int]:
        """Return the new and the changed partitions of one of `topics`."""
        return self._topics[topic_id].partitions.keys()

    def replay(self, record: MetadataRecord | UnknownRecord) -> None:
        """Apply one record. Raises `CorruptionError` where it contradicts the image."""
        apply = _APPLY.get(type(record))
        if apply is not None and self._transaction is None:
            apply(self, record)
        else:
            at_once(self._replay(record))

    def _replay(self, record: MetadataRecord | UnknownRecord) -> Steps[None]:
        """Apply one record in one step; the end of a transaction applies all of its records, a step each."""
        apply = _APPLY.get(type(record))
        if apply is not None and self._transaction is None:
            yield
            apply(self, record)
        elif isinstance(record, EndTransactionRecord):
            yield from self._end()
        elif isinstance(record, AbortTransactionRecord):
            self._close()
        elif isinstance(record, BeginTransactionRecord):
            self._begin(record)
        elif apply is not None and not isinstance(record, UnknownRecord):
            self._run.append(record)
        else:
            raise UnknownVersion(_refusal(record))

    def replay_all(self, records: Iterable[MetadataRecord | UnknownRecord]) -> MetadataDelta:
        for record in records:
            self.replay(record)
        return self

    def replay_in_steps(self, records: Iterable[MetadataRecord | UnknownRecord]) -> Steps[MetadataDelta]:
        """Replay records as `replay_all` does, in steps."""
        for record in records:
            yield from self._replay(record)
        return self

    def set_kraft_version(self, level: int) -> None:
        """Set the level from the log's control records."""
        self._kraft_version = level

    def build(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataImage:
        """Build the image up to and including `offset`."""
        return at_once(self.build_in_steps(offset, epoch, timestamp_ms))

    def build_in_steps(self, offset: int, epoch: int, timestamp_ms: int) -> Steps[MetadataImage]:
        """Build the image as `build` does, in steps."""
        image = self.image
        changed: dict[UUID, TopicImage | Removed] = {}
        for topic_id, change in self._topics.items():
            yield
            partitions = change.before.with_changes(change.partitions)
            changed[topic_id] = TopicImage(change.name, topic_id, partitions)
        yield
        by_name: dict[str, TopicImage | Removed] = {t.name: REMOVED for t in self.deleted_topics.values()}
        by_name.update({topic.name: topic for topic in changed.values() if isinstance(topic, TopicImage)})
        changed.update(dict.fromkeys(self.deleted_topics, REMOVED))
        configs = {k: v or REMOVED for k, v in self._config_values.items()}
        collisions = yield from self._collisions()
        toggles = yield from self._toggles()
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            topics_by_id=(yield from image.topics_by_id.with_changes_in_steps(changed)),
            topics_by_name=(yield from image.topics_by_name.with_changes_in_steps(by_name)),
            collisions=(yield from image.collisions.with_changes_in_steps(collisions)),
            configs=(yield from image.configs.with_changes_in_steps(configs)),
            brokers=image.brokers if self._brokers is None else self._brokers,
            controllers=image.controllers if self._controllers is None else self._controllers,
            features=image.features if self._features is None else self._features,
            next_producer_id=self._next_producer_id,
            remote=(yield from image.remote.with_changes_in_steps(self._remote)),
            tombstones=(yield from image.tombstones.with_changes_in_steps(self._tombstones)),
            life=self._life,
            life_id=self._life_id,
            recovered=(yield from image.recovered.with_changes_in_steps(self._recovered)),
            index=(yield from image.index.toggled_in_steps(toggles)),
            kraft_version=self._kraft_version,
            transaction=self._still_open(),
        )

    def _still_open(self) -> OpenTransaction | None:
        if self._transaction is None or not self._run:
            return self._transaction
        return self._transaction._replace(runs=(*self._transaction.runs, tuple(self._run)))

    def _toggles(self) -> Steps[dict[Shelf, dict[UUID, list[int]]]]:
        """Return the partitions that enter or leave shelves of the index."""
        toggles: dict[Shelf, dict[UUID, list[int]]] = {}

        def toggle(topic_id: UUID, partition: int, before: set[Shelf], after: set[Shelf]) -> None:
            for shelf in before ^ after:
                toggles.setdefault(shelf, {}).setdefault(topic_id, []).append(partition)

        for topic_id, change in self._topics.items():
            for number, partition in change.partitions.items():
                yield
                old = change.before.get(number)
                toggle(topic_id, number, _shelves(old) if old is not None else set(), _shelves(partition))
        for topic_id, topic in self.deleted_topics.items():
            for number, partition in topic.partitions.items():
                yield
                toggle(topic_id, number, _shelves(partition), set())
        return toggles

    def _collisions(self) -> Steps[dict[str, tuple[str, ...] | Removed]]:
        changes: dict[str, set[str]] = {}
        for topic in self.deleted_topics.values():
            yield
            if (key := collision_key(topic.name)) is not None:
                changes.setdefault(key, set(self.image.collisions.get(key, ()))).discard(topic.name)
        for name in self._created:
            yield
            if (key := collision_key(name)) is not None:
                changes.setdefault(key, set(self.image.collisions.get(key, ()))).add(name)
        return {k: tuple(sorted(v)) or REMOVED for k, v in changes.items()}

    # -- topics

    def _change(self, topic_id: UUID | None) -> _TopicChange:
        topic_id = topic_id or ZERO_UUID
        change = self._topics.get(topic_id)
        if change is not None:
            return change
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None or topic_id in self.deleted_topics:
            raise CorruptionError(f"metadata record for topic id {topic_id}, which is not there")
        self._topics[topic_id] = change = _TopicChange(topic.name, topic.partitions, {})
        return change

    def _topic(self, record: TopicRecord) -> None:
        topic_id = record.topic_id or ZERO_UUID
        existing = self.image.topics_by_name.get(record.name)
        taken = existing is not None and existing.id not in self.deleted_topics
        if taken or record.name in self._created or topic_id in self.image.topics_by_id:
            raise CorruptionError(f"metadata record creates topic {record.name!r} ({topic_id}) again")
        self._topics[topic_id] = _TopicChange(record.name, PartitionMap(), {})
        self._created[record.name] = topic_id

    def _partition(self, record: PartitionRecord) -> None:
        self._change(record.topic_id).partitions[record.partition_id] = PartitionImage(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=_ids(record.directories),
            removing_replicas=record.removing_replicas,
            adding_replicas=record.adding_replicas,
            leader_recovery_state=record.leader_recovery_state,
            eligible_leader_replicas=record.eligible_leader_replicas or (),
            last_known_elr=record.last_known_elr or (),
        )

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        change = self._change(record.topic_id)
        old = change.partition(record.partition_id)
        if old is None:
            raise CorruptionError(
                f"metadata record for {change.name}-{record.partition_id}, which is not there"
            )
        change.partitions[record.partition_id] = changed_partition(old, record)

    def _clear_elr(self, record: ClearElrRecord) -> None:
        """Clear the ELR by one change of each partition that has any (Apache Kafka ``removeTopicElrs``)."""
        if record.topic_name:
            topic_id = self._created.get(record.topic_name)
            known = self.image.topics_by_name.get(record.topic_name)
            if topic_id is None and known is not None and known.id not in self.deleted_topics:
                topic_id = known.id
            if topic_id is None:
                raise CorruptionError(f"metadata record for topic {record.topic_name!r}, which is not there")
            self._clear_elr_of(topic_id)
            return
        alive = [topic_id for topic_id in self.image.topics_by_id if topic_id not in self.deleted_topics]
        for topic_id in dict.fromkeys([*alive, *self._topics]):
            self._clear_elr_of(topic_id)

    def _clear_elr_of(self, topic_id: UUID) -> None:
        change = self._topics.get(topic_id)
        topic = self.image.topics_by_id.get(topic_id)
        before = change.before if change is not None else topic.partitions if topic is not None else ()
        for number in dict.fromkeys([*before, *(change.partitions if change is not None else ())]):
            partition = self._topics[topic_id].partition(number) if change else before[number]
            if partition is not None and (partition.eligible_leader_replicas or partition.last_known_elr):
                self._change(topic_id).partitions[number] = partition._replace(
                    partition_epoch=partition.partition_epoch + 1,
                    eligible_leader_replicas=(),
                    last_known_elr=(),
                )

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        change = self._change(record.topic_id)
        topic_id = record.topic_id or ZERO_UUID
        del self._topics[topic_id]
        if self._created.get(change.name) == topic_id:
            del self._created[change.name]
        else:
            self.deleted_topics[topic_id] = self.image.topics_by_id[topic_id]
        self._set_config((_TOPIC, change.name), {})
        for partition in range(max(len(change.before), *change.partitions, 0) + 1):
            key = (topic_id, partition)
            if key in self.image.remote or key in self._remote:
                self._remote[key] = REMOVED
                self.remote.add(key)
        if topic_id in self.image.recovered or topic_id in self._recovered:
            self._recovered[topic_id] = REMOVED
            self.recovered.add(topic_id)

    def _remote_log(self, record: RemoteLogRecord) -> None:
        topic_id = record.topic_id or ZERO_UUID
        change = self._topics.get(topic_id)
        known: Any
        if change is not None:
            known = change.partition(record.partition_id)
        else:
            known = topic_id not in self.deleted_topics and self.image.partition(
                topic_id, record.partition_id
            )
        if not known:
            raise CorruptionError(f"remote catalog of {topic_id}-{record.partition_id}, which is not there")
        self._remote[topic_id, record.partition_id] = CatalogEntry(
            version=record.version,
            manifest_key=record.manifest_key,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            end_offset=record.end_offset,
            segments=record.segments,
            size_bytes=record.size_bytes,
        )
        self.remote.add((topic_id, record.partition_id))

    def _tombstone(self, record: TombstoneRecord) -> None:
        topic_id = record.topic_id or ZERO_UUID
        alive = topic_id in self.image.topics_by_id and topic_id not in self.deleted_topics
        if alive or topic_id in self._topics:
            raise CorruptionError(f"tombstone of topic {record.name!r} ({topic_id}), which is there")
        self._tombstones[topic_id] = Tombstone(topic_id, record.name, record.partitions, record.deleted_ms)

    def _remove_tombstone(self, record: RemoveTombstoneRecord) -> None:
        topic_id = record.topic_id or ZERO_UUID
        if self._tombstones.get(topic_id, self.image.tombstones.get(topic_id, REMOVED)) is REMOVED:
            raise CorruptionError(f"metadata record removes the tombstone of {topic_id}, which is not there")
        self._tombstones[topic_id] = REMOVED

    # -- recoveries

    def _set_life(self, record: LifeRecord) -> None:
        if record.life < self._life:
            raise CorruptionError(f"the cluster's life goes back from {self._life} to {record.life}")
        self._life, self._life_id = record.life, record.life_id

    def _recovered_topic(self, record: RecoveredTopicRecord) -> None:
        topic_id = record.topic_id or ZERO_UUID
        if topic_id not in self._topics and (
            topic_id not in self.image.topics_by_id or topic_id in self.deleted_topics
        ):
            raise CorruptionError(f"state of the recovery of topic id {topic_id}, which is not there")
        state = RecoveredTopic(record.unchecked_partitions, record.settings_unknown)
        self._recovered[topic_id] = state if state != RecoveredTopic() else REMOVED
        self.recovered.add(topic_id)

    # -- configs, features, producer ids

    def _config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        current = self._config_values.get(resource)
        values = dict(self.image.config(*resource) if current is None else current)
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        self._set_config(resource, values)

    def _set_config(self, resource: ConfigResource, values: dict[str, str]) -> None:
        if values or resource in self.image.configs or resource in self._config_values:
            self._config_values[resource] = values
            self.configs.add(resource)

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if record.name == KRAFT_VERSION:
            return  # the log's control records hold this level (KAFKA-18979)
        features = dict(self.image.features) if self._features is None else self._features
        if record.feature_level:
            features[record.name] = record.feature_level
        else:
            features.pop(record.name, None)
        self._features = features

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self._next_producer_id:
            raise CorruptionError(
                f"producer ids go back from {self._next_producer_id} to {record.next_producer_id}"
            )
        self._next_producer_id = record.next_producer_id

    # -- cluster

    def _change_broker(self, broker_id: int, epoch: int, **changes: Any) -> None:
        brokers = dict(self.image.brokers) if self._brokers is None else self._brokers
        broker = brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise CorruptionError(f"metadata record for broker {broker_id} of epoch {epoch}, not registered")
        brokers[broker_id] = broker._replace(**changes)
        self._brokers = brokers
        self.brokers.add(broker_id)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers = dict(self.image.brokers) if self._brokers is None else self._brokers
        self._brokers[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id or ZERO_UUID,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=_ids(record.log_dirs),
            cordoned_log_dirs=None if record.cordoned_log_dirs is None else _ids(record.cordoned_log_dirs),
        )
        self.brokers.add(record.broker_id)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._change_broker(record.broker_id, record.broker_epoch)
        if self._brokers is not None:
            del self._brokers[record.broker_id]

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=True)

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=False)

    def _change_registration(self, record: BrokerRegistrationChangeRecord) -> None:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = _ids(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = _ids(record.cordoned_log_dirs)
        self._change_broker(record.broker_id, record.broker_epoch, **changes)

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self._controllers = dict(self.image.controllers) if self._controllers is None else self._controllers
        self._controllers[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id or ZERO_UUID,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )

    def forget_controllers(self, node_ids: Iterable[int]) -> None:
        """Remove controllers that a snapshot lacks; no record removes a controller."""
        for node_id in node_ids:
            self._controllers = (
                dict(self.image.controllers) if self._controllers is None else self._controllers
            )
            self._controllers.pop(node_id, None)

    # -- transactions

    def _begin(self, record: BeginTransactionRecord) -> None:
        if self._transaction is not None:
            raise CorruptionError("a metadata transaction begins inside another")
        self._transaction = OpenTransaction(record.name, (), self.image)

    def _close(self) -> list[MetadataRecord]:
        """Close the open transaction, and return its records."""
        if self._transaction is None:
            raise CorruptionError("a metadata transaction ends without a beginning")
        records = [*chain.from_iterable(self._transaction.runs), *self._run]
        self._transaction = None
        self._run = []
        return records

    def _end(self) -> Steps[None]:
        for record in self._close():
            yield
            _APPLY[type(record)](self, record)

    def _nothing(self, record: NoOpRecord) -> None:
        """Ignore a no-op, which only advances the offset."""


_TOPIC: Final = 2

_APPLY: Final[Mapping[type[Any], Callable[[MetadataDelta, Any], None]]] = {
    TopicRecord: MetadataDelta._topic,
    PartitionRecord: MetadataDelta._partition,
    PartitionChangeRecord: MetadataDelta._partition_change,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    RemoteLogRecord: MetadataDelta._remote_log,
    TombstoneRecord: MetadataDelta._tombstone,
    RemoveTombstoneRecord: MetadataDelta._remove_tombstone,
    LifeRecord: MetadataDelta._set_life,
    RecoveredTopicRecord: MetadataDelta._recovered_topic,
    ConfigRecord: MetadataDelta._config,
    FeatureLevelRecord: MetadataDelta._feature_level,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    RegisterBrokerRecord: MetadataDelta._register_broker,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    FenceBrokerRecord: MetadataDelta._fence_broker,
    UnfenceBrokerRecord: MetadataDelta._unfence_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._change_registration,
    RegisterControllerRecord: MetadataDelta._register_controller,
    ClearElrRecord: MetadataDelta._clear_elr,
    NoOpRecord: MetadataDelta._nothing,
}


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
        directories=old.directories if record.directories is None else _ids(record.directories),
        removing_replicas=_or(record.removing_replicas, old.removing_replicas),
        adding_replicas=_or(record.adding_replicas, old.adding_replicas),
        leader_recovery_state=old.leader_recovery_state if state < 0 else state,
        eligible_leader_replicas=_or(record.eligible_leader_replicas, old.eligible_leader_replicas),
        last_known_elr=_or(record.last_known_elr, old.last_known_elr),
    )


def _refusal(record: MetadataRecord | UnknownRecord) -> str:
    name = REFUSED_TYPES.get(record.api_key) if isinstance(record, UnknownRecord) else None
    if name is not None:
        return f"metadata record of an unsupported type: {name}: {record!r:.200}"
    return f"metadata record of unknown type: {record!r:.200}"


def _shelves(one: PartitionImage) -> set[Shelf]:
    return shelves(
        one.replicas,
        one.isr,
        one.eligible_leader_replicas,
        one.leader,
        one.directories,
        is_moving=one.is_moving,
    )


def _or(new: tuple[int, ...] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else new


def _ids(ids: Iterable[UUID | None]) -> tuple[UUID, ...]:
    """Replace None, as kio reads zero ids, by the zero UUID."""
    return tuple(i or ZERO_UUID for i in ids)


def _endpoints(endpoints: Iterable[Any]) -> tuple[EndpointImage, ...]:
    return tuple(EndpointImage(e.name, e.host, e.port, e.security_protocol) for e in endpoints)


def _features(features: Iterable[Any]) -> tuple[FeatureRange, ...]:
    """Convert features, sorted by name: Kafka writes them in any order."""
    return tuple(
        sorted(FeatureRange(f.name, f.min_supported_version, f.max_supported_version) for f in features)
    )
