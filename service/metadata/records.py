"""Kafka's metadata records, and Firn's, as dataclasses that kio reads and writes. [P]

Apache Kafka 4.3 ``metadata/src/main/resources/common/metadata/*.json``: same ids, same bytes. Each class has
the layout of the newest version; `VERSIONS` lists the versions that it reads, because later versions only add
tagged fields. Earlier versions belong to releases whose metadata.version this software never writes.

Record types from `FIRST_OWN_ID` on are Firn's (docs/adr/0001-remote-catalog-records.md).

Annotations are evaluated here, not postponed: kio reads field types from them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final
from uuid import UUID

from kio.static.constants import EntityType
from kio.static.primitive import i16

FIRST_OWN_ID: Final = 20_000
"""Kafka numbers its record types from 0 up to 28 so far; the frame allows up to 32,767."""

NO_LEADER: Final = -1
LEADER_UNCHANGED: Final = -2
"""`PartitionChangeRecord.leader` without a change (the tagged field's default)."""
FENCE: Final = 1
UNFENCE: Final = -1
ZERO_UUID: Final = UUID(int=0)


def filled_ids(ids: Iterable[UUID | None]) -> tuple[UUID, ...]:
    """Replace None, as kio reads zero ids, by the zero UUID."""
    return tuple(one or ZERO_UUID for one in ids)


class MetadataEntity:
    """Base of all classes below; kio reads these attributes."""

    __slots__ = ()
    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True


class MetadataRecord(MetadataEntity):
    """Record of the metadata log. `VERSIONS` are the versions that this layout reads and writes."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[range] = range(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint(MetadataEntity):
    """Listener of a broker."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(4)
    name: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    port: int = field(metadata={"kafka_type": "uint16"})
    security_protocol: int = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFeature(MetadataEntity):
    """Range of feature levels that a broker supports."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(4)
    name: str = field(metadata={"kafka_type": "string"})
    min_supported_version: int = field(metadata={"kafka_type": "int16"})
    max_supported_version: int = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(MetadataRecord):
    """Registration of a broker process, which starts fenced. Its epoch is the offset of this record."""

    __version__: ClassVar[i16] = i16(4)
    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[range] = range(2, 5)
    broker_id: int = field(metadata={"kafka_type": "int32"})
    is_migrating_zk_broker: bool = field(metadata={"kafka_type": "bool"}, default=False)
    incarnation_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"})
    end_points: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = field(metadata={"kafka_type": "string"})
    fenced: bool = field(metadata={"kafka_type": "bool"}, default=True)
    in_controlled_shutdown: bool = field(metadata={"kafka_type": "bool"}, default=False)
    log_dirs: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid", "tag": 0}, default=())
    cordoned_log_dirs: tuple[UUID | None, ...] | None = field(
        metadata={"kafka_type": "uuid", "tag": 1}, default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(MetadataRecord):
    """Removal of a broker's registration."""

    API_KEY: ClassVar[int] = 1
    broker_id: int = field(metadata={"kafka_type": "int32"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(MetadataRecord):
    """Creation of a topic."""

    API_KEY: ClassVar[int] = 2
    name: str = field(metadata={"kafka_type": "string"})
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(MetadataRecord):
    """Complete state of one partition."""

    __version__: ClassVar[i16] = i16(2)
    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[range] = range(1, 3)
    partition_id: int = field(metadata={"kafka_type": "int32"}, default=-1)
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    replicas: tuple[int, ...] = field(metadata={"kafka_type": "int32"})
    isr: tuple[int, ...] = field(metadata={"kafka_type": "int32"})
    removing_replicas: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    adding_replicas: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    leader: int = field(metadata={"kafka_type": "int32"}, default=-1)
    leader_recovery_state: int = field(metadata={"kafka_type": "int8", "tag": 0}, default=0)
    leader_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    partition_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    directories: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid"})
    eligible_leader_replicas: tuple[int, ...] | None = field(
        metadata={"kafka_type": "int32", "tag": 1}, default=None
    )
    last_known_elr: tuple[int, ...] | None = field(metadata={"kafka_type": "int32", "tag": 2}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(MetadataRecord):
    """Configuration value; None removes it."""

    API_KEY: ClassVar[int] = 4
    resource_type: int = field(metadata={"kafka_type": "int8"})
    resource_name: str = field(metadata={"kafka_type": "string"})
    name: str = field(metadata={"kafka_type": "string"})
    value: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord(MetadataRecord):
    """Change of one partition; a field at its default is unchanged."""

    __version__: ClassVar[i16] = i16(2)
    API_KEY: ClassVar[int] = 5
    VERSIONS: ClassVar[range] = range(3)
    partition_id: int = field(metadata={"kafka_type": "int32"}, default=-1)
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    isr: tuple[int, ...] | None = field(metadata={"kafka_type": "int32", "tag": 0}, default=None)
    leader: int = field(metadata={"kafka_type": "int32", "tag": 1}, default=-2)
    replicas: tuple[int, ...] | None = field(metadata={"kafka_type": "int32", "tag": 2}, default=None)
    removing_replicas: tuple[int, ...] | None = field(
        metadata={"kafka_type": "int32", "tag": 3}, default=None
    )
    adding_replicas: tuple[int, ...] | None = field(metadata={"kafka_type": "int32", "tag": 4}, default=None)
    leader_recovery_state: int = field(metadata={"kafka_type": "int8", "tag": 5}, default=-1)
    directories: tuple[UUID | None, ...] | None = field(
        metadata={"kafka_type": "uuid", "tag": 8}, default=None
    )
    eligible_leader_replicas: tuple[int, ...] | None = field(
        metadata={"kafka_type": "int32", "tag": 6}, default=None
    )
    last_known_elr: tuple[int, ...] | None = field(metadata={"kafka_type": "int32", "tag": 7}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokerRecord(MetadataRecord):
    """Fencing, as older controllers wrote it."""

    API_KEY: ClassVar[int] = 7
    id: int = field(metadata={"kafka_type": "int32"})
    epoch: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBrokerRecord(MetadataRecord):
    """Unfencing, as older controllers wrote it."""

    API_KEY: ClassVar[int] = 8
    id: int = field(metadata={"kafka_type": "int32"})
    epoch: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(MetadataRecord):
    """Deletion of a topic with its partitions and their entries of the remote catalog."""

    API_KEY: ClassVar[int] = 9
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord(MetadataRecord):
    """A delegation token, as a whole: a later record of the same id replaces it. Principals as User:name."""

    API_KEY: ClassVar[int] = 10
    owner: str = field(metadata={"kafka_type": "string"})
    requester: str = field(metadata={"kafka_type": "string"})
    renewers: tuple[str, ...] = field(metadata={"kafka_type": "string"})
    issue_timestamp: int = field(metadata={"kafka_type": "int64"})
    max_timestamp: int = field(metadata={"kafka_type": "int64"})
    expiration_timestamp: int = field(metadata={"kafka_type": "int64"})
    token_id: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord(MetadataRecord):
    """Credential of a user for one SCRAM mechanism. Its keys are in no ``repr``."""

    API_KEY: ClassVar[int] = 11
    name: str = field(metadata={"kafka_type": "string"})
    mechanism: int = field(metadata={"kafka_type": "int8"})
    salt: bytes = field(repr=False, metadata={"kafka_type": "bytes"})
    stored_key: bytes = field(repr=False, metadata={"kafka_type": "bytes"})
    server_key: bytes = field(repr=False, metadata={"kafka_type": "bytes"})
    iterations: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(MetadataRecord):
    """Finalized level of a feature; 0 removes it."""

    API_KEY: ClassVar[int] = 12
    name: str = field(metadata={"kafka_type": "string"})
    feature_level: int = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntityData(MetadataEntity):
    """Part of the entity that a quota applies to; the name is None for the type's default."""

    __type__: ClassVar = EntityType.nested
    entity_type: str = field(metadata={"kafka_type": "string"})
    entity_name: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord(MetadataRecord):
    """Quota of an entity; `value` is ignored where `remove` is set."""

    API_KEY: ClassVar[int] = 14
    entity: tuple[QuotaEntityData, ...]
    key: str = field(metadata={"kafka_type": "string"})
    value: float = field(metadata={"kafka_type": "float64"}, default=0.0)
    remove: bool = field(metadata={"kafka_type": "bool"}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(MetadataRecord):
    """Allocation of producer ids: those below `next_producer_id` are allocated."""

    API_KEY: ClassVar[int] = 15
    broker_id: int = field(metadata={"kafka_type": "int32"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"}, default=-1)
    next_producer_id: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """Change of a broker's registration; a field at its default is unchanged."""

    __version__: ClassVar[i16] = i16(3)
    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[range] = range(4)
    broker_id: int = field(metadata={"kafka_type": "int32"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"})
    fenced: int = field(metadata={"kafka_type": "int8", "tag": 0}, default=0)
    in_controlled_shutdown: int = field(metadata={"kafka_type": "int8", "tag": 1}, default=0)
    log_dirs: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid", "tag": 2}, default=())
    cordoned_log_dirs: tuple[UUID | None, ...] | None = field(
        metadata={"kafka_type": "uuid", "tag": 3}, default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord(MetadataRecord):
    """Access control entry, in the fields of `security.acls.AclEntry`."""

    API_KEY: ClassVar[int] = 18
    id: UUID | None = field(metadata={"kafka_type": "uuid"})
    resource_type: int = field(metadata={"kafka_type": "int8"})
    resource_name: str = field(metadata={"kafka_type": "string"})
    pattern_type: int = field(metadata={"kafka_type": "int8"})
    principal: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    operation: int = field(metadata={"kafka_type": "int8"})
    permission_type: int = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """Removal of an access control entry."""

    API_KEY: ClassVar[int] = 19
    id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord(MetadataRecord):
    """No change; keeps the log advancing."""

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[range] = range(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """Removal of a user's credential for one SCRAM mechanism."""

    API_KEY: ClassVar[int] = 22
    name: str = field(metadata={"kafka_type": "string"})
    mechanism: int = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord(MetadataRecord):
    """Begin of a transaction: its records up to `EndTransactionRecord` take effect together."""

    API_KEY: ClassVar[int] = 23
    name: str | None = field(metadata={"kafka_type": "string", "tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord(MetadataRecord):
    """End of a transaction."""

    API_KEY: ClassVar[int] = 24
    VERSIONS: ClassVar[range] = range(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord(MetadataRecord):
    """Abort of a transaction: its records have no effect."""

    API_KEY: ClassVar[int] = 25
    reason: str | None = field(metadata={"kafka_type": "string", "tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEndpoint(MetadataEntity):
    """Listener of a controller."""

    __type__: ClassVar = EntityType.nested
    name: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    port: int = field(metadata={"kafka_type": "uint16"})
    security_protocol: int = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFeature(MetadataEntity):
    """Range of feature levels that a controller supports."""

    __type__: ClassVar = EntityType.nested
    name: str = field(metadata={"kafka_type": "string"})
    min_supported_version: int = field(metadata={"kafka_type": "int16"})
    max_supported_version: int = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord(MetadataRecord):
    """Removal of a delegation token."""

    API_KEY: ClassVar[int] = 26
    token_id: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord(MetadataRecord):
    """Registration of a controller process."""

    API_KEY: ClassVar[int] = 27
    controller_id: int = field(metadata={"kafka_type": "int32"})
    incarnation_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    zk_migration_ready: bool = field(metadata={"kafka_type": "bool"})
    end_points: tuple[ControllerEndpoint, ...]
    features: tuple[ControllerFeature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearElrRecord(MetadataRecord):
    """Removal of the ELR and the last known leaders of a topic's partitions; '' means every topic."""

    API_KEY: ClassVar[int] = 28
    topic_name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogRecord(MetadataRecord):
    """Firn's: one partition's entry in the remote catalog, as a whole (`remote.catalog.CatalogEntry`)."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_id: int = field(metadata={"kafka_type": "int32"})
    version: int = field(metadata={"kafka_type": "int64"})
    manifest_key: str = field(metadata={"kafka_type": "string"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})
    start_offset: int = field(metadata={"kafka_type": "int64"})
    end_offset: int = field(metadata={"kafka_type": "int64"})
    segments: int = field(metadata={"kafka_type": "int32"})
    size_bytes: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneRecord(MetadataRecord):
    """Firn's: deleted topic of which the bucket may still hold objects (`remote.catalog.Tombstone`)."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 1
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    name: str = field(metadata={"kafka_type": "string"})
    partitions: int = field(metadata={"kafka_type": "int32"})
    deleted_ms: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTombstoneRecord(MetadataRecord):
    """Firn's: removal of a tombstone, once the bucket holds no object of the topic."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 2
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeRecord(MetadataRecord):
    """Firn's: life of the cluster that this metadata belongs to; each recovery from a bucket begins the next
    one.

    Offsets and epochs of different lives are not comparable. Two recoveries of one bucket begin lives of one
    number; `life_id`, drawn by each, distinguishes them.
    """

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 3
    life: int = field(metadata={"kafka_type": "int32"})
    life_id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredTopicRecord(MetadataRecord):
    """Firn's: remaining recovery work for one topic (`image.RecoveredTopic`); empty: none."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 4
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    unchecked_partitions: tuple[int, ...] = field(metadata={"kafka_type": "int32"})
    settings_unknown: bool = field(metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTailRecord(MetadataRecord):
    """Firn's: partition of a restored cluster whose leader has yet to load a cut's tails, which begin where
    the archive ends (`image.RestoredTail`)."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 5
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_id: int = field(metadata={"kafka_type": "int32"})
    chain_end: int = field(metadata={"kafka_type": "int64"})
    end_offset: int = field(metadata={"kafka_type": "int64"})
    go_on: int = field(metadata={"kafka_type": "int64"})
    cut_key: str = field(metadata={"kafka_type": "string"})
    segment_key: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRestoredTailRecord(MetadataRecord):
    """Firn's: the leader of a restored partition has its tails in its log."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 6
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_id: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRecord(MetadataRecord):
    """Firn's: a run of a partition's chain is being written anew (`remote.catalog.RewriteIntent`)."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 7
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_id: int = field(metadata={"kafka_type": "int32"})
    rewrite_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    base_offset: int = field(metadata={"kafka_type": "int64"})
    last_offset: int = field(metadata={"kafka_type": "int64"})
    kind: int = field(metadata={"kafka_type": "int8"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})
    started_ms: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRewriteRecord(MetadataRecord):
    """Firn's: a rewrite is committed, or given up."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 8
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_id: int = field(metadata={"kafka_type": "int32"})
    rewrite_id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRecord(MetadataRecord):
    """Firn's: an order to erase keys, as a whole (`remote.catalog.Erasure`); a later record of the same id
    replaces it."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 9
    id: UUID | None = field(metadata={"kafka_type": "uuid"})
    key: str = field(metadata={"kafka_type": "string"})
    stored_size: int = field(metadata={"kafka_type": "int64"})
    crc32c: int = field(metadata={"kafka_type": "int64"})
    keys: int = field(metadata={"kafka_type": "int32"})
    topics: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid"})
    started_ms: int = field(metadata={"kafka_type": "int64"})
    done_ms: int = field(metadata={"kafka_type": "int64"})
    is_restored: bool = field(metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveErasureRecord(MetadataRecord):
    """Firn's: removal of an order to erase, with all notes of it."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 10
    id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRecord(MetadataRecord):
    """Firn's: partitions of a topic in which an order's records are erased: from the log of a broker or, for
    broker -1, from the bucket."""

    API_KEY: ClassVar[int] = FIRST_OWN_ID + 11
    erasure_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    broker_id: int = field(metadata={"kafka_type": "int32"})
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[int, ...] = field(metadata={"kafka_type": "int32"})


RECORD_TYPES: Final[dict[int, type[MetadataRecord]]] = {
    record_type.API_KEY: record_type
    for record_type in (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        RemoveTopicRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        RemoveUserScramCredentialRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        RemoveDelegationTokenRecord,
        RegisterControllerRecord,
        ClearElrRecord,
        RemoteLogRecord,
        TombstoneRecord,
        RemoveTombstoneRecord,
        LifeRecord,
        RecoveredTopicRecord,
        RestoredTailRecord,
        RemoveRestoredTailRecord,
        RewriteRecord,
        RemoveRewriteRecord,
        ErasureRecord,
        RemoveErasureRecord,
        ErasedRecord,
    )
}
"""Record types that this software reads and writes, by id."""
