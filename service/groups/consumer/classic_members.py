"""Classic-protocol members of a KIP-848 group: their four requests, translated. [P]

REBALANCE_IN_PROGRESS tells a member that its target has changed, and it rejoins. Its generation is its epoch,
and a SyncGroup is answered at once with the partitions that it may own now. A cooperative member stops naming
revoked partitions when it rejoins, and does not pause the others.

Source: Apache Kafka ``GroupMetadataManager.classicGroupJoinToConsumerGroup`` and related methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.shard import CoordinatorResult
from service.groups.consumer import admission, fencing, pipeline
from service.groups.consumer.context import ConsumerGroupContext, TimerKind, Writing, cancel, schedule
from service.groups.consumer.group import ConsumerGroup, ConsumerGroupMember, MemberState
from service.groups.consumer.requests import TopicPartitions
from service.groups.consumer_config import MigrationPolicy
from service.groups.migration import GroupMigration, embedded_assignment
from service.groups.protocol import (
    CONSUMER_PROTOCOL,
    MalformedEmbedded,
    Subscription,
    decode_subscription,
)
from service.groups.records_modern import ClassicMemberMetadata
from service.groups.requests import (
    NO_MEMBER,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    RequestOrigin,
    SyncGroupResponse,
)
from service.wire.schema import millis

_MEMBER_ID_REQUIRED_FROM = 4


class ClassicMembers:
    """Classic-protocol side of one shard's KIP-848 groups."""

    def __init__(self, context: ConsumerGroupContext, migration: GroupMigration) -> None:
        self._context = context
        self._migration = migration

    def join(
        self, group: ConsumerGroup, request: Any, client: RequestOrigin, fresh_id: str, now_ms: int
    ) -> CoordinatorResult[JoinGroupResponse]:
        """Handle a JoinGroup. A rejected request gets a response without a member id; nothing is written."""
        try:
            return self._join(group, request, client, fresh_id, now_ms)
        except RequestError as e:
            return CoordinatorResult(JoinGroupResponse(e.code, NO_MEMBER))

    def _join(
        self, group: ConsumerGroup, request: Any, client: RequestOrigin, fresh_id: str, now_ms: int
    ) -> CoordinatorResult[JoinGroupResponse]:
        if self._context.config().migration_policy is MigrationPolicy.DISABLED:
            raise RequestError(ErrorCode.inconsistent_group_protocol)
        is_new = request.member_id == NO_MEMBER
        member_id = fresh_id if is_new else request.member_id
        admission.check_size(self._context, group, member_id)
        protocols = tuple([(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols])
        if not _supports(group, request.protocol_type, [name for name, _ in protocols]):
            raise RequestError(ErrorCode.inconsistent_group_protocol)
        instance_id = request.group_instance_id
        if is_new and instance_id is None and client.version >= _MEMBER_ID_REQUIRED_FROM:
            return CoordinatorResult(JoinGroupResponse(ErrorCode.member_id_required, member_id))
        out = Writing()
        joins = is_new if instance_id is not None else True
        member = admission.admitted(group, admission.RequestingMember(member_id, instance_id, joins), out)
        subscription = _subscription(protocols[0][1])
        joining = _Joining(group, member, request, client, subscription, protocols)
        updated, turned = self._write_join(joining, now_ms, out)
        out.effects.append(cancel(TimerKind.JOIN, group.group_id, updated.member_id))
        group.volatile.join_due.pop(updated.member_id, None)
        if not turned:
            session_due_ms = now_ms + millis(request.session_timeout)
            sync_due_ms = now_ms + millis(request.rebalance_timeout)
            out.effects += (
                schedule(TimerKind.SESSION, group.group_id, updated.member_id, session_due_ms),
                schedule(TimerKind.SYNC, group.group_id, updated.member_id, sync_due_ms),
            )
        response = JoinGroupResponse(
            ErrorCode.none, updated.member_id, updated.epoch, CONSUMER_PROTOCOL, protocols[0][0]
        )
        return CoordinatorResult(response, tuple(out.records), tuple(out.effects), out.event)

    def _write_join(self, joining: _Joining, now_ms: int, out: Writing) -> tuple[ConsumerGroupMember, bool]:
        """Write the join; returns the resulting member, and whether the group was downgraded with it."""
        context, group, member = self._context, joining.group, joining.member
        existing = group.static_member(joining.request.group_instance_id)
        turns = existing is not None and self._migration.is_last_modern(group, existing)
        updated = joining.updated()
        owned = self._owned(joining.subscription)
        changed = pipeline.write_subscription(
            context, group, member, updated, now_ms, out, joining.client.may_describe
        )
        epoch = pipeline.write_epoch(context, group, member, updated, changed.subscription, out)
        if not turns:
            goal = pipeline.write_targets(context, group, epoch, updated, now_ms, out)
            updated = pipeline.write_assignment(
                context, group, updated, goal, changed.subscription, owned, now_ms, out
            )
            return updated, False
        assert existing is not None
        rebalance = group.target_epoch < epoch
        if not rebalance:
            goal = group.target_epoch, group.target(updated.member_id, updated.instance_id)
            updated = pipeline.write_assignment(
                context, group, updated, goal, changed.subscription, owned, now_ms, out
            )
        out.downgrade(self._migration.downgraded_by(group, existing, updated, rebalance, now_ms))
        return updated, True

    def _owned(self, subscription: Subscription) -> list[TopicPartitions]:
        """Return the partitions that the member reports as owned, by topic id."""
        owned = []
        for name, numbers in subscription.owned:
            topic = self._context.topics.by_name(name)
            if topic is not None:
                owned.append(TopicPartitions(topic.topic_id, numbers))
        return owned

    def sync(self, group: ConsumerGroup, request: Any, now_ms: int) -> CoordinatorResult[SyncGroupResponse]:
        """Handle a SyncGroup: respond with the partitions that the member may own now."""
        out = Writing()
        try:
            member = self._classic_member(group, request)
            assert member.classic is not None
            self._check_protocol(member, request)
            if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._await_join(group, member, now_ms, out)
                return CoordinatorResult(
                    SyncGroupResponse(ErrorCode.rebalance_in_progress), effects=tuple(out.effects)
                )
            assignment = self._embedded(member)
        except RequestError as e:
            return CoordinatorResult(SyncGroupResponse(e.code))
        due_ms = now_ms + member.classic.session_timeout_ms
        effects = (
            cancel(TimerKind.SYNC, group.group_id, member.member_id),
            schedule(TimerKind.SESSION, group.group_id, member.member_id, due_ms),
        )
        response = SyncGroupResponse(ErrorCode.none, request.protocol_type, request.protocol_name, assignment)
        return CoordinatorResult(response, effects=effects)

    def heartbeat(
        self, group: ConsumerGroup, request: Any, now_ms: int
    ) -> CoordinatorResult[HeartbeatResponse]:
        """Handle a Heartbeat: REBALANCE_IN_PROGRESS if the member makes progress by rejoining."""
        out = Writing()
        try:
            member = self._classic_member(group, request)
        except RequestError as e:
            return CoordinatorResult(HeartbeatResponse(e.code))
        assert member.classic is not None
        due_ms = now_ms + member.classic.session_timeout_ms
        out.effects.append(schedule(TimerKind.SESSION, group.group_id, member.member_id, due_ms))
        error = ErrorCode.none
        if (
            member.epoch < group.target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
        ):
            error = ErrorCode.rebalance_in_progress
            self._await_join(group, member, now_ms, out)
        return CoordinatorResult(HeartbeatResponse(error), effects=tuple(out.effects))

    def leave(self, group: ConsumerGroup, request: Any, now_ms: int) -> CoordinatorResult[LeaveGroupResponse]:
        """Handle a LeaveGroup of one or more members, also of members that use the new protocol."""
        answers, leaving = [], {}
        for identity in request.members:
            error = ErrorCode.none
            try:
                member = _leaving(group, identity)
                leaving[member.member_id] = member
            except RequestError as e:
                error = e.code
            answers.append(LeftMember(identity.member_id, identity.group_instance_id, error))
        out = Writing()
        try:
            fencing.fence(self._context, self._migration, group, list(leaving.values()), now_ms, out)
        except RequestError as e:
            return CoordinatorResult(LeaveGroupResponse(e.code))
        response = LeaveGroupResponse(ErrorCode.none, tuple(answers))
        return CoordinatorResult(response, tuple(out.records), tuple(out.effects), out.event)

    def _classic_member(self, group: ConsumerGroup, request: Any) -> ConsumerGroupMember:
        """Return the member. Raises `RequestError` UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        ILLEGAL_GENERATION."""
        member = admission.member_of(group, request.member_id, request.group_instance_id)
        if member.classic is None:
            raise RequestError(ErrorCode.unknown_member_id)
        if member.epoch != request.generation_id:
            raise RequestError(ErrorCode.illegal_generation)
        return member

    def _check_protocol(self, member: ConsumerGroupMember, request: Any) -> None:
        name, _ = _first_protocol(member)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (
            None,
            name,
        ):
            raise RequestError(ErrorCode.inconsistent_group_protocol)

    def _await_join(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now_ms: int, out: Writing
    ) -> None:
        """Start the member's rebalance timeout, if it is not running, within which it has to rejoin."""
        due = group.volatile.join_due
        if due.get(member.member_id, now_ms) <= now_ms:
            due[member.member_id] = now_ms + member.rebalance_timeout_ms
            out.effects.append(
                schedule(TimerKind.JOIN, group.group_id, member.member_id, due[member.member_id])
            )

    def _embedded(self, member: ConsumerGroupMember) -> bytes:
        target = {topic_id: tuple(owned) for topic_id, owned in member.assigned.items()}
        try:
            return embedded_assignment(_first_protocol(member)[1], target, self._context.topics)
        except MalformedEmbedded as e:
            raise RequestError(ErrorCode.unknown_server_error) from e


class _Joining(NamedTuple):
    """A classic member that joins: its previous state, and its request."""

    group: ConsumerGroup
    member: ConsumerGroupMember
    request: Any
    client: RequestOrigin
    subscription: Subscription
    protocols: tuple[tuple[str, bytes], ...]

    def updated(self) -> ConsumerGroupMember:
        rebalance_timeout_ms = millis(self.request.rebalance_timeout)
        member = self.member
        return member._replace(
            instance_id=self.request.group_instance_id or member.instance_id,
            rack_id=self.subscription.rack or member.rack_id,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms
            ),
            topics=frozenset(self.subscription.topics),
            regex="",
            client_id=self.client.client_id,
            client_host=self.client.host,
            classic=ClassicMemberMetadata(
                session_timeout_ms=millis(self.request.session_timeout), supported_protocols=self.protocols
            ),
        )


def _supports(group: ConsumerGroup, protocol_type: str, names: list[str]) -> bool:
    """Return whether the member supports a protocol that all classic members support; any if there are
    none."""
    if protocol_type != CONSUMER_PROTOCOL or not names:
        return False
    classics = [member.classic for member in group.members.values() if member.classic is not None]
    return any(
        all(any(name == own for own, _ in classic.supported_protocols) for classic in classics)
        for name in names
    )


def _subscription(metadata: bytes) -> Subscription:
    try:
        return decode_subscription(metadata)
    except MalformedEmbedded as e:
        raise RequestError(ErrorCode.unknown_server_error, str(e)) from e


def _first_protocol(member: ConsumerGroupMember) -> tuple[str, bytes]:
    """Return the protocol of the member's responses."""
    protocols = member.classic.supported_protocols if member.classic is not None else ()
    return protocols[0] if protocols else ("", b"")


def _waits(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Return whether another member still owns a partition of the member's target."""

    def is_awaited(topic_id: UUID, number: int) -> bool:
        return number not in member.assigned.get(topic_id, ()) and group.owner(topic_id, number) is not None

    target = group.targets.get(member.member_id, {})
    return any(is_awaited(topic_id, number) for topic_id, numbers in target.items() for number in numbers)


def _leaving(group: ConsumerGroup, identity: Any) -> ConsumerGroupMember:
    """Return the member to remove; an operator may name a static member by its instance id alone."""
    if identity.group_instance_id is not None and identity.member_id == NO_MEMBER:
        static = group.static_member(identity.group_instance_id)
        if static is None:
            raise RequestError(ErrorCode.unknown_member_id)
        return static
    return admission.member_of(group, identity.member_id, identity.group_instance_id)
