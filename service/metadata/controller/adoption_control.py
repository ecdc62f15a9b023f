"""Takes over what an archive says that the metadata lacks, on an order of the operator. [P]

After a lost disk, or one restored from a backup. The operator has said that nobody else writes there, so
what HEAD names wins over an older entry of ours, and a topic that only the archive knows comes back under
its id. Topics that were deleted here stay deleted, and one whose name was given to another topic since is
told and left alone. Partitions get the archive's leader epoch and no leader: when the broker is unfenced it
leads them in the next one, which nobody has led in before.

The node that was lost went on after what is known of it: after the last segment that it archived, after the
last snapshot of its metadata, after the backup of its disk. Whatever it may have given out since, producer
ids and leader epochs of any partition, is not given out again: both go on above the highest that anything
tells, by a margin. That is so with every order to take over, also where nothing else is news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
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
from service.remote.format.keys import MAX_EPOCH

EPOCH_MARGIN: Final = 1_000
"""Leader epochs that may have begun after the last one that is known of; none of them begins again."""
PRODUCER_ID_MARGIN: Final = 1_000_000_000
"""Producer ids that may have been given away after the last one that is known of, likewise."""
_MAX_PRODUCER_ID: Final = (1 << 63) - 1
_NOTHING_FOUND: Final = MetadataImage()


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
    image: MetadataImage,
    topics: Sequence[AdoptedTopic],
    lost: MetadataImage | None,
    *,
    node_id: int,
    last_producer_id: int,
) -> Decision[Adoption]:
    """Records that make the metadata say what the archive does, of this one node's partitions.

    `lost` is the newest metadata of the lost node that the bucket has; of it only ids and epochs that were
    given out count. `last_producer_id` is the highest in the archive.
    """
    lost = lost or _NOTHING_FOUND
    records: list[MetadataRecord] = []
    created: list[str] = []
    changed: set[tuple[UUID, int]] = set()
    refused: list[str] = []
    above: dict[tuple[UUID, int], int] = {}
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
            key = topic.topic_id, number
            found = topic.partitions.get(number, AdoptedPartition(None, 0))
            own = image.partition(*key)
            above[key] = found.leader_epoch
            if own is None:
                records.append(_new_partition(key, _raised(lost, key, found.leader_epoch), node_id))
            if found.entry is not None and (own is None or _is_news(found.entry, image.remote.get(key))):
                records.append(remote_log_record(*key, found.entry))
                changed.add(key)
    for topic_id, own_topic in image.topics_by_id.items():
        for number, own in own_topic.partitions.items():
            key = topic_id, number
            epoch = _raised(lost, key, max(own.leader_epoch, above.get(key, 0)))
            records.append(_again(key, own, epoch))
    next_producer_id = _next_producer_id(
        max(image.next_producer_id, lost.next_producer_id, last_producer_id + 1)
    )
    records.append(ProducerIdsRecord(broker_id=node_id, next_producer_id=next_producer_id))
    frames = tuple(map(newest, records))
    return Decision(frames, Adoption(created, frozenset(changed), refused), is_atomic=False)


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


def _again(key: tuple[UUID, int], own: PartitionImage, leader_epoch: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=key[1],
        topic_id=key[0],
        replicas=own.replicas,
        isr=own.isr,
        leader=NO_LEADER,
        leader_epoch=leader_epoch,
        partition_epoch=own.partition_epoch + 1,
        directories=own.directories,
    )


def _configs(topic: AdoptedTopic) -> list[MetadataRecord]:
    return [
        ConfigRecord(resource_type=int(ResourceType.TOPIC), resource_name=topic.name, name=name, value=value)
        for name, value in sorted(topic.configs.items())
    ]
