"""Replays records on an image: the only place that changes metadata. [P]

The controller, recovery, snapshots, listeners and tests all use `MetadataDelta.replay`. A record that
contradicts the image (of a partition of an unknown topic, say) is a `CorruptionError`: the log is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.base.steps import Steps, at_once
from service.metadata.access_delta import AccessDelta
from service.metadata.catalog_delta import CatalogDelta
from service.metadata.cluster_delta import ClusterDelta
from service.metadata.frames import UnknownRecord
from service.metadata.image import KRAFT_VERSION, ConfigResource, MetadataImage, OpenTransaction
from service.metadata.persistent import REMOVED
from service.metadata.records import (
    ZERO_UUID,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    ErasedRecord,
    ErasureRecord,
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
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveErasureRecord,
    RemoveRestoredTailRecord,
    RemoveRewriteRecord,
    RemoveTombstoneRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    RestoredTailRecord,
    RewriteRecord,
    TombstoneRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from service.metadata.rewrites_delta import RewritesDelta
from service.metadata.topics_delta import TopicsDelta


class MetadataDelta:
    """Changes to `image`, collected by `replay` and turned into the next image by `build`.

    The public attributes show listeners what changed; the values are in the two images. Records of a metadata
    transaction change nothing before its end. Where the end is not in this delta, the image keeps them
    (`MetadataImage.transaction`), and the delta of the batch that ends it shows all changes.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._topics = TopicsDelta(image)
        self._cluster = ClusterDelta(image)
        self._catalog = CatalogDelta(image, self._topics)
        self._rewrites = RewritesDelta(image, self._topics)
        self._access = AccessDelta(image)
        self.deleted_topics = self._topics.deleted
        self.changed_partitions = self._topics.changed_partitions
        self.brokers = self._cluster.changed_brokers
        self.forget_controllers = self._cluster.forget_controllers
        self.set_acls = self._access.set_acls
        self.remote, self.recovered = self._catalog.changed, self._catalog.recovered
        self.restored_tails = self._catalog.restored
        self.rewrites, self.erasures = self._rewrites.rewrites, self._rewrites.erasures
        self.users, self.quota_entities = self._access.users, self._access.entities
        self.configs: set[ConfigResource] = set()
        self._config_values: dict[ConfigResource, dict[str, str]] = {}
        self._features: dict[str, int] | None = None
        self._next_producer_id = image.next_producer_id
        self._kraft_version = image.kraft_version
        self._transaction = image.transaction
        self._run: list[MetadataRecord] = []
        """Records of the open transaction in this delta."""

    @property
    def topics(self) -> set[UUID]:
        """Ids of topics that were created or have changed partitions, without deleted ones."""
        return self._topics.changed

    @property
    def elections(self) -> tuple[int, int]:
        """Number of elections of another leader of a partition, and of the unclean ones among them."""
        return self._topics.elections, self._topics.unclean_elections

    def replay(self, record: MetadataRecord | UnknownRecord) -> None:
        """Apply one record. Raises `CorruptionError` where it contradicts the image."""
        apply = _APPLY.get(type(record))
        if apply is not None and self._transaction is None and not isinstance(record, RegisterBrokerRecord):
            apply(self, record)
        else:
            at_once(self._replay(record))

    def _replay(self, record: MetadataRecord | UnknownRecord) -> Steps[None]:
        """Apply one record in one step; a broker's start takes its notes away, a step each, and the end of a
        transaction applies all of its records."""
        apply = _APPLY.get(type(record))
        if apply is not None and self._transaction is None:
            yield
            yield from self._apply(record)
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
        topics = yield from self._topics.build_in_steps()
        configs = {k: v or REMOVED for k, v in self._config_values.items()}
        catalog = yield from self._catalog.build_in_steps()
        rewrites = yield from self._rewrites.build_in_steps()
        access = yield from self._access.build_in_steps()
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            topics_by_id=topics.topics_by_id,
            topics_by_name=topics.topics_by_name,
            collisions=topics.collisions,
            configs=(yield from image.configs.with_changes_in_steps(configs)),
            brokers=self._cluster.brokers,
            controllers=self._cluster.controllers,
            features=image.features if self._features is None else self._features,
            next_producer_id=self._next_producer_id,
            remote=catalog.remote,
            tombstones=catalog.tombstones,
            life=self._catalog.life,
            life_id=self._catalog.life_id,
            recovered=catalog.recovered,
            restored_tails=catalog.restored_tails,
            rewrites=rewrites.rewrites,
            erasures=rewrites.erasures,
            erased=rewrites.erased,
            acls=access.acls,
            scram=access.scram,
            tokens=access.tokens,
            client_quotas=access.client_quotas,
            index=topics.partition_index,
            kraft_version=self._kraft_version,
            transaction=self._still_open(),
        )

    def _still_open(self) -> OpenTransaction | None:
        if self._transaction is None or not self._run:
            return self._transaction
        return self._transaction._replace(runs=(*self._transaction.runs, tuple(self._run)))

    # -- records of several parts, or of none

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topics.remove(record)
        self._set_config((_TOPIC, topic.name), {})
        self._catalog.remove_topic(topic)
        self._rewrites.remove_topic(topic)

    def _change_partition(self, record: PartitionRecord | PartitionChangeRecord) -> None:
        topic_id, number = record.topic_id or ZERO_UUID, record.partition_id
        old = self._topics.partition(topic_id, number) if self._rewrites.has_any else None
        if isinstance(record, PartitionRecord):
            self._topics.set_partition(record)
        else:
            self._topics.change_partition(record)
        if old is not None:
            self._rewrites.change_partition((topic_id, number), old)

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
            yield from self._apply(record)

    def _apply(self, record: MetadataRecord | UnknownRecord) -> Steps[None]:
        if not isinstance(record, RegisterBrokerRecord):
            _APPLY[type(record)](self, record)
            return
        before = self._cluster.brokers.get(record.broker_id)
        self._cluster.register_broker(record)
        if before is None or before.incarnation_id != (record.incarnation_id or ZERO_UUID):
            yield from self._rewrites.broker_started(record.broker_id)

    def _nothing(self, record: NoOpRecord) -> None:
        """Ignore a no-op, which only advances the offset."""


_TOPIC: Final = 2

_APPLY: Final[Mapping[type[Any], Callable[[MetadataDelta, Any], None]]] = {
    TopicRecord: lambda delta, record: delta._topics.create(record),
    PartitionRecord: MetadataDelta._change_partition,
    PartitionChangeRecord: MetadataDelta._change_partition,
    ClearElrRecord: lambda delta, record: delta._topics.clear_elr(record),
    RemoveTopicRecord: MetadataDelta._remove_topic,
    RemoteLogRecord: lambda delta, record: delta._catalog.set_entry(record),
    TombstoneRecord: lambda delta, record: delta._catalog.add_tombstone(record),
    RemoveTombstoneRecord: lambda delta, record: delta._catalog.remove_tombstone(record),
    LifeRecord: lambda delta, record: delta._catalog.set_life(record),
    RecoveredTopicRecord: lambda delta, record: delta._catalog.set_recovered(record),
    RestoredTailRecord: lambda delta, record: delta._catalog.set_tail(record),
    RemoveRestoredTailRecord: lambda delta, record: delta._catalog.remove_tail(record),
    RewriteRecord: lambda delta, record: delta._rewrites.set_rewrite(record),
    RemoveRewriteRecord: lambda delta, record: delta._rewrites.remove_rewrite(record),
    ErasureRecord: lambda delta, record: delta._rewrites.set_erasure(record),
    RemoveErasureRecord: lambda delta, record: delta._rewrites.remove_erasure(record),
    ErasedRecord: lambda delta, record: delta._rewrites.note_erased(record),
    UserScramCredentialRecord: lambda delta, record: delta._access.set_credential(record),
    RemoveUserScramCredentialRecord: lambda delta, record: delta._access.remove_credential(record),
    DelegationTokenRecord: lambda delta, record: delta._access.set_token(record),
    RemoveDelegationTokenRecord: lambda delta, record: delta._access.remove_token(record),
    AccessControlEntryRecord: lambda delta, record: delta._access.add_entry(record),
    RemoveAccessControlEntryRecord: lambda delta, record: delta._access.remove_entry(record),
    ClientQuotaRecord: lambda delta, record: delta._access.change_quota(record),
    ConfigRecord: MetadataDelta._config,
    FeatureLevelRecord: MetadataDelta._feature_level,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    RegisterBrokerRecord: lambda delta, record: delta._cluster.register_broker(record),
    UnregisterBrokerRecord: lambda delta, record: delta._cluster.unregister_broker(record),
    FenceBrokerRecord: lambda delta, record: delta._cluster.fence_broker(record),
    UnfenceBrokerRecord: lambda delta, record: delta._cluster.unfence_broker(record),
    BrokerRegistrationChangeRecord: lambda delta, record: delta._cluster.change_registration(record),
    RegisterControllerRecord: lambda delta, record: delta._cluster.register_controller(record),
    NoOpRecord: MetadataDelta._nothing,
}


def _refusal(record: MetadataRecord | UnknownRecord) -> str:
    return f"metadata record of unknown type: {record!r:.200}"
