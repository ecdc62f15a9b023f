"""Converts an image to the records of a snapshot. [P]

The order is that of Apache Kafka's ``MetadataImage.write``: features, brokers, controllers, topics, configs,
client quotas, producer ids, access control entries, SCRAM credentials, delegation tokens; then the remote
catalog, tombstones, the life, recovered topics, restored tails, rewrites and erasures. Records of a kind are
sorted by name or id, so that equal images have equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final
from uuid import UUID

from service.metadata.access_records import entry_records, quota_records, scram_records, token_records
from service.metadata.frames import Frame, newest
from service.metadata.image import (
    METADATA_VERSION,
    BrokerImage,
    ControllerImage,
    MetadataImage,
    PartitionImage,
    Place,
    RestoredTail,
    TopicImage,
)
from service.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    ErasedRecord,
    ErasureRecord,
    FeatureLevelRecord,
    LifeRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecoveredTopicRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoteLogRecord,
    RestoredTailRecord,
    RewriteRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.remote.catalog import Erasure, RewriteIntent

MAX_ERASED_IN_RECORD: Final = 1_000
"""Partitions that one `ErasedRecord` names: replay takes a record in one step."""
_NO_BROKER = -1


def image_frames(image: MetadataImage) -> Iterator[Frame]:
    """Yield the frames that build `image` from an empty one.

    `ValueError` where a transaction is open at its end, as a snapshot would lose it: see
    `MetadataImage.settled`.
    """
    if image.transaction is not None:
        raise ValueError("no snapshot of an image whose last transaction is open")
    return map(newest, image_records(image))


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield the records that build `image` from an empty one; of an open transaction nothing."""
    for name in sorted(image.features, key=lambda feature: (feature != METADATA_VERSION, feature)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    yield from (broker_record(image.brokers[broker_id]) for broker_id in sorted(image.brokers))
    yield from (controller_record(image.controllers[node_id]) for node_id in sorted(image.controllers))
    for name in sorted(image.topics_by_name):
        yield from _topic(image.topics_by_name[name])
    for resource_type, resource_name in sorted(image.configs):
        for name, value in sorted(image.config(resource_type, resource_name).items()):
            yield ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=value
            )
    yield from quota_records(image)
    if image.next_producer_id:
        yield ProducerIdsRecord(
            broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=image.next_producer_id
        )
    yield from entry_records(image)
    yield from scram_records(image)
    yield from token_records(image)
    for key in sorted(image.remote):
        yield RemoteLogRecord(topic_id=key[0], partition_id=key[1], **image.remote[key]._asdict())
    for topic_id in sorted(image.tombstones):
        yield TombstoneRecord(**image.tombstones[topic_id]._asdict())
    if image.life:
        yield LifeRecord(life=image.life, life_id=image.life_id)
    for topic_id in sorted(image.recovered):
        yield RecoveredTopicRecord(topic_id=topic_id, **image.recovered[topic_id]._asdict())
    for key in sorted(image.restored_tails):
        yield restored_tail_record(key, image.restored_tails[key])
    for key in sorted(image.rewrites):
        yield rewrite_record(key, image.rewrites[key])
    for erasure_id in sorted(image.erasures):
        yield erasure_record(image.erasures[erasure_id])
        if (notes := image.erased.get(erasure_id)) is not None:
            yield from erased_records(erasure_id, ((place, notes[place]) for place in sorted(notes)))


def _topic(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.id)
    for partition_id, partition in topic.partitions.items():
        yield partition_record(topic, partition_id, partition)


def partition_record(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionRecord:
    """Return the record of a partition's state."""
    return PartitionRecord(
        partition_id=partition_id,
        topic_id=topic.id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_elr or None,
    )


def restored_tail_record(key: tuple[UUID, int], tail: RestoredTail) -> RestoredTailRecord:
    """Return the record of a partition, by topic id and index, whose tails are not loaded yet."""
    return RestoredTailRecord(topic_id=key[0], partition_id=key[1], **tail._asdict())


def rewrite_record(key: Place, intent: RewriteIntent) -> RewriteRecord:
    """Return the record of a partition's rewrite."""
    return RewriteRecord(topic_id=key[0], partition_id=key[1], **intent._asdict())


def erasure_record(erasure: Erasure) -> ErasureRecord:
    """Return the record of an order to erase."""
    return ErasureRecord(**erasure._asdict())


def erased_records(erasure_id: UUID, places: Iterable[tuple[Place, Iterable[int]]]) -> Iterator[ErasedRecord]:
    """Yield the records of clean places, each with the brokers; places of one topic come one after the
    other."""
    for topic_id, those in groupby(places, key=lambda one: one[0][0]):
        by_broker: dict[int, list[int]] = {}
        for (_, partition), brokers in those:
            for broker_id in brokers:
                by_broker.setdefault(broker_id, []).append(partition)
        for broker_id in sorted(by_broker):
            numbers = by_broker[broker_id]
            for at in range(0, len(numbers), MAX_ERASED_IN_RECORD):
                yield ErasedRecord(
                    erasure_id=erasure_id,
                    broker_id=broker_id,
                    topic_id=topic_id,
                    partitions=tuple(numbers[at : at + MAX_ERASED_IN_RECORD]),
                )


def broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    """Return the record of a broker's registration."""
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=tuple(BrokerEndpoint(**endpoint._asdict()) for endpoint in broker.endpoints),
        features=tuple(
            BrokerFeature(name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level)
            for f in broker.features
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        cordoned_log_dirs=broker.cordoned_log_dirs,
    )


def controller_record(controller: ControllerImage) -> RegisterControllerRecord:
    """Return the record of a controller's registration."""
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=False,
        end_points=tuple(ControllerEndpoint(**endpoint._asdict()) for endpoint in controller.endpoints),
        features=tuple(
            ControllerFeature(
                name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level
            )
            for f in controller.features
        ),
    )
