"""Requests and answers as groups see them: the names of the wire's fields, without its classes. [P]

Requests are the canonical messages of `service/wire` (or anything with their fields). Answers are tuples with
the canonical fields' names, which the wire's encoders take as they take its own classes.

`refused_*` are the checks that come before any group is looked for, in Kafka's order
(``GroupCoordinatorService``, ``KafkaApis``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.groups.config import GroupsConfig
from service.groups.records import MAX_STRING_BYTES
from service.wire.schema import millis

NONE: Final = ErrorCode.none
NO_GENERATION: Final = -1
NO_MEMBER: Final = ""
_MOST_PROTOCOLS: Final = 1000
"""That a member of a classic group may offer; every one is looked at in one go."""
_MOST_NAME_BYTES: Final = MAX_STRING_BYTES - 37
"""Longer names do not fit a record once a UUID stands behind them."""
OPERATIONS_NOT_ASKED: Final = -(2**31)


class Client(NamedTuple):
    """Who asks, and in which version. `host` is the address with Kafka's slash before it."""

    client_id: str
    host: str
    version: int


class JoinGroupMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    """Without protocol names where there is an error; versions before 7 say the empty name instead."""

    error_code: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()
    throttle_time: int = 0


class SyncGroupResponse(NamedTuple):
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    throttle_time: int = 0


class HeartbeatResponse(NamedTuple):
    error_code: ErrorCode = NONE
    throttle_time: int = 0


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode = NONE


class LeaveGroupResponse(NamedTuple):
    error_code: ErrorCode = NONE
    members: tuple[LeftMember, ...] = ()
    throttle_time: int = 0


class OffsetCommitPartition(NamedTuple):
    """Of a request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


class OffsetCommitTopic(NamedTuple):
    """Of a request: the name (versions to 9) or the id (10); both once the topic is known."""

    name: str
    topic_id: UUID | None
    partitions: tuple[OffsetCommitPartition, ...]


class OffsetCommitRequest(NamedTuple):
    """`retention_time` in ms (or as the wire has durations), -1 where versions after 4 do not say it."""

    group_id: str
    topics: tuple[OffsetCommitTopic, ...]
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str = NO_MEMBER
    group_instance_id: str | None = None
    retention_time: int = -1


class CommittedPartition(NamedTuple):
    partition_index: int
    error_code: ErrorCode = NONE


class CommittedTopic(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: tuple[CommittedPartition, ...]


class OffsetCommitResponse(NamedTuple):
    topics: tuple[CommittedTopic, ...]
    throttle_time: int = 0


class OffsetFetchTopic(NamedTuple):
    """Of a request."""

    name: str
    topic_id: UUID | None
    partition_indexes: tuple[int, ...]


class OffsetFetchGroup(NamedTuple):
    """Of a request; no topics means all."""

    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None
    member_id: str | None = None
    member_epoch: int = -1


class FetchedPartition(NamedTuple):
    """Offset and leader epoch -1 where nothing is committed, or with an error."""

    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = NONE


class FetchedTopic(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: tuple[FetchedPartition, ...]


class FetchedGroup(NamedTuple):
    group_id: str
    topics: tuple[FetchedTopic, ...] = ()
    error_code: ErrorCode = NONE


class DeletedPartition(NamedTuple):
    partition_index: int
    error_code: ErrorCode = NONE


class DeletedTopic(NamedTuple):
    name: str
    partitions: tuple[DeletedPartition, ...]


class OffsetDeleteResponse(NamedTuple):
    error_code: ErrorCode = NONE
    topics: tuple[DeletedTopic, ...] = ()
    throttle_time: int = 0


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedGroup(NamedTuple):
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
    error_code: ErrorCode = NONE
    error_message: str | None = None
    authorized_operations: int = OPERATIONS_NOT_ASKED


class DeletedGroup(NamedTuple):
    group_id: str
    error_code: ErrorCode = NONE


def refused_group_id(group_id: str) -> ErrorCode | None:
    """INVALID_GROUP_ID for none at all, and for one that no record can carry."""
    if group_id and len(group_id.encode()) <= MAX_STRING_BYTES:
        return None
    return ErrorCode.invalid_group_id


def refused_join(
    request: Any, client: Client, config: GroupsConfig, most_metadata_bytes: int
) -> ErrorCode | None:
    """Why a JoinGroup goes to no group at all. `most_metadata_bytes`: what a member's protocols may hold
    together, which the topic of groups can take; Kafka keeps any size in memory, and fails to write it."""
    refused = refused_group_id(request.group_id)
    if refused is not None:
        return refused
    session_ms = millis(request.session_timeout)
    if not config.group_min_session_timeout_ms <= session_ms <= config.group_max_session_timeout_ms:
        return ErrorCode.invalid_session_timeout
    if len(request.protocols) > _MOST_PROTOCOLS:
        return ErrorCode.invalid_request
    names = (request.group_instance_id or client.client_id, request.protocol_type)
    if any(len(name.encode()) > _MOST_NAME_BYTES for name in names):
        return ErrorCode.invalid_request
    if any(len(protocol.name.encode()) > _MOST_NAME_BYTES for protocol in request.protocols):
        return ErrorCode.invalid_request
    if sum(len(protocol.metadata) for protocol in request.protocols) > most_metadata_bytes:
        return ErrorCode.invalid_request
    return None


def refused_sync(request: Any, version: int) -> ErrorCode | None:
    """Why a SyncGroup goes to no group at all: from version 5 on it must name its protocol (KIP-559)."""
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.inconsistent_group_protocol
    return refused_group_id(request.group_id)


def commit_failed(request: Any, error: ErrorCode) -> OffsetCommitResponse:
    """The answer to an OffsetCommit that failed as a whole."""
    return OffsetCommitResponse(
        tuple(
            CommittedTopic(
                topic.name,
                topic.topic_id,
                tuple(CommittedPartition(p.partition_index, error) for p in topic.partitions),
            )
            for topic in request.topics
        )
    )


def fetch_failed(group: Any, error: ErrorCode, version: int) -> FetchedGroup:
    """The answer to one group of an OffsetFetch that failed; before version 2 each partition says the
    error.
    """
    if version >= 2:
        return FetchedGroup(group.group_id, error_code=error)
    return FetchedGroup(
        group.group_id,
        tuple(
            FetchedTopic(
                topic.name,
                None,
                tuple(FetchedPartition(index, error_code=error) for index in topic.partition_indexes),
            )
            for topic in group.topics or ()
        ),
    )


def left_by_nobody(request: Any) -> LeaveGroupResponse:
    """The answer to a LeaveGroup of a group that is not there."""
    return LeaveGroupResponse(
        members=tuple(
            LeftMember(m.member_id, m.group_instance_id, ErrorCode.unknown_member_id) for m in request.members
        )
    )
