"""View of a classic group for offsets and administration: its durable state and its rebalance. [P]"""

from __future__ import annotations

from typing import Literal

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import NO_TIMESTAMP
from service.coordinator.shard import CoordinatorRecord
from service.groups import records
from service.groups.classic.group import ClassicGroup
from service.groups.classic.rebalance_state import Phase, Rebalance
from service.groups.group import CheckPartition
from service.groups.protocol import CONSUMER_PROTOCOL, MalformedEmbedded, subscribed_topics
from service.groups.requests import NO_MEMBER, DescribedGroup, DescribedMember


class ClassicGroupView:
    """A `Group` of the classic protocol."""

    __slots__ = ("_group", "_group_id", "_rebalance")

    def __init__(self, group_id: str, group: ClassicGroup, rebalance: Rebalance | None) -> None:
        self._group_id = group_id
        self._group = group
        self._rebalance = rebalance

    @property
    def kind(self) -> Literal["classic"]:
        return "classic"

    @property
    def _phase(self) -> Phase:
        if self._rebalance is not None:
            return self._rebalance.phase
        return Phase.STABLE if self._group.members else Phase.EMPTY

    @property
    def state(self) -> str:
        return self._phase.value

    @property
    def protocol_type(self) -> str | None:
        return self._group.protocol_type if self._rebalance is None else self._rebalance.protocol_type

    @property
    def member_count(self) -> int:
        return len(self._group.members if self._rebalance is None else self._rebalance.members)

    @property
    def is_empty(self) -> bool:
        return self._phase is Phase.EMPTY

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int,
        *,
        is_transactional: bool = False,
    ) -> CheckPartition | None:
        phase = self._phase
        if epoch < 0 and phase is Phase.EMPTY:
            return None
        if epoch < 0 and member_id == NO_MEMBER and instance_id is None:
            if is_transactional:
                return None
            raise RequestError(ErrorCode.unknown_member_id)
        generation = self._check_member(member_id, instance_id)
        if epoch != generation:
            raise RequestError(ErrorCode.illegal_generation)
        if phase is Phase.COMPLETING and not is_transactional:
            raise RequestError(ErrorCode.rebalance_in_progress)
        return None

    def _check_member(self, member_id: str, instance_id: str | None) -> int:
        """Return the member's generation."""
        if self._rebalance is not None:
            self._rebalance.check_member(member_id, instance_id)
            return self._rebalance.generation
        self._group.check_member(member_id, instance_id)
        return self._group.generation

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Allow any member, and none."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            # The coordinator does not know what its members read.
            raise RequestError(ErrorCode.non_empty_group)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise RequestError(ErrorCode.non_empty_group)

    def is_subscribed_to(self, topic: str) -> bool:
        subscribed = self._subscribed()
        return self.protocol_type == CONSUMER_PROTOCOL if subscribed is None else topic in subscribed

    def _subscribed(self) -> frozenset[str] | None:
        """Return the topics of the last generation that has begun (Kafka `ClassicGroup.subscribedTopics`)."""
        rebalance = self._rebalance
        if rebalance is None or rebalance.subscriptions is None:
            return self._group.subscribed
        if rebalance.protocol_type != CONSUMER_PROTOCOL:
            return None
        try:
            return subscribed_topics(rebalance.subscriptions)
        except MalformedEmbedded:
            return None

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        if self.protocol_type is None:
            return commit_ms
        if self.is_empty:
            since_ms = self._group.state_ms
            return commit_ms if since_ms == NO_TIMESTAMP else since_ms
        if self._phase is Phase.STABLE and self.protocol_type == CONSUMER_PROTOCOL:
            return None if self._group.subscribed is None else commit_ms
        return None

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        return (records.group_tombstone(self._group_id),)

    def describe(self) -> DescribedGroup:
        """Describe the group; members' metadata only while it is stable, as it has a protocol then."""
        if self._rebalance is not None:
            given = {} if self._rebalance.forgot_assignments else self._group.members
            members = tuple(
                DescribedMember(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    b"",
                    given[m.member_id].assignment if m.member_id in given else b"",
                )
                for m in self._rebalance.members.values()
            )
            return DescribedGroup(self._group_id, self.state, self.protocol_type or "", members=members)
        values = self._group.members.values()
        return DescribedGroup(
            self._group_id,
            self.state,
            self.protocol_type or "",
            (self._group.protocol or "") if values else "",
            tuple(
                DescribedMember(
                    m.member_id, m.instance_id, m.client_id, m.client_host, m.subscription, m.assignment
                )
                for m in values
            ),
        )
