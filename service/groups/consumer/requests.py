"""Requests and responses of KIP-848, and the checks before a group is looked up. [P]

Requests are the canonical messages of `service/wire`, or anything with their fields. Responses are tuples
with the canonical fields' names, which the wire's encoders accept. Source: Apache Kafka
``GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.groups.consumer.group import AWAY_EPOCH, JOINING_EPOCH, LEAVING_EPOCH
from service.groups.protocol import MOST_NAMES
from service.groups.records import MAX_STRING_BYTES
from service.groups.requests import NONE, OPERATIONS_NOT_ASKED
from service.wire.schema import millis

UNCHANGED_MS = -1
MEMBER_ID_REQUIRED_FROM = 1
"""First version of ConsumerGroupHeartbeat in which members choose their ids."""


class TopicPartitions(NamedTuple):
    topic_id: UUID
    partitions: tuple[int, ...]


class HeartbeatAssignment(NamedTuple):
    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupHeartbeatResponse(NamedTuple):
    """Response to ConsumerGroupHeartbeat. `heartbeat_interval` in ms; no assignment if it has not changed."""

    error_code: ErrorCode = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: int = 0
    assignment: HeartbeatAssignment | None = None
    throttle_time: int = 0


class DescribedTopic(NamedTuple):
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


class DescribedAssignment(NamedTuple):
    topic_partitions: tuple[DescribedTopic, ...]


class DescribedConsumerMember(NamedTuple):
    """A member. `member_type`: 0 classic, 1 consumer (KIP-1099)."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: int


class DescribedConsumerGroup(NamedTuple):
    """One group of ConsumerGroupDescribe."""

    group_id: str
    error_code: ErrorCode = NONE
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerMember, ...] = ()
    authorized_operations: int = OPERATIONS_NOT_ASKED


MOST_OWNED: Final = 50_000
"""Most topics and partitions that a member may report as owned: they are checked in one go."""


def check_heartbeat(request: Any, version: int, assignors: tuple[str, ...]) -> None:
    """Check the request. Raises `RequestError` INVALID_REQUEST or UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if version >= MEMBER_ID_REQUIRED_FROM or epoch > 0 or epoch == LEAVING_EPOCH:
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")
    if len(request.subscribed_topic_names or ()) > MOST_NAMES:
        raise _invalid(f"SubscribedTopicNames has more than {MOST_NAMES} names.")
    if sum(len(topic.partitions) + 1 for topic in request.topic_partitions or ()) > MOST_OWNED:
        raise _invalid(f"TopicPartitions has more than {MOST_OWNED} topics and partitions.")
    if epoch == JOINING_EPOCH:
        if rebalance_timeout_ms(request) == UNCHANGED_MS:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == AWAY_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < AWAY_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RequestError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def rebalance_timeout_ms(request: Any) -> int:
    """Return the rebalance timeout; -1 if it has not changed."""
    return millis(request.rebalance_timeout)


def is_full(request: Any) -> bool:
    """Return whether the request has all fields: then the response has the whole assignment."""
    return (
        rebalance_timeout_ms(request) != UNCHANGED_MS
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


_TRIMMED = "".join(map(chr, range(0x21)))
"""Characters that Java's `String.trim` removes, by which Kafka detects a blank id; `str.strip` differs."""


def _check_text(text: str | None, name: str) -> None:
    """Check an id. Ids are parts of record keys, so too long ones are rejected."""
    if text is None:
        return
    if not text.strip(_TRIMMED):
        raise _invalid(f"{name} can't be empty.")
    if len(text.encode()) > MAX_STRING_BYTES:
        raise _invalid(f"{name} is longer than {MAX_STRING_BYTES} bytes.")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)
