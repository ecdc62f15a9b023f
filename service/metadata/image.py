"""The metadata image: everything the log says, as one immutable value. [P]

An image shares what did not change with the one before it, so holding a few of them costs their differences.
`service.metadata.delta` makes the next image; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from service.base.types import NO_TIMESTAMP
from service.metadata.partition_index import PartitionIndex
from service.metadata.persistent import PartitionMap, PersistentMap
from service.metadata.records import NO_LEADER, MetadataRecord
from service.remote.catalog import CatalogEntry, Tombstone

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"


class PartitionImage(NamedTuple):
    """One partition. Replicas are broker ids, the preferred leader first; `directories` runs along them."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    """-1: nobody"""
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def is_moving(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)


class TopicImage(NamedTuple):
    """One topic with its partitions 0..n-1."""

    name: str
    id: UUID
    partitions: PartitionMap[PartitionImage]


class EndpointImage(NamedTuple):
    """A listener; `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: int
    security_protocol: int


class FeatureRange(NamedTuple):
    """Levels of one feature that a node supports, both ends included."""

    name: str
    min_level: int
    max_level: int


class BrokerImage(NamedTuple):
    """A registered broker. Only one that is neither fenced nor shutting down leads partitions."""

    id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[EndpointImage, ...]
    features: tuple[FeatureRange, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[UUID, ...]
    cordoned_log_dirs: tuple[UUID, ...] | None = None

    @property
    def is_active(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown


class ControllerImage(NamedTuple):
    """A registered controller."""

    id: int
    incarnation_id: UUID
    endpoints: tuple[EndpointImage, ...]
    features: tuple[FeatureRange, ...]


class OpenTransaction(NamedTuple):
    """A metadata transaction whose end was not read yet: nothing of it counts.

    `runs` are its records, a tuple for each batch; `before` is the image up to the batch in which it began.
    """

    name: str | None
    runs: tuple[tuple[MetadataRecord, ...], ...]
    before: MetadataImage


class RecoveredTopic(NamedTuple):
    """What is left to do about a topic that a recovery has brought back."""

    unchecked_partitions: tuple[int, ...] = ()
    """partitions whose local logs were not compared with the archive yet; sorted"""
    settings_unknown: bool = False
    """whether nothing expires because no document says which settings the topic had"""


ConfigResource = tuple[int, str]
"""(resource type, resource name), as `ConfigRecord` has them"""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """What the log says up to and including `offset` (-1: nothing), written in `epoch`."""

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    """append time of the last batch"""
    topics_by_id: PersistentMap[UUID, TopicImage] = field(default_factory=PersistentMap)
    topics_by_name: PersistentMap[str, TopicImage] = field(default_factory=PersistentMap)
    collisions: PersistentMap[str, tuple[str, ...]] = field(default_factory=PersistentMap)
    """names that have '.' or '_', by what they become in a metric's name"""
    configs: PersistentMap[ConfigResource, Mapping[str, str]] = field(default_factory=PersistentMap)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    remote: PersistentMap[tuple[UUID, int], CatalogEntry] = field(default_factory=PersistentMap)
    tombstones: PersistentMap[UUID, Tombstone] = field(default_factory=PersistentMap)
    """deleted topics that may still have objects in the bucket"""
    life: int = 0
    """how often a recovery from a bucket has begun this cluster's metadata anew; 0: never"""
    life_id: UUID | None = None
    """what that recovery drew, so that another one of the same bucket is told from it; None: life 0"""
    recovered: PersistentMap[UUID, RecoveredTopic] = field(default_factory=PersistentMap)
    """topics about which a recovery has something left to do"""
    index: PartitionIndex = field(default_factory=PartitionIndex)
    kraft_version: int = 0
    """level of the feature of that name; told by control records of the log, not by records of metadata"""
    transaction: OpenTransaction | None = None
    """what was begun and did not end yet; all else here is as if it had not begun"""

    @property
    def settled(self) -> MetadataImage:
        """The newest image of which a snapshot can be made: no transaction is open at its end."""
        return self if self.transaction is None else self.transaction.before

    def with_kraft_version(self, level: int) -> MetadataImage:
        """This image under another ``kraft.version``."""
        return self if level == self.kraft_version else replace(self, kraft_version=level)

    @property
    def position(self) -> tuple[int, int, int]:
        """Life, leader epoch and end offset: the greater of two is the newer metadata of one cluster."""
        return self.life, self.epoch, self.offset + 1

    def topic(self, topic: str | UUID) -> TopicImage | None:
        """One topic, by name or id."""
        return self.topics_by_id.get(topic) if isinstance(topic, UUID) else self.topics_by_name.get(topic)

    def partition(self, topic_id: UUID, partition: int) -> PartitionImage | None:
        """One partition, or None where the topic or the partition is not there."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def config(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        """The overrides of one resource; empty where nothing is set."""
        return self.configs.get((resource_type, resource_name), {})


def collision_key(name: str) -> str | None:
    """What a topic's name becomes where '.' and '_' look the same; None where it has neither.

    >>> collision_key("a.b_c")
    'a_b_c'
    """
    if "." in name or "_" in name:
        return name.replace(".", "_")
    return None
