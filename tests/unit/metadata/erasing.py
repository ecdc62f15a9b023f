"""A cluster of three brokers with archived topics, for rewrites and erasures of its metadata."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from service.base.types import TopicIdPartition
from service.metadata.controller.requests import CatalogSender
from service.metadata.delta import MetadataDelta
from service.metadata.features import CATALOG_VERSION
from service.metadata.image import MetadataImage
from service.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoteLogRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogEntry, Erasure, RewriteIntent, RewriteKind

TOPIC, OTHER, COMPACTED, INTERNAL = (UUID(int=number) for number in (7, 8, 9, 10))
DIRECTORY = UUID(int=50)
"""the disk of each broker: 50 of broker 0, 51 of broker 1"""
FIRST, SECOND, THIRD = (CatalogSender(number, 10 * number) for number in (1, 2, 3))
TIP = TopicIdPartition(TOPIC, "events", 0)
PLACE = (TOPIC, 0)
ENTRY = CatalogEntry(4, "m4", 5, 100, 900, 20, 5_000)
INTENT = RewriteIntent(UUID(int=31), 200, 499, RewriteKind.MERGE, 5, 60)
ORDER_ID = UUID(int=41)
ORDER = Erasure(ORDER_ID, f"erase/{ORDER_ID}.json.gz", 900, 77, 3, (TOPIC, OTHER), 60)


def directory(broker_id: int) -> UUID:
    return UUID(int=DIRECTORY.int + broker_id)


def partition(topic_id: UUID, number: int, **other: Any) -> PartitionRecord:
    """Brokers 1 and 2 have it, 1 leads it in epoch 5."""
    values: dict[str, Any] = {
        "replicas": (1, 2),
        "isr": (1, 2),
        "leader": 1,
        "leader_epoch": 5,
        "partition_epoch": 3,
        "directories": (directory(1), directory(2)),
    }
    return PartitionRecord(partition_id=number, topic_id=topic_id, **{**values, **other})


def changed(**change: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=TOPIC, partition_id=0, **change)


def policy(name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=name, name="cleanup.policy", value=value)


RECORDS: tuple[MetadataRecord, ...] = (
    FeatureLevelRecord(name="metadata.version", feature_level=30),
    FeatureLevelRecord(name=CATALOG_VERSION, feature_level=3),
    *(
        RegisterBrokerRecord(
            broker_id=number,
            incarnation_id=UUID(int=number),
            broker_epoch=10 * number,
            end_points=(),
            rack=None,
            fenced=False,
            log_dirs=(directory(number),),
        )
        for number in (1, 2, 3)
    ),
    TopicRecord(name="events", topic_id=TOPIC),
    partition(TOPIC, 0),
    partition(TOPIC, 1, leader=2),
    TopicRecord(name="other", topic_id=OTHER),
    partition(OTHER, 0),
    TopicRecord(name="table", topic_id=COMPACTED),
    partition(COMPACTED, 0),
    policy("table", "compact,delete"),
    TopicRecord(name="__consumer_offsets", topic_id=INTERNAL),
    partition(INTERNAL, 0),
    RemoteLogRecord(topic_id=TOPIC, partition_id=0, **ENTRY._asdict()),
)


def image_of(*records: MetadataRecord, before: MetadataImage | None = None) -> MetadataImage:
    before = before or MetadataImage()
    delta = MetadataDelta(before).replay_all(records)
    return delta.build(before.offset + len(records), 1, 0)


CLUSTER = image_of(*RECORDS)


def written(decision: Any) -> list[MetadataRecord]:
    return [frame.record for frame in decision.frames]
