"""Records that a restored cluster's metadata log begins with: the image at the cut, on other brokers. [P]

Records of every type that the image has come back as they are, but for what names the lost cluster's
machines, and what has to rise: leader epochs, producer ids and the life of the cluster go on far above
whatever may have been given out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError
from service.inspect.restore_plan import THROTTLED, PartitionPlan, RestorePlan, replication_factor_of
from service.metadata.controller.adoption_control import EPOCH_MARGIN, PRODUCER_ID_MARGIN
from service.metadata.controller.catalog_control import remote_log_record
from service.metadata.controller.placement import place_replicas
from service.metadata.controller.requests import ResourceType
from service.metadata.features import CATALOG_VERSION
from service.metadata.frames import UnknownRecord
from service.metadata.image import BrokerImage, FeatureRange, MetadataImage, TopicImage
from service.metadata.image_frames import image_frames
from service.metadata.records import (
    NO_LEADER,
    ConfigRecord,
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
    TombstoneRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import Place
from service.remote.format.keys import MAX_EPOCH

MIN_ISR: Final = "min.insync.replicas"
_MAX_PRODUCER_ID: Final = (1 << 63) - 1
_NO_BROKER: Final = -1


class Placement(NamedTuple):
    """Brokers of the heir. `replication_factor`: of all topics, None for each topic's own; `fits`: settings
    that ask for more replicas than there are, are lowered."""

    brokers: tuple[int, ...]
    replication_factor: int | None = None
    fits: bool = False

    def replicas_of(self, topic: TopicImage) -> int:
        """Return the number of replicas of a topic's partitions."""
        wanted = self.replication_factor or replication_factor_of(topic)
        return min(wanted, len(self.brokers))


class HeirNumbers(NamedTuple):
    """Numbers above all that were ever given out, and the ids of the heir's first life."""

    next_producer_id: int
    life: int
    life_id: UUID


def numbers_above(
    image: MetadataImage, next_producer_id: int, life: int, life_id: UUID, *, restores_since: int = 0
) -> HeirNumbers:
    """Return the heir's numbers, from those of the image and the highest that anything else tells.

    `restores_since`: heirs of the cut that were lost, of whose own numbers nothing need be told.
    """
    unused = max(image.next_producer_id, next_producer_id) + PRODUCER_ID_MARGIN * restores_since
    if unused > _MAX_PRODUCER_ID - 2 * PRODUCER_ID_MARGIN:
        raise CorruptionError(f"all producer ids below {unused} are given out; too few are left")
    return HeirNumbers(unused + PRODUCER_ID_MARGIN, max(image.life, life) + 1, life_id)


def heir_epoch(plan: PartitionPlan) -> int:
    """Return a leader epoch in which nobody has led the partition."""
    if plan.highest_epoch > MAX_EPOCH - 2 * EPOCH_MARGIN:
        raise CorruptionError(
            f"{plan.topic_id}/{plan.partition}: led in epoch {plan.highest_epoch}; too few epochs are left"
        )
    return plan.highest_epoch + EPOCH_MARGIN


def fit_problems(image: MetadataImage, plan: RestorePlan, placement: Placement) -> list[str]:
    """Return which settings ask for more in-sync replicas than a partition will have."""
    found = []
    cluster = _number(image.config(ResourceType.BROKER, "").get(MIN_ISR))
    for one in plan.topics:
        topic = image.topics_by_id[one.topic_id]
        replicas = placement.replicas_of(topic)
        own = _number(image.config(ResourceType.TOPIC, topic.name).get(MIN_ISR))
        least = own if own is not None else cluster
        if least is not None and least > replicas:
            whose = "its" if own is not None else "the cluster's"
            found.append(f"{one.name}: {whose} {MIN_ISR} is {least}, and it will have {replicas} replicas")
    return found


def heir_records(
    image: MetadataImage,
    plan: RestorePlan,
    placement: Placement,
    numbers: HeirNumbers,
    entries: Mapping[Place, CatalogEntry],
    features: Sequence[FeatureRange],
    *,
    is_clone: bool = False,
) -> Iterator[MetadataRecord]:
    """Yield the records, features first. `entries` are those of the catalog, of the chains as written.

    Topics that the plan lacks are left out, with their settings. A clone has no objects of deleted topics.
    """
    names = {topic.name for topic in plan.topics}
    ids = {topic.topic_id for topic in plan.topics}
    heir = _Heir(image, placement, names)
    yield from _features(image, features)
    for frame in image_frames(replace(image, brokers={}, controllers={}, features={}, transaction=None)):
        record = frame.record
        assert not isinstance(record, UnknownRecord)
        match record:
            case RegisterBrokerRecord() | RegisterControllerRecord() | LifeRecord() | ProducerIdsRecord():
                continue
            case RemoteLogRecord() | RestoredTailRecord():
                continue
            case TopicRecord():
                if record.topic_id not in ids:
                    continue
                topic = image.topics_by_id[record.topic_id]
                yield record
                yield from _partitions(topic, plan, placement)
            case PartitionRecord():
                continue
            case ConfigRecord():
                yield from heir.config(record)
            case RecoveredTopicRecord():
                if record.topic_id in ids and record.settings_unknown:
                    yield replace(record, unchecked_partitions=())
            case TombstoneRecord():
                if not is_clone:
                    yield record
            case _:
                yield record
    yield ProducerIdsRecord(broker_id=_NO_BROKER, next_producer_id=numbers.next_producer_id)
    for (topic_id, number), entry in sorted(entries.items()):
        yield remote_log_record(topic_id, number, entry)
    yield LifeRecord(life=numbers.life, life_id=numbers.life_id)
    for place in sorted(plan.partitions):
        yield _restored_tail(plan.partitions[place])


class _Heir:
    """Settings as the heir has them."""

    def __init__(self, image: MetadataImage, placement: Placement, names: set[str]) -> None:
        self._image = image
        self._placement = placement
        self._names = names

    def config(self, record: ConfigRecord) -> Iterator[ConfigRecord]:
        """Yield the record, lowered where it has to fit, or nothing where it names the lost cluster's
        machines, or a topic that is left out."""
        kind, name = record.resource_type, record.resource_name
        if kind == ResourceType.BROKER and name:
            return
        if kind == ResourceType.TOPIC and (name not in self._names or record.name in THROTTLED):
            return
        if record.name == MIN_ISR and self._placement.fits:
            most = self._placement.replication_factor or len(self._placement.brokers)
            if kind == ResourceType.TOPIC:
                most = self._placement.replicas_of(self._image.topics_by_name[name])
            value = _number(record.value)
            if value is not None and value > most:
                record = replace(record, value=str(most))
        yield record


def _features(image: MetadataImage, features: Sequence[FeatureRange]) -> Iterator[FeatureLevelRecord]:
    """Yield the levels of the image as far as they are served, and the level that the restore needs."""
    ranges = {one.name: one for one in features}
    levels = {
        name: min(level, ranges[name].max_level)
        for name, level in image.features.items()
        if name in ranges and level >= ranges[name].min_level
    }
    if CATALOG_VERSION in ranges:
        levels[CATALOG_VERSION] = ranges[CATALOG_VERSION].max_level
    for name in sorted(levels, key=lambda one: (one != "metadata.version", one)):
        if levels[name]:
            yield FeatureLevelRecord(name=name, feature_level=levels[name])


def _partitions(topic: TopicImage, plan: RestorePlan, placement: Placement) -> Iterator[PartitionRecord]:
    brokers = [_broker(one) for one in placement.brokers]
    count = placement.replicas_of(topic)
    placed = place_replicas(brokers, range(len(topic.partitions)), count, topic.id)
    for number, replicas in zip(topic.partitions, placed, strict=True):
        yield PartitionRecord(
            partition_id=number,
            topic_id=topic.id,
            replicas=replicas,
            isr=replicas[:1],
            leader=NO_LEADER,
            leader_epoch=heir_epoch(plan.partitions[topic.id, number]),
            partition_epoch=0,
            directories=(None,) * len(replicas),
        )


def _broker(node_id: int) -> BrokerImage:
    return BrokerImage(
        node_id, 0, UUID(int=0), (), (), None, fenced=False, in_controlled_shutdown=False, log_dirs=()
    )


def _restored_tail(one: PartitionPlan) -> RestoredTailRecord:
    return RestoredTailRecord(
        topic_id=one.topic_id,
        partition_id=one.partition,
        chain_end=one.chain_end,
        end_offset=one.loaded_end,
        go_on=one.go_on,
        cut_key=one.cut_key,
        segment_key=one.segment_key,
    )


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def checked_brokers(brokers: Sequence[int], replication_factor: int | None) -> tuple[int, ...]:
    """Return the brokers in order. Raises `ConfigError` for one that is named twice, and for more replicas
    than brokers."""
    if len(set(brokers)) < len(brokers):
        raise ConfigError(f"--brokers {','.join(map(str, brokers))}: a broker is named twice")
    if replication_factor is not None and replication_factor > len(brokers):
        raise ConfigError(
            f"--replication-factor {replication_factor}: there are {len(brokers)} brokers; give a number up "
            f"to that, or name more of them by --brokers"
        )
    return tuple(sorted(brokers))
