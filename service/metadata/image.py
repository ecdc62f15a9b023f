"""The metadata image: the state of the whole metadata log, as one immutable value. [P]

An image shares unchanged parts with its predecessor, so several images cost only their differences. Only
`service.metadata.delta` builds the next image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from service.base.types import NO_TIMESTAMP
from service.metadata.client_quotas import ClientQuotas
from service.metadata.credentials import ScramCredentials
from service.metadata.partition_index import PartitionIndex
from service.metadata.persistent import PartitionMap, PersistentMap
from service.metadata.records import NO_LEADER, MetadataRecord
from service.remote.catalog import CatalogEntry, Erasure, RewriteIntent, Tombstone
from service.security.acls import AclSet
from service.security.tokens import DelegationToken

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"


class PartitionImage(NamedTuple):
    """State of a partition. Replicas are broker ids, the preferred leader first; `directories` is
    parallel."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    """-1: no leader."""
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
        """True while replicas are being added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)


class TopicImage(NamedTuple):
    """Topic with its partitions 0..n-1."""

    name: str
    id: UUID
    partitions: PartitionMap[PartitionImage]


class EndpointImage(NamedTuple):
    """Listener; `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

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
    """Registered broker. Only a broker that is neither fenced nor shutting down leads partitions."""

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
    """Registered controller."""

    id: int
    incarnation_id: UUID
    endpoints: tuple[EndpointImage, ...]
    features: tuple[FeatureRange, ...]


class OpenTransaction(NamedTuple):
    """Metadata transaction without an end so far: its records have no effect yet.

    `runs` are its records, a tuple for each batch; `before` is the image before the batch in which it began.
    """

    name: str | None
    runs: tuple[tuple[MetadataRecord, ...], ...]
    before: MetadataImage


class RecoveredTopic(NamedTuple):
    """Remaining recovery work for a topic that a recovery has restored."""

    unchecked_partitions: tuple[int, ...] = ()
    """Partitions whose local logs are not compared with the archive yet; sorted."""
    settings_unknown: bool = False
    """True where nothing expires because no document has the topic's settings."""


class RestoredTail(NamedTuple):
    """Tail of a restored partition, which its leader loads before anything is taken there.

    The records of [chain_end, end_offset) are in tails that the cut at `cut_key` names or, where
    `segment_key` is not empty, in that segment, which begins at or below `chain_end` and reaches beyond
    `end_offset`. The log goes on at `go_on`: offsets between may have been given out before the cluster was
    lost. `chain_end` is where the log's part in the bucket ends; without one it is where the log begins.
    """

    chain_end: int
    end_offset: int
    go_on: int
    cut_key: str
    segment_key: str


Place = tuple[UUID, int]
"""(topic id, partition)"""
Erased = PersistentMap[Place, frozenset[int]]
"""Brokers whose logs of a partition are clean; `remote.catalog.IN_BUCKET` for its objects."""
ConfigResource = tuple[int, str]
"""(resource type, resource name), as in `ConfigRecord`."""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """State of the log up to and including `offset` (-1: empty), with the `epoch` of its last record."""

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    """Append time of the last batch."""
    topics_by_id: PersistentMap[UUID, TopicImage] = field(default_factory=PersistentMap)
    topics_by_name: PersistentMap[str, TopicImage] = field(default_factory=PersistentMap)
    collisions: PersistentMap[str, tuple[str, ...]] = field(default_factory=PersistentMap)
    """Topic names with '.' or '_', by their names in metrics."""
    configs: PersistentMap[ConfigResource, Mapping[str, str]] = field(default_factory=PersistentMap)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    remote: PersistentMap[tuple[UUID, int], CatalogEntry] = field(default_factory=PersistentMap)
    tombstones: PersistentMap[UUID, Tombstone] = field(default_factory=PersistentMap)
    """Deleted topics that may still have objects in the bucket."""
    life: int = 0
    """Number of recoveries from a bucket that have restarted this cluster's metadata; 0: none."""
    life_id: UUID | None = None
    """Random id of that recovery, which distinguishes recoveries of one bucket; None: life 0."""
    recovered: PersistentMap[UUID, RecoveredTopic] = field(default_factory=PersistentMap)
    """Topics with remaining recovery work."""
    restored_tails: PersistentMap[tuple[UUID, int], RestoredTail] = field(default_factory=PersistentMap)
    """Partitions of a restored cluster whose tails are not loaded yet."""
    rewrites: PersistentMap[Place, RewriteIntent] = field(default_factory=PersistentMap)
    """Runs of chains that are being written anew, each in its partition's leader epoch of now."""
    erasures: PersistentMap[UUID, Erasure] = field(default_factory=PersistentMap)
    """Orders to erase keys, by id, at most `remote.catalog.MAX_ERASURES`."""
    erased: PersistentMap[UUID, Erased] = field(default_factory=PersistentMap)
    """Clean places by order, of those that have any."""
    acls: AclSet = field(default_factory=lambda: AclSet.EMPTY)
    scram: ScramCredentials = field(default_factory=PersistentMap)
    tokens: PersistentMap[str, DelegationToken] = field(default_factory=PersistentMap)
    """Delegation tokens, by id."""
    client_quotas: ClientQuotas = field(default_factory=PersistentMap)
    index: PartitionIndex = field(default_factory=PartitionIndex)
    kraft_version: int = 0
    """Level of that feature, from control records of the log, not from metadata records."""
    transaction: OpenTransaction | None = None
    """Open transaction; all other fields are as before it."""

    @property
    def settled(self) -> MetadataImage:
        """Newest image of which a snapshot can be written: without an open transaction."""
        return self if self.transaction is None else self.transaction.before

    def with_kraft_version(self, level: int) -> MetadataImage:
        """Return this image with another ``kraft.version``."""
        return self if level == self.kraft_version else replace(self, kraft_version=level)

    def without_credentials(self) -> MetadataImage:
        """Return this image without users' credentials and their tokens."""
        if not self.scram and not self.tokens:
            return self
        return replace(self, scram=PersistentMap(), tokens=PersistentMap())

    @property
    def position(self) -> tuple[int, int, int]:
        """Life, leader epoch and end offset: the greater of two is the newer metadata of one cluster."""
        return self.life, self.epoch, self.offset + 1

    def topic(self, topic: str | UUID) -> TopicImage | None:
        """Return a topic, by name or id."""
        return self.topics_by_id.get(topic) if isinstance(topic, UUID) else self.topics_by_name.get(topic)

    def partition(self, topic_id: UUID, partition: int) -> PartitionImage | None:
        """Return a partition; None where the topic or the partition does not exist."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def config(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        """Return the overrides of one resource; empty where there are none."""
        return self.configs.get((resource_type, resource_name), {})


def live_rewrite(image: MetadataImage, place: Place) -> RewriteIntent | None:
    """Return the partition's rewrite, if it began in the leader epoch of now."""
    intent = image.rewrites.get(place)
    partition = None if intent is None else image.partition(*place)
    is_live = partition is not None and intent is not None and intent.leader_epoch == partition.leader_epoch
    return intent if is_live else None


def collision_key(name: str) -> str | None:
    """Return a topic's name with '.' replaced by '_'; None where it has neither.

    >>> collision_key("a.b_c")
    'a_b_c'
    """
    if "." in name or "_" in name:
        return name.replace(".", "_")
    return None
