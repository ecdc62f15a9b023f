"""KIP-848 groups of one shard, behind the shard's interface (`groups/group.ModernGroups`). [P]

Owned by the event loop, with the shard. Groups are kept in the shard's timeline of groups, by id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.timeline import Journal, Timeline
from service.coordinator.ports import TopicsView
from service.coordinator.shard import NOTHING, CoordinatorResult, Effect, Outcome
from service.groups.classic.groups import ClassicGroups
from service.groups.consumer import fencing, pipeline
from service.groups.consumer.classic_members import ClassicMembers
from service.groups.consumer.context import (
    ConsumerGroupContext,
    ConsumerTimer,
    ConsumerWork,
    TimerKind,
    WorkKind,
    Writing,
    schedule,
)
from service.groups.consumer.describe import ConsumerGroupView, described
from service.groups.consumer.group import NEVER, ConsumerGroup, MemberState
from service.groups.consumer.heartbeat import heartbeat
from service.groups.consumer.regex import Resolution
from service.groups.consumer.replay import apply
from service.groups.consumer.requests import ConsumerGroupHeartbeatResponse, DescribedConsumerGroup
from service.groups.consumer.target import TargetAssignment
from service.groups.consumer_config import ConsumerConfig, GroupSettings
from service.groups.metrics import GroupMetrics
from service.groups.migration import GroupMigration
from service.groups.records_modern import KEY_TYPES, EpochKey, decode_key, decode_value
from service.groups.requests import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    RequestOrigin,
    SyncGroupResponse,
)


class RegexesWritten(NamedTuple):
    """Event of the records of a group's resolved regular expressions."""

    group_id: str


class ConsumerGroups:
    """Decisions about KIP-848 groups, and their replay."""

    def __init__(
        self,
        journal: Journal,
        groups: Timeline[str, Any],
        topics: TopicsView,
        classics: ClassicGroups,
        config: Callable[[], ConsumerConfig],
        settings: GroupSettings,
        metrics: GroupMetrics,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._context = ConsumerGroupContext(journal, groups, topics, config, settings, metrics, new_uuid)
        self._migration = GroupMigration(self._context, classics)
        self._classic_members = ClassicMembers(self._context, self._migration)

    # Requests.

    def heartbeat(
        self, request: Any, client: RequestOrigin, now_ms: int
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """Handle a ConsumerGroupHeartbeat, to a group of any kind."""
        return heartbeat(self._context, self._migration, request, client, now_ms)

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Describe the committed state of one group for ConsumerGroupDescribe."""
        group = self._context.groups.committed(group_id)
        if isinstance(group, ConsumerGroup):
            return described(group, self._context.config().assignors, self._context.topics)
        what = f"Group {group_id} not found."
        if group is not None:
            what = f"Group {group_id} is not a consumer group."
        return DescribedConsumerGroup(group_id, ErrorCode.group_id_not_found, what)

    def view(self, group_id: str, group: ConsumerGroup, committed: bool) -> ConsumerGroupView:
        return ConsumerGroupView(group, committed)

    def join(
        self,
        group_id: str,
        group: ConsumerGroup,
        request: Any,
        client: RequestOrigin,
        ticket: int,
        fresh_id: str,
        now_ms: int,
    ) -> CoordinatorResult[JoinGroupResponse]:
        """Handle a JoinGroup to a group that is not empty."""
        return self._classic_members.join(group, request, client, fresh_id, now_ms)

    def sync(
        self,
        group_id: str,
        group: ConsumerGroup,
        request: Any,
        client: RequestOrigin,
        ticket: int,
        now_ms: int,
    ) -> CoordinatorResult[SyncGroupResponse]:
        return self._classic_members.sync(group, request, now_ms)

    def classic_heartbeat(
        self, group_id: str, group: ConsumerGroup, request: Any, client: RequestOrigin, now_ms: int
    ) -> CoordinatorResult[HeartbeatResponse]:
        return self._classic_members.heartbeat(group, request, now_ms)

    def leave(
        self,
        group_id: str,
        group: ConsumerGroup,
        request: Any,
        client: RequestOrigin,
        ticket: int,
        now_ms: int,
    ) -> CoordinatorResult[LeaveGroupResponse]:
        return self._classic_members.leave(group, request, now_ms)

    # Replay.

    def replay(self, offset: int, kind: int, key: bytes, value: bytes | None) -> bool:
        """Replay a record; returns False for a type that is not of these groups. Raises `CorruptionError`."""
        if kind not in KEY_TYPES:
            return False
        parsed = decode_key(key)
        assert parsed is not None
        groups = self._context.groups
        group = groups.get(parsed.group_id)
        if value is None:
            if isinstance(group, ConsumerGroup):
                if isinstance(parsed, EpochKey):
                    del groups[parsed.group_id]
                else:
                    apply(group, parsed, None)
            return True
        decoded = decode_value(parsed, value)
        if not isinstance(group, ConsumerGroup):
            # A classic group here has only offsets, or the log has deleted it already.
            group = groups[parsed.group_id] = ConsumerGroup(parsed.group_id, self._context.journal)
        apply(group, parsed, decoded)
        return True

    # Events.

    def loaded(self, group_id: str, group: ConsumerGroup, now_ms: int) -> tuple[Effect, ...]:
        """Start all sessions, and the timers of members that must revoke partitions."""
        return fencing.sessions(self._context, group, now_ms)

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        """Fence a member whose timer is due, if the timer's reason still holds."""
        if not isinstance(name, ConsumerTimer):
            return NOTHING
        group = self._context.groups.get(name.group_id)
        if not isinstance(group, ConsumerGroup):
            return NOTHING
        member = group.members.get(name.member_id)
        if member is None:
            return NOTHING
        if name.kind is TimerKind.REBALANCE and member.state is not MemberState.UNREVOKED_PARTITIONS:
            return NOTHING
        out = Writing()
        try:
            fencing.fence(self._context, self._migration, group, [member], now_ms, out)
        except RequestError:
            # The downgrade that its removal requires failed: try again later.
            return CoordinatorResult(None, effects=(schedule(name.kind, *name[1:], now_ms + _RETRY_MS),))
        return CoordinatorResult(None, tuple(out.records), tuple(out.effects), out.event)

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome:
        """Apply the result of long work, if its group still exists and is unchanged."""
        if not isinstance(name, ConsumerWork):
            return NOTHING
        group = self._context.groups.get(name.group_id)
        if not isinstance(group, ConsumerGroup):
            return NOTHING
        out = Writing()
        if name.kind is WorkKind.REGEX and isinstance(result, Resolution):
            group.volatile.resolving_until_ms = 0
            group.volatile.resolved_at = result.version
            pipeline.write_resolved(self._context, group, result, out)
            out.event = RegexesWritten(name.group_id)
        elif name.kind is WorkKind.TARGET and isinstance(result, TargetAssignment):
            pipeline.write_made_targets(self._context, group, result, now_ms, out)
        return CoordinatorResult(None, tuple(out.records), tuple(out.effects), out.event)

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        if isinstance(event, RegexesWritten):
            group = self._context.groups.get(event.group_id)
            if error is not None and isinstance(group, ConsumerGroup):
                group.volatile.resolved_at = NEVER
            return NOTHING
        return self._migration.written(event, error, now_ms)

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        """Note new versions of the topics; each group checks its topics at the next heartbeat of any
        member."""
        self._context.topics_version += 1
        if any(self._context.topics.by_name(name) is not None for name in names):
            self._context.new_topics_version = self._context.topics_version
        return NOTHING


_RETRY_MS = 5_000
