"""Requests and responses of groups: the names of the wire's fields, without its classes. [P]

Requests are the canonical messages of `service/wire` (or anything with their fields). Responses are tuples
with the canonical fields' names, which the wire's encoders accept in place of its own classes.

`refused_*` are the checks before a group is looked up, in Kafka's order (``GroupCoordinatorService``,
``KafkaApis``).
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Most protocols that a member of a classic group may offer; they are checked in one go."""
_MOST_NAME_BYTES: Final = MAX_STRING_BYTES - 37
"""Longest name that fits a record with a UUID appended."""
OPERATIONS_NOT_ASKED: Final = -(2**31)


class RequestOrigin(NamedTuple):
    """Sender of a request, and the request's version. `host` is its address with Kafka's slash in front.

    `may_describe`: whether it may describe a topic, and so read it by a regular expression; None: any topic.
    """

    client_id: str
    host: str
    version: int
    may_describe: Callable[[str], bool] | None = None


class JoinGroupMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    """Response to JoinGroup. It names no protocols in an error; versions before 7 write empty names then."""

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
    """Partition of an OffsetCommit request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


class OffsetCommitTopic(NamedTuple):
    """Topic of an OffsetCommit request: by name (versions to 9) or id (10); with both once the topic is
    known."""

    name: str
    topic_id: UUID | None
    partitions: tuple[OffsetCommitPartition, ...]


class GroupCommitRequest(NamedTuple):
    """OffsetCommit request. `retention_time` in ms (or as the wire has durations); -1 in versions after 4."""

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


class GroupCommitResponse(NamedTuple):
    topics: tuple[CommittedTopic, ...]
    throttle_time: int = 0


class OffsetFetchTopic(NamedTuple):
    """Topic of an OffsetFetch request."""

    name: str
    topic_id: UUID | None
    partition_indexes: tuple[int, ...]


class OffsetFetchGroup(NamedTuple):
    """Group of an OffsetFetch request; `topics` None means all."""

    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None
    member_id: str | None = None
    member_epoch: int = -1


class FetchedPartition(NamedTuple):
    """Offset of a partition; offset and leader epoch are -1 if nothing is committed, or with an error."""

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
    """Return INVALID_GROUP_ID for an empty group id, or one that no record can hold."""
    if group_id and len(group_id.encode()) <= MAX_STRING_BYTES:
        return None
    return ErrorCode.invalid_group_id


def refused_join(
    request: Any, client: RequestOrigin, config: GroupsConfig, most_metadata_bytes: int
) -> ErrorCode | None:
    """Return the error of a JoinGroup that is rejected before its group is looked up. `most_metadata_bytes`:
    limit of a member's protocols together, from the size limit of the topic of groups. Kafka keeps any size
    in memory and fails to write it."""
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
    """Return the error of a SyncGroup that is rejected before its group is looked up: from version 5 on it
    must name its protocol (KIP-559)."""
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.inconsistent_group_protocol
    return refused_group_id(request.group_id)


def commit_failed(request: Any, error: ErrorCode) -> GroupCommitResponse:
    """Return the response to an OffsetCommit that failed as a whole."""
    return GroupCommitResponse(
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
    """Return the response to one group of an OffsetFetch that failed; before version 2 each partition has the
    error."""
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


def leave_unknown_group(request: Any) -> LeaveGroupResponse:
    """Return the response to a LeaveGroup of a group that does not exist."""
    return LeaveGroupResponse(
        members=tuple(
            LeftMember(m.member_id, m.group_instance_id, ErrorCode.unknown_member_id) for m in request.members
        )
    )
