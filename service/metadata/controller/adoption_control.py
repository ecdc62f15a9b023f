"""Takes over what an archive says that the metadata lacks, on an order of the operator. [P]

After a lost disk, or one restored from a backup. The operator has said that nobody else writes there, so
what HEAD names wins over an older entry of ours, and a topic that only the archive knows comes back under
its id. Topics that were deleted here stay deleted, and one whose name was given to another topic since is
told and left alone. Partitions get the archive's leader epoch and no leader: when the broker is unfenced it
leads them in the next one, which nobody has led in before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.controller.decision import Decision
from service.metadata.controller.requests import ResourceType
from service.metadata.frames import newest
from service.metadata.image import MetadataImage, PartitionImage
from service.metadata.records import (
    NO_LEADER,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogEntry

EPOCH_MARGIN: Final = 1_000
"""Leader epochs that may have begun after the last segment was archived; none of them begins again."""


class AdoptedPartition(NamedTuple):
    """`entry` as HEAD has it, None where nothing was archived; `leader_epoch` the highest in the archive."""

    entry: CatalogEntry | None
    leader_epoch: int


class AdoptedTopic(NamedTuple):
    """A topic as the bucket has it; of a partition that is missing from `partitions` nothing is known."""

    name: str
    topic_id: UUID
    partition_count: int
    configs: Mapping[str, str]
    partitions: Mapping[int, AdoptedPartition]


class Adoption(NamedTuple):
    """What was taken over: names of topics, partitions by (topic id, index); and what was not, in words."""

    topics: Sequence[str]
    partitions: frozenset[tuple[UUID, int]]
    refused: Sequence[str]


def adopt(
    image: MetadataImage, topics: Sequence[AdoptedTopic], *, node_id: int, next_producer_id: int
) -> Decision[Adoption]:
    """Records that make the metadata say what the archive does, of this one node's partitions."""
    records: list[MetadataRecord] = []
    created: list[str] = []
    changed: set[tuple[UUID, int]] = set()
    refused: list[str] = []
    for topic in topics:
        if topic.topic_id in image.tombstones:
            continue
        if topic.topic_id not in image.topics_by_id:
            if topic.name in image.topics_by_name:
                refused.append(f"{topic.name} ({topic.topic_id}): another topic has that name here")
                continue
            created.append(topic.name)
            records.append(TopicRecord(name=topic.name, topic_id=topic.topic_id))
            records += _configs(topic)
        for number in range(topic.partition_count):
            found = topic.partitions.get(number, AdoptedPartition(None, 0))
            own = image.partition(topic.topic_id, number)
            if own is not None and not _is_news(found.entry, image.remote.get((topic.topic_id, number))):
                continue
            records.append(_partition(topic.topic_id, number, own, found.leader_epoch, node_id))
            if found.entry is not None:
                records.append(remote_log_record(topic.topic_id, number, found.entry))
                changed.add((topic.topic_id, number))
    if records and next_producer_id > image.next_producer_id:
        records.append(ProducerIdsRecord(broker_id=node_id, next_producer_id=next_producer_id))
    frames = tuple(map(newest, records))
    return Decision(frames, Adoption(created, frozenset(changed), refused), is_atomic=False)


def _is_news(found: CatalogEntry | None, own: CatalogEntry | None) -> bool:
    """HEAD may lag behind our entry by a crash; then ours is the newer truth."""
    if found is None or found == own:
        return False
    return own is None or found.version >= own.version


def _partition(
    topic_id: UUID, number: int, own: PartitionImage | None, leader_epoch: int, node_id: int
) -> PartitionRecord:
    if own is None:
        return PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=(node_id,),
            isr=(node_id,),
            leader=NO_LEADER,
            leader_epoch=leader_epoch + EPOCH_MARGIN,
            partition_epoch=0,
            directories=(None,),
        )
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=own.replicas,
        isr=own.isr,
        leader=NO_LEADER,
        leader_epoch=max(leader_epoch, own.leader_epoch) + EPOCH_MARGIN,
        partition_epoch=own.partition_epoch + 1,
        directories=own.directories,
    )


def _configs(topic: AdoptedTopic) -> list[MetadataRecord]:
    return [
        ConfigRecord(resource_type=int(ResourceType.TOPIC), resource_name=topic.name, name=name, value=value)
        for name, value in sorted(topic.configs.items())
    ]
