"""The canonical messages of OffsetCommit and OffsetFetch: fields of the newest version and of older ones. [P]

Topics have names up to version 9 and ids from version 10 on: here they have both, one of them empty.
OffsetCommit 2 to 4 have a retention time of the offsets.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10 import request as commit_request
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition
from kio.schema.offset_commit.v10.response import OffsetCommitResponsePartition
from kio.schema.offset_fetch.v10.response import OffsetFetchResponsePartitions

_NAME = {"kafka_type": "string"}
_ID = {"kafka_type": "uuid"}
_DURATION = {"kafka_type": "timedelta_i32"}
_UNSET = timedelta(milliseconds=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    name: str = field(metadata=_NAME, default="")
    topic_id: UUID | None = field(metadata=_ID, default=None)
    partitions: tuple[OffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(commit_request.OffsetCommitRequest):
    topics: tuple[OffsetCommitRequestTopic, ...]  # type: ignore[assignment]
    retention_time: timedelta = field(metadata={"kafka_type": "timedelta_i64"}, default=_UNSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    name: str = field(metadata=_NAME, default="")
    topic_id: UUID | None = field(metadata=_ID, default=None)
    partitions: tuple[OffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    throttle_time: timedelta = field(metadata=_DURATION)
    topics: tuple[OffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    name: str = field(metadata=_NAME, default="")
    topic_id: UUID | None = field(metadata=_ID, default=None)
    partition_indexes: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    group_id: str = field(metadata=_NAME)
    member_id: str | None = field(metadata=_NAME, default=None)
    member_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    groups: tuple[OffsetFetchRequestGroup, ...]
    require_stable: bool = field(metadata={"kafka_type": "bool"}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    name: str = field(metadata=_NAME, default="")
    topic_id: UUID | None = field(metadata=_ID, default=None)
    partitions: tuple[OffsetFetchResponsePartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: str = field(metadata=_NAME)
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"}, default=ErrorCode.none)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    throttle_time: timedelta = field(metadata=_DURATION)
    groups: tuple[OffsetFetchResponseGroup, ...]
