"""ConsumerGroupDescribe, and the view of a KIP-848 group for offsets and administration. [P]

Source: Apache Kafka ``ConsumerGroup.asDescribedGroup``, ``validateOffsetCommit``, ``validateOffsetFetch``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.ports import TopicsView
from service.coordinator.shard import CoordinatorRecord
from service.groups.consumer.fencing import tombstones
from service.groups.consumer.group import NO_PARTITIONS, ConsumerGroup, ConsumerGroupMember, GroupState
from service.groups.consumer.requests import (
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    DescribedTopic,
)
from service.groups.consumer.target import preferred_assignor
from service.groups.group import CheckPartition
from service.groups.protocol import CONSUMER_PROTOCOL
from service.groups.requests import NO_GENERATION, NO_MEMBER

_COMMITS_BY_EPOCH_FROM = 9
"""First version of OffsetCommit that has member epochs."""


def described(group: ConsumerGroup, assignors: tuple[str, ...], topics: TopicsView) -> DescribedConsumerGroup:
    """Describe the group's committed state."""
    members = [member for _, member in group.members.committed_items()]
    epoch, target_epoch = group.committed_epochs()
    return DescribedConsumerGroup(
        group.group_id,
        group_state=group.committed_state().value,
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        assignor_name=preferred_assignor(members, assignors),
        members=tuple([_member(group, member, topics) for member in members]),
    )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, topics: TopicsView) -> DescribedConsumerMember:
    having: dict[UUID, tuple[int, ...]] = {}
    for owned in (member.assigned, member.pending_revocation):
        for topic_id, numbers in owned.items():
            having[topic_id] = (*having.get(topic_id, ()), *numbers)
    target = group.targets.committed(member.member_id, NO_PARTITIONS)
    return DescribedConsumerMember(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.epoch,
        member.client_id,
        member.client_host,
        tuple(sorted(member.topics)),
        member.regex,
        _assignment(having.items(), topics),
        _assignment(target.items(), topics),
        0 if member.classic is not None else 1,
    )


def _assignment(
    partitions: Iterable[tuple[UUID, tuple[int, ...]]], topics: TopicsView
) -> DescribedAssignment:
    """Describe an assignment, without topics that do not exist."""
    found = []
    for topic_id, numbers in partitions:
        topic = topics.by_id(topic_id)
        if topic is not None:
            found.append(DescribedTopic(topic_id, topic.name, tuple(numbers)))
    return DescribedAssignment(tuple(found))


class ConsumerGroupView:
    """View of one group: of its newest state, or of the committed one."""

    kind: Literal["consumer"] = "consumer"
    protocol_type: str = CONSUMER_PROTOCOL

    def __init__(self, group: ConsumerGroup, committed: bool) -> None:
        self._group = group
        self._committed = committed

    @property
    def state(self) -> str:
        group = self._group
        return (group.committed_state() if self._committed else group.state()).value

    @property
    def member_count(self) -> int:
        members = self._group.members
        return sum(1 for _ in members.committed_items()) if self._committed else len(members)

    @property
    def is_empty(self) -> bool:
        return self.state == GroupState.EMPTY.value

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int,
        *,
        is_transactional: bool = False,
    ) -> CheckPartition | None:
        """Accept commits with an older member epoch for partitions that the member already owned at that
        epoch (KIP-1251)."""
        if epoch < 0 and self.is_empty:
            return None
        if is_transactional and (epoch, member_id, instance_id) == (NO_GENERATION, NO_MEMBER, None):
            return None
        member = self._member(member_id)
        if member is None:
            raise self._unknown(member_id)
        if not is_transactional and member.classic is None and version < _COMMITS_BY_EPOCH_FROM:
            raise RequestError(
                ErrorCode.unsupported_version,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise _stale(member, f"{epoch} is newer than current member epoch {member.epoch}.")
        return _since(member, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = self._member(member_id or "")
        if member is None:
            raise self._unknown(member_id)
        if epoch != member.epoch:
            raise _stale(member, f"{epoch} does not match the expected member epoch {member.epoch}.")

    def check_offset_delete(self) -> None:
        """Allow it: the subscriptions of a KIP-848 group are always known."""

    def check_delete(self) -> None:
        if not self.is_empty:
            raise RequestError(ErrorCode.non_empty_group)

    def is_subscribed_to(self, topic: str) -> bool:
        subscribed = self._group.subscribed
        return (subscribed.committed(topic) is not None) if self._committed else topic in subscribed

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        return commit_ms

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        return tombstones(self._group)

    def _member(self, member_id: str) -> ConsumerGroupMember | None:
        members = self._group.members
        return members.committed(member_id) if self._committed else members.get(member_id)

    def _unknown(self, member_id: str | None) -> RequestError:
        return RequestError(
            ErrorCode.unknown_member_id,
            f"Member {member_id} is not a member of group {self._group.group_id}.",
        )


def _stale(member: ConsumerGroupMember, what: str) -> RequestError:
    if member.classic is not None:
        return RequestError(ErrorCode.illegal_generation, f"The received generation id {what}")
    return RequestError(ErrorCode.stale_member_epoch, f"The received member epoch {what}")


def _since(member: ConsumerGroupMember, epoch: int) -> CheckPartition:
    def check(topic: str, topic_id: UUID | None, partition: int) -> None:
        since = None
        if topic_id is not None:
            for owned in (member.assigned, member.pending_revocation):
                if since is None:
                    since = owned.get(topic_id, {}).get(partition)
        if since is None or epoch < since:
            raise _stale(member, f"{epoch} is older than the assignment of {topic}-{partition}.")

    return check
