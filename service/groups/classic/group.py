"""Classic group as its log has it: the state of its last `GroupMetadata` record. [P]

Immutable; replay replaces it. A rebalance in progress is in `rebalance` and is not durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import NO_TIMESTAMP
from service.coordinator.shard import CoordinatorRecord
from service.groups import records
from service.groups.protocol import CONSUMER_PROTOCOL, MalformedEmbedded, subscribed_topics
from service.groups.records import ClassicMemberValue, GroupValue

NO_MEMBERS: Final[Mapping[str, ClassicMemberValue]] = MappingProxyType({})


@dataclass(frozen=True)
class ClassicGroup:
    """State of a classic group. `protocol_type` is None for a simple group, which has offsets and no members.

    `state_ms`: when it became empty, or its last rebalance; -1 if not known.
    """

    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_ms: int = NO_TIMESTAMP
    members: Mapping[str, ClassicMemberValue] = field(default_factory=lambda: NO_MEMBERS)

    @classmethod
    def from_value(cls, value: GroupValue) -> ClassicGroup:
        members = {member.member_id: member for member in value.members}
        return cls(
            value.generation,
            value.protocol_type or None,
            value.protocol,
            value.leader,
            value.state_ms,
            MappingProxyType(members) if members else NO_MEMBERS,
        )

    def record(self, group_id: str) -> CoordinatorRecord:
        """Return the record of this state."""
        value = GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            self.state_ms,
            tuple(self.members.values()),
        )
        return records.encode_group(records.GroupKey(group_id), value)

    @cached_property
    def instances(self) -> Mapping[str, str]:
        """Member ids by instance id (static members, KIP-345)."""
        return {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}

    @cached_property
    def subscribed(self) -> frozenset[str] | None:
        """Topics of the members' subscriptions; None if they cannot be known: another protocol type, or
        malformed metadata."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        try:
            return subscribed_topics(member.subscription for member in self.members.values())
        except MalformedEmbedded:
            return None

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Check the ids. Raises UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID."""
        check_member(self.members, self.instances, member_id, instance_id)

    def replacing(self, old_id: str, member: ClassicMemberValue) -> ClassicGroup:
        """Return the group with `member` in the place of `old_id`, also as the leader."""
        members = {(member.member_id if k == old_id else k): m for k, m in self.members.items()}
        members[member.member_id] = member
        leader = member.member_id if self.leader == old_id else self.leader
        return replace(self, leader=leader, members=MappingProxyType(members))


def check_member(
    members: Mapping[str, object], instances: Mapping[str, str], member_id: str, instance_id: str | None
) -> None:
    """Check a member's ids. Raises UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID."""
    if instance_id is not None:
        existing = instances.get(instance_id)
        if existing is not None and existing != member_id:
            raise RequestError(ErrorCode.fenced_instance_id)
        if existing is None:
            raise RequestError(ErrorCode.unknown_member_id)
    if member_id not in members:
        raise RequestError(ErrorCode.unknown_member_id)


EMPTY_GROUP: Final = ClassicGroup()
"""Simple group, which a commit without a group creates."""
