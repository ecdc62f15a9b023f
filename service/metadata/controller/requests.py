"""Requests to the controller and their results, as plain values. [P]

Handlers translate Kafka's messages to and from these; so the controller knows no API version, and tests and
the command line need no wire format. Error codes and messages are Apache Kafka 4.3's
(`ReplicationControlManager`, `ControllerApis`, `ConfigAdminManager`, `ClusterControlManager`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.metadata.endpoint import Endpoint as Endpoint
from service.metadata.image import FeatureRange, MetadataImage

ZERO_UUID = UUID(int=0)
MAX_RECORDS_PER_OPERATION = 10_000
"""Records that one request may write (Kafka's ``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
PRODUCER_ID_BLOCK_SIZE = 1000
LONGEST_NAME = 32_767
"""Most bytes of a name in UTF-8: Kafka reads no longer strings, in records neither."""


def is_too_long(name: str) -> bool:
    """Return whether Kafka's nodes could not read a record with the name."""
    return len(name) > LONGEST_NAME or len(name.encode()) > LONGEST_NAME


class ResourceType(IntEnum):
    """Kinds of configured resources (Kafka's ``ConfigResource.Type``); others get INVALID_REQUEST."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    """Handled by each broker, not by the controller."""
    GROUP = 32


class ConfigOperation(IntEnum):
    """Kafka's ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class CreateTopic(NamedTuple):
    """Topic of a CreateTopics request; -1 means the default, or that `assignments` decides."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(partition index, broker ids with the preferred leader first)"""
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopicResult(NamedTuple):
    """Result for one topic, in the request's order.

    `num_partitions` and `replication_factor` are -1 where `error` is set.
    """

    name: str
    error: ErrorCode
    message: str | None = None
    topic_id: UUID = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}
    """Overrides of the request."""


class CreatePartitions(NamedTuple):
    """New partition count (`total`) of a topic.

    `assignments`: broker ids of each new partition, the preferred leader first; None: the controller chooses.
    """

    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsResult(NamedTuple):
    name: str
    error: ErrorCode
    message: str | None = None


class DeleteTopic(NamedTuple):
    """Topic to delete, by name or by id, never both."""

    name: str | None = None
    topic_id: UUID = ZERO_UUID


class DeleteTopicResult(NamedTuple):
    name: str | None
    topic_id: UUID
    error: ErrorCode
    message: str | None = None


class AlterConfig(NamedTuple):
    """Change of one key; `operation` is the number on the wire and may be unknown."""

    name: str
    operation: int
    value: str | None


class AlterResource(NamedTuple):
    """Changes of one resource. A broker's `resource_name` is its id, or '' for the cluster's default."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterConfig, ...]


class AlterResourceResult(NamedTuple):
    resource_type: int
    resource_name: str
    error: ErrorCode
    message: str | None = None


class RegisterBroker(NamedTuple):
    """Registration of a starting broker process. Each process has its own `incarnation_id`.

    `features`: supported ranges, None for those of this software. `previous_epoch`: epoch that it shut down
    cleanly in, -1 where unknown. `cordoned_log_dirs` is refused unless empty.
    """

    broker_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    cluster_id: str
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    """``directory.id`` of every log dir (meta.properties)."""
    features: tuple[FeatureRange, ...] | None = None
    previous_epoch: int = -1
    is_migrating_zk_broker: bool = False
    cordoned_log_dirs: tuple[UUID, ...] = ()


class RegisterController(NamedTuple):
    """Registration of a starting controller process."""

    node_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]


class BrokerHeartbeat(NamedTuple):
    """Heartbeat of a broker that has applied the metadata up to `metadata_offset`, with the state it
    wants."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False
    offline_log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] | None = None
    """None: unknown, as the broker has not caught up."""
    full_log_dirs: tuple[UUID, ...] = ()
    """Directories that take no records for lack of room."""
    resting_log_dirs: tuple[UUID, ...] = ()
    """Those of them that do not replicate either."""


class BrokerHeartbeatReply(NamedTuple):
    """New state of the broker."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class BrokerState(NamedTuple):
    """Member of an ISR, and the broker epoch that its leader knows; -1: unknown."""

    broker_id: int
    broker_epoch: int = -1


class AlterPartition(NamedTuple):
    """New ISR of a partition, from its leader."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[BrokerState, ...]
    recovery: int = 0


class AlterPartitionResult(NamedTuple):
    """Resulting state of the partition; invalid where `error` is set."""

    topic_id: UUID
    partition: int
    error: ErrorCode
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    recovery: int = 0
    partition_epoch: int = -1


class ElectionType(IntEnum):
    """Kafka's ``ElectionType``."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders(NamedTuple):
    """Election request. `election_type` is the number on the wire; `partitions` are (topic, index), None
    means all."""

    election_type: int
    partitions: tuple[tuple[str, int], ...] | None


class ElectionResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


class ReassignPartition(NamedTuple):
    """New replicas of a partition, the preferred leader first; None: cancel the reassignment."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class ReassignResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


class OngoingReassignment(NamedTuple):
    """Running reassignment. `replicas` includes those that are being added and removed."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class AssignReplica(NamedTuple):
    """Directory of a broker's replica."""

    directory: UUID
    topic_id: UUID
    partition: int


class AssignReplicaResult(NamedTuple):
    directory: UUID
    topic_id: UUID
    partition: int
    error: ErrorCode


class CatalogSender(NamedTuple):
    """Broker process that commits to the remote catalog."""

    broker_id: int
    broker_epoch: int


class ProducerIdBlock(NamedTuple):
    """Producer ids ``first <= id < first + size``, which belong to one broker for ever."""

    first: int
    size: int = PRODUCER_ID_BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Defaults for -1 in a CreateTopics request (``num.partitions``, ``default.replication.factor``)."""

    num_partitions: int = 1
    replication_factor: int = 1


class PartitionLimit(NamedTuple):
    """Greatest number of partitions, and the reason for it."""

    partitions: int
    reason: str


class ConfigRules(Protocol):
    """Rules for configuration keys, which the broker implements."""

    def validate(
        self,
        image: MetadataImage,
        resource_type: ResourceType,
        resource_name: str,
        configs: Mapping[str, str],
    ) -> Steps[None]:
        """Check every override of the resource after the change, in steps. Raises `ConfigError` naming the
        key."""

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        """Return whether `key` takes a comma-separated list, which APPEND and SUBTRACT need."""

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        """Return the value of `key` without an override: the base of APPEND and SUBTRACT."""

    def secrecy(self, key: str) -> str | None:
        """Return why the metadata may not have a value of `key`, a broker's; None where it may."""

    def refusal(self, key: str) -> str | None:
        """Return why this node refuses `key`, a key of Kafka; None where it does not."""
