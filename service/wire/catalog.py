"""CommitCatalog, an API of Firn's own between its nodes: brokers change the remote catalog. [P]

Version 0, flexible, on controllers' listeners only. A request has up to `MAX_COMMITS` compare-and-sets, each
of one partition's entry (`remote.catalog.CatalogCommit`). The controller decides it in one batch of the
metadata log. A request without any is a barrier: the response's `metadata_offset` is committed, and a node
that has applied it has all earlier decisions. The same batch removes the tombstones of `forgotten_topics`.
A request may also tell which restored partitions the broker, as their leader, has loaded.

    request    BrokerId int32, BrokerEpoch int64, Commits [TopicId uuid, Partition int32,
               PreviousVersion int64, Version int64, ManifestKey string, LeaderEpoch int32,
               StartOffset int64, EndOffset int64, Segments int32, SizeBytes int64],
               tag 0: ForgottenTopics [uuid],
               tag 2: Loaded [TopicId uuid, Partitions [Partition int32, LeaderEpoch int32]]
    response   ErrorCode int16, MetadataOffset int64, Results [int8]
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from typing import ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = [
    "MAX_COMMITS",
    "CatalogChange",
    "CommitCatalogRequest",
    "CommitCatalogResponse",
    "LoadedPartition",
    "LoadedTopic",
]

MAX_COMMITS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChange:
    """One compare-and-set. A zero topic id reads as None, as in kio."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition: int = field(metadata={"kafka_type": "int32"})
    previous_version: int = field(metadata={"kafka_type": "int64"})
    version: int = field(metadata={"kafka_type": "int64"})
    manifest_key: str = field(metadata={"kafka_type": "string"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})
    start_offset: int = field(metadata={"kafka_type": "int64"})
    end_offset: int = field(metadata={"kafka_type": "int64"})
    segments: int = field(metadata={"kafka_type": "int32"})
    size_bytes: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPartition:
    """Restored partition that the broker loaded as its leader in `leader_epoch`."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    partition: int = field(metadata={"kafka_type": "int32"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTopic:
    """Partitions of one topic. A zero topic id reads as None, as in kio."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[LoadedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCatalogRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    broker_id: int = field(metadata={"kafka_type": "int32"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"})
    commits: tuple[CatalogChange, ...] = ()
    forgotten_topics: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid", "tag": 0}, default=())
    loaded: tuple[LoadedTopic, ...] = field(metadata={"tag": 2}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCatalogResponse:
    """`metadata_offset` is the offset of the last record that the decision depends on; -1 with an error."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    metadata_offset: int = field(metadata={"kafka_type": "int64"}, default=-1)
    results: tuple[int, ...] = field(metadata={"kafka_type": "int8"}, default=())
    """in the order of the commits: 0 committed, 1 fenced, 2 version conflict, 3 unknown partition"""
