"""Membership in a KIP-848 group: checks of ids and epochs, static members, fencing. [P]

A member is *fenced* by its removal: its records get tombstones, which frees its partitions, and the group's
epoch rises. Source: KIP-848, KIP-345; Apache Kafka ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.shard import Cancel, CoordinatorRecord, Effect
from service.groups.consumer.context import (
    ConsumerGroupContext,
    Migration,
    TimerKind,
    Writing,
    cancel,
    schedule,
)
from service.groups.consumer.group import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    NOTHING_OWNED,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
)
from service.groups.consumer.subscriptions import metadata_hash, names_after
from service.groups.records_modern import (
    CurrentKey,
    EpochKey,
    MemberKey,
    ModernKey,
    Owned,
    PartitionMetadataKey,
    RegexKey,
    TargetEpochKey,
    TargetKey,
    current_record,
    epoch_record,
    member_record,
    target_record,
    tombstone,
)

_REJOIN: Final = "The member must abandon all its partitions and rejoin."


class RequestingMember(NamedTuple):
    """Sender of a request. `joins`: it may become a member if it is unknown. `epoch`: None for a classic
    member."""

    member_id: str
    instance_id: str | None
    joins: bool
    epoch: int | None = None
    owned: Iterable[Any] | None = ()


def check_size(context: ConsumerGroupContext, group: ConsumerGroup, member_id: str) -> None:
    """Check the size limit. Raises `RequestError` GROUP_MAX_SIZE_REACHED for a new member of a full group."""
    most = context.config().max_size
    if len(group.members) >= most and member_id not in group.members:
        raise RequestError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {most} members.",
        )


def admitted(group: ConsumerGroup, sender: RequestingMember, out: Writing) -> ConsumerGroupMember:
    """Return the member, existing or new. Writes records for one that replaces a static member.

    Raises `RequestError` UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
    """
    if sender.instance_id is not None:
        return _admitted_static(group, sender, sender.instance_id, out)
    member = group.members.get(sender.member_id)
    if member is None:
        if not sender.joins:
            raise _unknown(group, sender.member_id)
        member = ConsumerGroupMember(sender.member_id)
    _check_epoch(member, sender)
    return member


def _admitted_static(
    group: ConsumerGroup, sender: RequestingMember, instance_id: str, out: Writing
) -> ConsumerGroupMember:
    existing = group.static_member(instance_id)
    if not sender.joins:
        if existing is None:
            raise _unknown_instance(instance_id)
        check_instance(existing, sender.member_id)
        _check_epoch(existing, sender)
        return existing
    if existing is None:
        return group.members.get(sender.member_id) or ConsumerGroupMember(sender.member_id)
    is_classic = sender.epoch is None
    if not is_classic and existing.classic is None and existing.epoch != AWAY_EPOCH:
        raise RequestError(
            ErrorCode.unreleased_instance_id,
            f"Static member {sender.member_id} with instance id {instance_id} cannot join the group because "
            f"the instance id is owned by {existing.member_id} member.",
        )
    member = existing._replace(member_id=sender.member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    out.records += _removal(group.group_id, existing.member_id)
    out.records += (
        member_record(group.group_id, member.member_id, member.subscription()),
        target_record(group.group_id, member.member_id, group.target(existing.member_id)),
        current_record(group.group_id, member.member_id, member.current()),
    )
    return member


def check_instance(member: ConsumerGroupMember, member_id: str) -> None:
    """Check the owner of an instance id. Raises `RequestError` FENCED_INSTANCE_ID if it is another member."""
    if member.member_id != member_id:
        raise RequestError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {member.instance_id} was fenced by member "
            f"{member.member_id}.",
        )


def member_of(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """Return the member. Raises `RequestError` UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise _unknown(group, member_id)
        return member
    static = group.static_member(instance_id)
    if static is None:
        raise _unknown_instance(instance_id)
    check_instance(static, member_id)
    return static


def _check_epoch(member: ConsumerGroupMember, sender: RequestingMember) -> None:
    """Check the epoch. The previous epoch is accepted from a member that owns only assigned partitions: its
    last response was lost."""
    epoch = sender.epoch
    if epoch is None or epoch == JOINING_EPOCH or epoch == member.epoch:
        return
    if epoch < member.epoch and epoch == member.previous_epoch and _is_within(sender.owned, member.assigned):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    raise RequestError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). {_REJOIN}",
    )


def _is_within(owned: Iterable[Any] | None, assigned: Owned) -> bool:
    if owned is None:
        return False
    return all(n in assigned.get(topic.topic_id, ()) for topic in owned for n in topic.partitions)


def _unknown(group: ConsumerGroup, member_id: str) -> RequestError:
    return RequestError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
    )


def _unknown_instance(instance_id: str) -> RequestError:
    return RequestError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")


def leave_temporarily(group: ConsumerGroup, member: ConsumerGroupMember, out: Writing) -> None:
    """Mark a static member as temporarily gone. It keeps its partitions, which go to its replacement."""
    out.records.append(
        current_record(
            group.group_id,
            member.member_id,
            member._replace(
                epoch=AWAY_EPOCH,
                pending_revocation=NOTHING_OWNED,
                assigned={topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.assigned.items()},
            ).current(),
        )
    )


def fence(
    context: ConsumerGroupContext,
    migration: Migration,
    group: ConsumerGroup,
    members: list[ConsumerGroupMember],
    now_ms: int,
    out: Writing,
) -> None:
    """Remove these members; downgrade the group if only classic members remain and the policy allows it."""
    if not members:
        return
    leaving = frozenset(member.member_id for member in members)
    downgrade = migration.downgraded(group, leaving, now_ms)
    if downgrade is not None:
        out.downgrade(downgrade)
        return
    for member in members:
        out.records += _removal(group.group_id, member.member_id)
    gone: dict[str, int] = {}
    for member in members:
        if member.regex:
            gone[member.regex] = gone.get(member.regex, 0) + 1
    out.records += [
        tombstone(RegexKey(group.group_id, regex))
        for regex, count in gone.items()
        if group.regex_members.get(regex) == count
    ]
    hashed = metadata_hash(names_after(group, [(member, None) for member in members]), context.topics)
    out.records.append(epoch_record(group.group_id, group.epoch + 1, hashed))
    for member in members:
        # Keep the session's timer: it ends the membership if this write fails.
        out.effects += cancelled(group.group_id, member.member_id)[1:]


def cancelled(group_id: str, member_id: str) -> list[Cancel]:
    """Return cancellations of all timers of a member, the session's first."""
    return [cancel(kind, group_id, member_id) for kind in TimerKind]


def sessions(context: ConsumerGroupContext, group: ConsumerGroup, now_ms: int) -> tuple[Effect, ...]:
    """Start all sessions, and the timers of members that must revoke partitions."""
    effects: list[Effect] = []
    due_ms = now_ms + context.session_timeout_ms(group.group_id)
    for member in group.members.values():
        effects.append(schedule(TimerKind.SESSION, group.group_id, member.member_id, due_ms))
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            revoked_ms = now_ms + member.rebalance_timeout_ms
            effects.append(schedule(TimerKind.REBALANCE, group.group_id, member.member_id, revoked_ms))
    return tuple(effects)


def _removal(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    return [
        tombstone(CurrentKey(group_id, member_id)),
        tombstone(TargetKey(group_id, member_id)),
        tombstone(MemberKey(group_id, member_id)),
    ]


def tombstones(group: ConsumerGroup, replaced: dict[str, str] | None = None) -> tuple[CoordinatorRecord, ...]:
    """Return the records that delete a group. `replaced`: old ids of members whose records have been
    replaced."""
    group_id = group.group_id
    ids = [(replaced or {}).get(member_id, member_id) for member_id in group.members]
    keys: tuple[ModernKey, ...] = (
        *(CurrentKey(group_id, member_id) for member_id in ids),
        *(TargetKey(group_id, member_id) for member_id in ids),
        TargetEpochKey(group_id),
        *(MemberKey(group_id, member_id) for member_id in ids),
        *(RegexKey(group_id, regex) for regex in group.regexes),
        PartitionMetadataKey(group_id),
        EpochKey(group_id),
    )
    return tuple([tombstone(key) for key in keys])
