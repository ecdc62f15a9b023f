"""TxnOffsetCommit: offsets that become a group's when the transaction of their producer commits. [P]

Checks are not OffsetCommit's (Kafka `OffsetMetadataManager.validateTransactionalOffsetCommit`): older clients
name no member, which is accepted in any group; a member that is named must be of the present generation or
epoch, whatever the state of a rebalance. No session is extended by it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.ports import TopicsView
from service.groups.config import GroupsConfig
from service.groups.group import Group
from service.groups.offset_commits import (
    CommitDecision,
    KnownCommit,
    MayUse,
    accept,
    check_group_id,
    known_commit,
)
from service.groups.requests import GroupCommitRequest, OffsetCommitTopic

_BY_NAME = 0
"""version of an OffsetCommit that names its topics"""


def as_commit(request: Any) -> GroupCommitRequest:
    """Return the request in the form of an OffsetCommit."""
    topics = tuple([OffsetCommitTopic(one.name, None, one.partitions) for one in request.topics])
    return GroupCommitRequest(
        request.group_id, topics, request.generation_id, request.member_id, request.group_instance_id
    )


def known_txn_commit(
    request: GroupCommitRequest, topics: TopicsView, may_use: MayUse | None = None
) -> KnownCommit:
    """Split a request of `as_commit`: partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION, those of
    topics that the client may not use TOPIC_AUTHORIZATION_FAILED. If none is left, no coordinator is asked.
    """
    return known_commit(request, topics, _BY_NAME, may_use)


def txn_commit(
    request: GroupCommitRequest,
    group: Group | None,
    topics: TopicsView,
    config: GroupsConfig,
    now_ms: int,
) -> CommitDecision:
    """Decide a TxnOffsetCommit. Raises `RequestError` if the whole request is rejected.

    Without a group and a generation it creates a simple group. The records have no topic ids, as in Kafka.
    """
    check_group_id(request.group_id)
    epoch = request.generation_id_or_member_epoch
    if group is None and epoch >= 0:
        raise RequestError(ErrorCode.illegal_generation)
    try:
        check = None
        if group is not None:
            check = group.check_commit(
                request.member_id, request.group_instance_id, epoch, _BY_NAME, is_transactional=True
            )
        if check is not None and any(topics.by_name(one.name) is None for one in request.topics):
            raise RequestError(ErrorCode.illegal_generation)
        return accept(request, check, config, now_ms, has_topic_ids=False)
    except RequestError as e:
        if e.code is ErrorCode.stale_member_epoch:
            raise RequestError(ErrorCode.illegal_generation, str(e)) from e
        raise
