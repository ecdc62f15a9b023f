"""CommitCatalog, an API of Firn's own between its nodes: brokers change the remote catalog. [P]

Version 0, flexible, on controllers' listeners only. A request has up to `MAX_COMMITS` compare-and-sets, each
of one partition's entry (`remote.catalog.CatalogCommit`). The controller decides it in one batch of the
metadata log. A request without any is a barrier: the response's `metadata_offset` is committed, and a node
that has applied it has all earlier decisions. The same batch removes the tombstones of `forgotten_topics`.
A request may also tell which restored partitions the broker, as their leader, has loaded; begin and give up
rewrites of chains, which `RewriteAnswers` answers in order; and tell of erasures: what is clean of an order's
records, and which orders are started, done or removed.

    request    BrokerId int32, BrokerEpoch int64, Commits [TopicId uuid, Partition int32,
               PreviousVersion int64, Version int64, ManifestKey string, LeaderEpoch int32,
               StartOffset int64, EndOffset int64, Segments int32, SizeBytes int64, tag 0: RewriteId uuid],
               tag 0: ForgottenTopics [uuid],
               tag 1: Rewrites [TopicId uuid, Partition int32, Op int8 (0 begin, 1 give up), RewriteId uuid,
               BaseOffset int64, LastOffset int64, Kind int8, LeaderEpoch int32, StartedMs int64],
               tag 2: Loaded [TopicId uuid, Partitions [Partition int32, LeaderEpoch int32]],
               tag 3: Erased [ErasureId uuid, BrokerId int32 (-1: in the bucket), Topics [as in Loaded]],
               tag 4: Erasures [Op int8 (0 started, 1 done, 2 removed), Id uuid, Key string,
               StoredSize int64, Crc32c int64, Keys int32, Topics [uuid], StartedMs int64, DoneMs int64]
    response   ErrorCode int16, MetadataOffset int64, Results [int8],
               tag 0: RewriteAnswers [int8], tag 1: ErrorMessage string?

Tags 1, 3 and 4, and ids of rewrites, are sent to controllers of a cluster whose ``firn.catalog.version`` is 3
or more; below that level they are refused with UNSUPPORTED_VERSION.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = [
    "MAX_COMMITS",
    "MAX_ERASED_PLACES",
    "MAX_ERASURES_IN_REQUEST",
    "CatalogChange",
    "CatalogErasure",
    "CatalogRewrite",
    "CommitCatalogRequest",
    "CommitCatalogResponse",
    "ErasedNote",
    "LoadedPartition",
    "LoadedTopic",
    "OrderOp",
    "RewriteOp",
]

MAX_COMMITS: Final = 500
MAX_ERASED_PLACES: Final = 5_000
"""Partitions in the notes of one request."""
MAX_ERASURES_IN_REQUEST: Final = 64
"""Erasures that one request tells of, and of which it has notes."""


class RewriteOp(IntEnum):
    """Change of a rewrite, by its number on the wire."""

    BEGIN = 0
    GIVE_UP = 1


class OrderOp(IntEnum):
    """Change of an order to erase, by its number on the wire."""

    STARTED = 0
    DONE = 1
    REMOVED = 2


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
    rewrite_id: UUID | None = field(metadata={"kafka_type": "uuid", "tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRewrite:
    """A rewrite that begins, or is given up; then only the ids and the partition count."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition: int = field(metadata={"kafka_type": "int32"})
    op: int = field(metadata={"kafka_type": "int8"})
    rewrite_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    base_offset: int = field(metadata={"kafka_type": "int64"}, default=0)
    last_offset: int = field(metadata={"kafka_type": "int64"}, default=0)
    kind: int = field(metadata={"kafka_type": "int8"}, default=0)
    leader_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    started_ms: int = field(metadata={"kafka_type": "int64"}, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPartition:
    """Partition in a leader epoch: a restored one that the broker loaded as its leader, or one that is clean
    of an order's records."""

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
class ErasedNote:
    """Partitions that are clean of an order's records, in a broker's logs or, for broker -1, in the
    bucket."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    erasure_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    broker_id: int = field(metadata={"kafka_type": "int32"})
    topics: tuple[LoadedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogErasure:
    """An order that is started, done or removed. `done_ms` is of a done one, the other fields but the id of
    a started one."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    op: int = field(metadata={"kafka_type": "int8"})
    id: UUID | None = field(metadata={"kafka_type": "uuid"})
    key: str = field(metadata={"kafka_type": "string"}, default="")
    stored_size: int = field(metadata={"kafka_type": "int64"}, default=0)
    crc32c: int = field(metadata={"kafka_type": "int64"}, default=0)
    keys: int = field(metadata={"kafka_type": "int32"}, default=0)
    topics: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid"}, default=())
    started_ms: int = field(metadata={"kafka_type": "int64"}, default=-1)
    done_ms: int = field(metadata={"kafka_type": "int64"}, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCatalogRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    broker_id: int = field(metadata={"kafka_type": "int32"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"})
    commits: tuple[CatalogChange, ...] = ()
    forgotten_topics: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid", "tag": 0}, default=())
    rewrites: tuple[CatalogRewrite, ...] = field(metadata={"tag": 1}, default=())
    loaded: tuple[LoadedTopic, ...] = field(metadata={"tag": 2}, default=())
    erased: tuple[ErasedNote, ...] = field(metadata={"tag": 3}, default=())
    erasures: tuple[CatalogErasure, ...] = field(metadata={"tag": 4}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCatalogResponse:
    """`metadata_offset` is the offset of the last record that the decision depends on; -1 with an error."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    metadata_offset: int = field(metadata={"kafka_type": "int64"}, default=-1)
    results: tuple[int, ...] = field(metadata={"kafka_type": "int8"}, default=())
    """in the order of the commits: 0 committed, 1 fenced, 2 version conflict, 3 unknown partition, 4 no
    intent"""
    rewrite_answers: tuple[int, ...] = field(metadata={"kafka_type": "int8", "tag": 0}, default=())
    """in the order of the rewrites: 0 begun or given up, 1 fenced, 2 busy, 3 unknown partition"""
    error_message: str | None = field(metadata={"kafka_type": "string", "tag": 1}, default=None)
