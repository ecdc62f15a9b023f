"""Online migration of groups from the classic protocol to KIP-848's and back. [P]

A classic `consumer` group is upgraded by the first ConsumerGroupHeartbeat that joins it. Its members keep
their generation as their epoch and their last assignment as their target, and go on to use the classic
protocol (`consumer/classic_members`). When the last member of the new protocol leaves, the group is
downgraded: the targets become the assignment of a classic group, which begins a rebalance.

A group with a custom assignor cannot be upgraded: the data that its assignor sent to members would be lost.
Source: KIP-848; Apache Kafka ``ConsumerGroup.fromClassicGroup``, ``ClassicGroup.fromConsumerGroup``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.timeline import Journal
from service.coordinator.ports import TopicsView
from service.coordinator.shard import NOTHING, CoordinatorRecord, CoordinatorResult, Effect, Outcome
from service.groups.classic.group import ClassicGroup
from service.groups.classic.groups import ClassicGroups
from service.groups.classic.member import ClassicGroupMember
from service.groups.classic.rebalance_state import Phase, Rebalance
from service.groups.consumer.context import ConsumerGroupContext, Downgrade, Opened, TimerKind, schedule
from service.groups.consumer.fencing import cancelled, sessions, tombstones
from service.groups.consumer.group import ConsumerGroup, ConsumerGroupMember
from service.groups.consumer.replay import apply
from service.groups.consumer.subscriptions import metadata_hash
from service.groups.protocol import (
    CONSUMER_PROTOCOL,
    Assignment,
    MalformedEmbedded,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from service.groups.records import ClassicMemberValue, group_tombstone
from service.groups.records_modern import (
    ClassicMemberMetadata,
    Partitions,
    current_record,
    decode_key,
    decode_value,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)


class ProtocolChanged(NamedTuple):
    """Event of a group's conversion: if its write fails, the group goes on under its old protocol."""

    kind: str
    group_id: str


TO_CLASSIC: Final = "consumer to classic"
TO_CONSUMER: Final = "classic to consumer"


class GroupMigration:
    """Upgrades and downgrades of one shard's groups."""

    def __init__(self, context: ConsumerGroupContext, classics: ClassicGroups) -> None:
        self._context = context
        self._classics = classics

    def upgraded(self, group_id: str, now_ms: int) -> Opened:
        """Return a classic group, or a new one, as a KIP-848 group.

        Raises `RequestError` GROUP_ID_NOT_FOUND if it cannot be upgraded.
        """
        group = ConsumerGroup(group_id, Journal())
        classic = self._context.groups.get(group_id)
        if not isinstance(classic, ClassicGroup):
            return Opened(group)
        ended = group_tombstone(group_id)
        rebalance = self._classics.step(group_id, now_ms).rebalance
        if rebalance.phase is Phase.EMPTY:
            return Opened(group, (ended,), lambda: self._end_classic(group_id, (), now_ms))
        self._check_upgrade(group_id, rebalance)
        made = _as_consumer_group(group_id, rebalance, classic, self._context.topics)
        for record in made:
            key = decode_key(record.key)
            assert key is not None
            assert record.value is not None
            apply(group, key, decode_value(key, record.value))
        due = tuple(
            schedule(TimerKind.SESSION, group_id, member.member_id, now_ms + member.session_timeout_ms)
            for member in rebalance.members.values()
        )
        return Opened(
            group,
            (ended, *made),
            lambda: self._end_classic(group_id, due, now_ms),
            ProtocolChanged(TO_CONSUMER, group_id),
        )

    def _end_classic(self, group_id: str, then: tuple[Effect, ...], now_ms: int) -> tuple[Effect, ...]:
        """Answer members that wait in the classic group: they must rejoin."""
        return (*self._classics.abandon(group_id, ErrorCode.rebalance_in_progress, now_ms), *then)

    def _check_upgrade(self, group_id: str, rebalance: Rebalance) -> None:
        config = self._context.config()
        if not config.migration_policy.upgrades:
            raise _cannot_upgrade(group_id, "online upgrade is disabled")
        if rebalance.protocol_type != CONSUMER_PROTOCOL:
            raise _cannot_upgrade(group_id, "the group does not use the consumer embedded protocol")
        if len(rebalance.members) > config.max_size:
            raise _cannot_upgrade(group_id, "the group size exceeds the consumer group maximum size")

    def downgraded(self, group: ConsumerGroup, leaving: frozenset[str], now_ms: int) -> Downgrade | None:
        """Return the downgrade of the group once `leaving` are gone; None if it is not to be downgraded."""
        staying = len(group.members) - len(leaving)
        modern = len(group.members) - group.classic_count
        if not staying or modern != sum(group.members[member_id].classic is None for member_id in leaving):
            return None
        if not self._may_downgrade(staying):
            return None
        members = [member for member in group.members.values() if member.member_id not in leaving]
        return self._as_classic(group, members, {}, True, now_ms)

    def is_last_modern(self, group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
        """Return whether the group is downgraded once a classic member replaces this one."""
        if member.classic is not None or group.classic_count != len(group.members) - 1:
            return False
        return self._may_downgrade(len(group.members))

    def downgraded_by(
        self,
        group: ConsumerGroup,
        replaced: ConsumerGroupMember,
        joining: ConsumerGroupMember,
        rebalance: bool,
        now_ms: int,
    ) -> Downgrade:
        """Return the downgrade of the group, as `joining` has replaced its last member of the new
        protocol."""
        members = [member for member in group.members.values() if member.member_id != replaced.member_id]
        ids = {replaced.member_id: joining.member_id}
        return self._as_classic(group, [*members, joining], ids, rebalance, now_ms)

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        """Restore a group whose conversion was not written: all sessions restart."""
        if not isinstance(event, ProtocolChanged) or error is None:
            return NOTHING
        group = self._context.groups.get(event.group_id)
        if isinstance(group, ClassicGroup):
            return CoordinatorResult(None, effects=self._classics.loaded(event.group_id, group, now_ms))
        effects = self._classics.abandon(event.group_id, error, now_ms)
        if isinstance(group, ConsumerGroup):
            effects = (*effects, *sessions(self._context, group, now_ms))
        return CoordinatorResult(None, effects=effects)

    def _may_downgrade(self, size: int) -> bool:
        config = self._context.config()
        return config.migration_policy.downgrades and size <= config.classic_max_size

    def _as_classic(
        self,
        group: ConsumerGroup,
        members: list[ConsumerGroupMember],
        replaced: dict[str, str],
        rebalance: bool,
        now_ms: int,
    ) -> Downgrade:
        """Return the downgrade. `replaced`: old member ids, by which others' records have been written
        already."""
        group_id = group.group_id
        classic = _as_classic_group(group, members, replaced, self._context.topics, now_ms)
        begin = self._classics.begin_rebalance if rebalance else self._classics.loaded
        ends = [e for member_id in group.members for e in cancelled(group_id, member_id)]
        return Downgrade(
            (*tombstones(group, replaced), classic.record(group_id)),
            (*ends, *begin(group_id, classic, now_ms)),
            ProtocolChanged(TO_CLASSIC, group_id),
        )


def _cannot_upgrade(group_id: str, reason: str) -> RequestError:
    return RequestError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {group_id} to consumer group because {reason}.",
    )


# Upgrade.


def _as_consumer_group(
    group_id: str, rebalance: Rebalance, classic: ClassicGroup, topics: TopicsView
) -> tuple[CoordinatorRecord, ...]:
    """Return the group's records. A member's assignment is the log's; the result of the present rebalance is
    not known."""
    members: list[ConsumerGroupMember] = []
    targets: list[Partitions] = []
    taken: set[tuple[UUID, int]] = set()
    try:
        for member in rebalance.members.values():
            value = classic.members.get(member.member_id)
            target = _target_of(group_id, value.assignment if value else b"", topics, taken)
            targets.append(target)
            members.append(_as_member(member, rebalance, target))
    except MalformedEmbedded as e:
        raise _cannot_upgrade(group_id, f"the embedded consumer protocol is malformed: {e}") from e
    hashed = metadata_hash({name for member in members for name in member.topics}, topics)
    return (
        *(member_record(group_id, member.member_id, member.subscription()) for member in members),
        epoch_record(group_id, rebalance.generation, hashed),
        *(
            target_record(group_id, member.member_id, target)
            for member, target in zip(members, targets, strict=True)
        ),
        target_epoch_record(group_id, rebalance.generation, 0),
        *(current_record(group_id, member.member_id, member.current()) for member in members),
    )


def _target_of(group_id: str, given: bytes, topics: TopicsView, taken: set[tuple[UUID, int]]) -> Partitions:
    """Return the existing partitions of a member's last assignment; none before its first."""
    if not given:
        return {}
    assignment = decode_assignment(given)
    if assignment.user_data:
        raise _custom_assignor(group_id)
    target: dict[UUID, tuple[int, ...]] = {}
    for name, numbers in assignment.partitions:
        topic = topics.by_name(name)
        if topic is None:
            continue
        there = {(topic.topic_id, n) for n in numbers if 0 <= n < topic.partitions}
        if there & taken:
            raise _custom_assignor(group_id)  # it assigns a partition to several members
        taken |= there
        target[topic.topic_id] = tuple(sorted({*target.get(topic.topic_id, ()), *(n for _, n in there)}))
    return {topic_id: numbers for topic_id, numbers in target.items() if numbers}


def _custom_assignor(group_id: str) -> RequestError:
    return _cannot_upgrade(
        group_id,
        "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
        "assignor before re-attempting the upgrade",
    )


def _as_member(member: ClassicGroupMember, rebalance: Rebalance, target: Partitions) -> ConsumerGroupMember:
    metadata = member.metadata(rebalance.protocol)
    if not metadata and member.protocols:
        metadata = member.protocols[0][1]  # the group has no protocol yet
    subscription = decode_subscription(metadata)
    return ConsumerGroupMember(
        member.member_id,
        epoch=rebalance.generation,
        previous_epoch=rebalance.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        assigned={t: dict.fromkeys(numbers, rebalance.generation) for t, numbers in target.items()},
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms, supported_protocols=member.protocols
        ),
    )


# Downgrade.


def _as_classic_group(
    group: ConsumerGroup,
    members: list[ConsumerGroupMember],
    replaced: dict[str, str],
    topics: TopicsView,
    now_ms: int,
) -> ClassicGroup:
    """Return a stable group whose generation is the group's epoch. Raises `RequestError`
    GROUP_ID_NOT_FOUND."""
    former = {new: old for old, new in replaced.items()}
    protocol = _chosen_protocol(members)
    values = {}
    for member in members:
        assert member.classic is not None
        target = group.targets.get(former.get(member.member_id, member.member_id), {})
        metadata = dict(member.classic.supported_protocols).get(protocol or "", b"")
        try:
            assignment = embedded_assignment(metadata, target, topics)
        except MalformedEmbedded as e:
            raise RequestError(
                ErrorCode.group_id_not_found, f"Cannot downgrade the classic group {group.group_id}: {e}."
            ) from e
        values[member.member_id] = ClassicMemberValue(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.classic.session_timeout_ms,
            metadata,
            assignment,
        )
    leader = next(iter(values), None)
    return ClassicGroup(group.epoch, CONSUMER_PROTOCOL, protocol, leader, now_ms, MappingProxyType(values))


def _chosen_protocol(members: Iterable[ConsumerGroupMember]) -> str | None:
    """Return the common protocol with the most votes; of equals, the first that was named."""
    lists = [[name for name, _ in m.classic.supported_protocols] for m in members if m.classic is not None]
    common = set.intersection(*map(set, lists)) if lists else set()
    votes: dict[str, int] = {}
    for names in lists:
        choice = next((name for name in names if name in common), None)
        if choice is not None:
            votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__) if votes else None


def embedded_assignment(metadata: bytes, target: Partitions, topics: TopicsView) -> bytes:
    """Encode a target for a classic member, in its subscription's version. Raises `MalformedEmbedded`."""
    version = decode_subscription(metadata).version
    partitions = []
    for topic_id, numbers in target.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            partitions.append((topic.name, tuple(numbers)))
    return encode_assignment(Assignment(version, tuple(partitions)))
