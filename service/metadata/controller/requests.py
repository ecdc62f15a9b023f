"""What the controller is asked and what it answers, as plain values. [P]

Handlers translate Kafka's messages to these and back; so the controller knows no API version, and tests and
the command line need no wire. Error codes and messages are Apache Kafka 4.3's (`ReplicationControlManager`,
`ControllerApis`, `ConfigAdminManager`, `ClusterControlManager`).
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


class ResourceType(IntEnum):
    """Kinds of configured thing (Kafka's ``ConfigResource.Type``); others are answered INVALID_REQUEST."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    """not the controller's, but each broker's own"""
    GROUP = 32


class ConfigOperation(IntEnum):
    """Kafka's ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class CreateTopic(NamedTuple):
    """One topic of a CreateTopics request; -1 means the default, or that `assignments` says it."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(partition index, broker ids with the preferred leader first)"""
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopicResult(NamedTuple):
    """`num_partitions` and `replication_factor` are -1 where `error` is set. Order is the request's."""

    name: str
    error: ErrorCode
    message: str | None = None
    topic_id: UUID = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}
    """the overrides that were given"""


class CreatePartitions(NamedTuple):
    """A topic is to have `total` partitions. `assignments`: broker ids of each that is new, the preferred
    leader first; None: the controller chooses."""

    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsResult(NamedTuple):
    name: str
    error: ErrorCode
    message: str | None = None


class DeleteTopic(NamedTuple):
    """A topic by name or by id, never both."""

    name: str | None = None
    topic_id: UUID = ZERO_UUID


class DeleteTopicResult(NamedTuple):
    name: str | None
    topic_id: UUID
    error: ErrorCode
    message: str | None = None


class AlterConfig(NamedTuple):
    """One change of one key; `operation` is the number on the wire and may be unknown."""

    name: str
    operation: int
    value: str | None


class AlterResource(NamedTuple):
    """All changes to one resource. A broker's `resource_name` is its id, or '' for the cluster's default."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterConfig, ...]


class AlterResourceResult(NamedTuple):
    resource_type: int
    resource_name: str
    error: ErrorCode
    message: str | None = None


class RegisterBroker(NamedTuple):
    """A broker process that starts. A new process brings a new `incarnation_id`.

    `features`: what it supports, None where it is of this software. `previous_epoch`: under which it was
    stopped cleanly, -1 where it does not know. `cordoned_log_dirs` is refused unless empty.
    """

    broker_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    cluster_id: str
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    """``directory.id`` of every log dir (meta.properties)"""
    features: tuple[FeatureRange, ...] | None = None
    previous_epoch: int = -1
    is_migrating_zk_broker: bool = False
    cordoned_log_dirs: tuple[UUID, ...] = ()


class RegisterController(NamedTuple):
    """A controller process that starts."""

    node_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]


class BrokerHeartbeat(NamedTuple):
    """A broker is alive, has applied the metadata up to `metadata_offset`, and wants to be such and such."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False
    offline_log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] | None = None
    """None: it does not know yet, as it has not caught up"""
    full_log_dirs: tuple[UUID, ...] = ()
    """directories that take no records for want of room"""
    resting_log_dirs: tuple[UUID, ...] = ()
    """those of them in which it does not replicate either"""


class BrokerHeartbeatReply(NamedTuple):
    """What the broker is from now on."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class BrokerState(NamedTuple):
    """A member of an ISR, and the epoch of its process as its leader knows it; -1: it does not."""

    broker_id: int
    broker_epoch: int = -1


class AlterPartition(NamedTuple):
    """A leader has another ISR for a partition."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[BrokerState, ...]
    recovery: int = 0


class AlterPartitionResult(NamedTuple):
    """What the partition is now; nothing of it counts where `error` is set."""

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
    """`election_type` is the number on the wire; `partitions` are (topic, index), None means all."""

    election_type: int
    partitions: tuple[tuple[str, int], ...] | None


class ElectionResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


class ReassignPartition(NamedTuple):
    """A partition is to have these replicas, the preferred leader first; None: as it was before."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class ReassignResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


class Reassignment(NamedTuple):
    """One that is under way. `replicas` holds those that are added, and those that are removed."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class AssignReplica(NamedTuple):
    """A broker has its replica of a partition in `directory`."""

    directory: UUID
    topic_id: UUID
    partition: int


class AssignReplicaResult(NamedTuple):
    directory: UUID
    topic_id: UUID
    partition: int
    error: ErrorCode


class CatalogSender(NamedTuple):
    """Who commits to the remote catalog: a broker process."""

    broker_id: int
    broker_epoch: int


class ProducerIdBlock(NamedTuple):
    """Ids ``first <= id < first + size`` belong to the broker that asked, for ever."""

    first: int
    size: int = PRODUCER_ID_BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What -1 in a CreateTopics request stands for (``num.partitions``, ``default.replication.factor``)."""

    num_partitions: int = 1
    replication_factor: int = 1


class PartitionLimit(NamedTuple):
    """So many partitions there may be, and in words why no more."""

    partitions: int
    reason: str


class ConfigRules(Protocol):
    """What configuration keys there are; the broker knows, the controller only asks."""

    def validate(
        self,
        image: MetadataImage,
        resource_type: ResourceType,
        resource_name: str,
        configs: Mapping[str, str],
    ) -> Steps[None]:
        """Check every override that the resource would have instead of what `image` says, in steps. Raises
        `ConfigError` naming the key."""

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        """Whether `key` takes a comma-separated list, so that APPEND and SUBTRACT make sense."""

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        """Value of `key` where nothing is set: what APPEND and SUBTRACT start from."""

    def refusal(self, key: str) -> str | None:
        """Why `key`, which others know, is not accepted here; None where there is no such reason."""
