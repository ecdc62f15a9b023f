"""Records that a restored cluster's metadata log begins with: the image at the cut, on other brokers. [P]

All that the image has comes back as it is, but for what names the lost cluster's machines, and what has to
rise: leader epochs, producer ids and the life of the cluster go on far above whatever may have been given
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError
from service.inspect.restore_plan import THROTTLED, PartitionPlan, RestorePlan, replication_factor_of
from service.metadata.controller.adoption_control import EPOCH_MARGIN, PRODUCER_ID_MARGIN
from service.metadata.controller.placement import place_replicas
from service.metadata.controller.requests import ResourceType
from service.metadata.features import CATALOG_VERSION
from service.metadata.image import (
    BrokerImage,
    ConfigResource,
    FeatureRange,
    MetadataImage,
    PartitionImage,
    RecoveredTopic,
    RestoredTail,
    TopicImage,
)
from service.metadata.image_frames import image_records
from service.metadata.persistent import PartitionMap, PersistentMap
from service.metadata.records import NO_LEADER, ZERO_UUID, MetadataRecord
from service.remote.catalog import CatalogEntry, Erasure
from service.remote.format.cut_codec import Place
from service.remote.format.keys import MAX_EPOCH

MIN_ISR: Final = "min.insync.replicas"
_MAX_PRODUCER_ID: Final = (1 << 63) - 1


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
    erasures: Iterable[Erasure] = (),
) -> Iterator[MetadataRecord]:
    """Yield the records, features first. `entries` are those of the catalog, of the chains as written;
    `erasures` the orders that CUT lists: they are fulfilled again, for what comes back may be from before.

    Topics that the plan lacks are left out, with their settings. A clone has no objects of deleted topics.
    """
    heir = _Heir(image, plan, placement)
    return image_records(
        replace(
            image,
            features=_levels(image, features),
            brokers={},
            controllers={},
            topics_by_id=heir.topics,
            topics_by_name=PersistentMap({topic.name: topic for topic in heir.topics.values()}),
            configs=PersistentMap(dict(heir.configs())),
            next_producer_id=numbers.next_producer_id,
            remote=PersistentMap(entries),
            tombstones=PersistentMap() if is_clone else image.tombstones,
            life=numbers.life,
            life_id=numbers.life_id,
            recovered=PersistentMap(dict(heir.recovered())),
            restored_tails=PersistentMap(
                {place: _restored_tail(one) for place, one in plan.partitions.items()}
            ),
            rewrites=PersistentMap(),
            erasures=PersistentMap({one.id: one for one in heir.erasures(erasures)}),
            erased=PersistentMap(),
            transaction=None,
        )
    )


class _Heir:
    """Topics of the plan as the heir has them: on its brokers, with settings that fit."""

    def __init__(self, image: MetadataImage, plan: RestorePlan, placement: Placement) -> None:
        self._image = image
        self._plan = plan
        self._placement = placement
        found = (image.topics_by_id[one.topic_id] for one in plan.topics)
        self.topics = PersistentMap({topic.id: self._placed(topic) for topic in found})
        self._names = {topic.name for topic in plan.topics}

    def _placed(self, topic: TopicImage) -> TopicImage:
        brokers = [_broker(one) for one in self._placement.brokers]
        count = self._placement.replicas_of(topic)
        placed = place_replicas(brokers, range(len(topic.partitions)), count, topic.id)
        partitions = {
            number: PartitionImage(
                replicas=replicas,
                isr=replicas[:1],
                leader=NO_LEADER,
                leader_epoch=heir_epoch(self._plan.partitions[topic.id, number]),
                partition_epoch=0,
                directories=(ZERO_UUID,) * len(replicas),
            )
            for number, replicas in zip(topic.partitions, placed, strict=True)
        }
        return topic._replace(partitions=PartitionMap.of(partitions))

    def configs(self) -> Iterator[tuple[ConfigResource, Mapping[str, str]]]:
        """Yield the settings of each resource, but for those of the lost cluster's machines and of topics
        that are left out."""
        for (kind, name), settings in self._image.configs.items():
            if (kind == ResourceType.BROKER and name) or (
                kind == ResourceType.TOPIC and name not in self._names
            ):
                continue
            left_out = THROTTLED if kind == ResourceType.TOPIC else ()
            kept = {key: value for key, value in settings.items() if key not in left_out}
            if self._placement.fits and MIN_ISR in kept:
                kept[MIN_ISR] = self._lowered(kind, name, kept[MIN_ISR])
            if kept:
                yield (kind, name), kept

    def _lowered(self, kind: int, name: str, value: str) -> str:
        most = self._placement.replication_factor or len(self._placement.brokers)
        if kind == ResourceType.TOPIC:
            most = self._placement.replicas_of(self._image.topics_by_name[name])
        number = _number(value)
        return str(most) if number is not None and number > most else value

    def recovered(self) -> Iterator[tuple[UUID, RecoveredTopic]]:
        """Yield the topics whose settings are unknown still; their logs begin anew."""
        for topic_id, state in self._image.recovered.items():
            if topic_id in self.topics and state.settings_unknown:
                yield topic_id, state._replace(unchecked_partitions=())

    def erasures(self, listed: Iterable[Erasure]) -> Iterator[Erasure]:
        """Yield the orders that concern topics which come back, as open ones."""
        for erasure in listed:
            topics = tuple(topic_id for topic_id in erasure.topics if topic_id in self.topics)
            if topics:
                yield erasure._replace(topics=topics, done_ms=-1, is_restored=True)


def _levels(image: MetadataImage, features: Sequence[FeatureRange]) -> dict[str, int]:
    """Return the levels of the image as far as they are served, and the level that the restore needs."""
    ranges = {one.name: one for one in features}
    levels = {
        name: min(level, ranges[name].max_level)
        for name, level in image.features.items()
        if name in ranges and level >= ranges[name].min_level
    }
    if CATALOG_VERSION in ranges:
        levels[CATALOG_VERSION] = ranges[CATALOG_VERSION].max_level
    return {name: level for name, level in levels.items() if level}


def _broker(node_id: int) -> BrokerImage:
    return BrokerImage(
        node_id, 0, UUID(int=0), (), (), None, fenced=False, in_controlled_shutdown=False, log_dirs=()
    )


def _restored_tail(one: PartitionPlan) -> RestoredTail:
    return RestoredTail(one.chain_end, one.loaded_end, one.go_on, one.cut_key, one.segment_key)


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
