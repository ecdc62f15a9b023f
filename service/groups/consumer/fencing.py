"""Fencing of members of a KIP-848 group, and what ends with them: records, timers, the group. [P]

A member is *fenced* by its removal: its records get tombstones, which frees its partitions, and the group's
epoch rises. A request with another epoch than the member's is refused before, by `admission`. Source:
KIP-848, KIP-345; Apache Kafka ``GroupMetadataManager``.
"""

from __future__ import annotations

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
    PartitionMetadataKey,
    RegexKey,
    TargetEpochKey,
    TargetKey,
    current_record,
    epoch_record,
    tombstone,
)


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
        out.records += removal(group.group_id, member.member_id)
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


def removal(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones of one member's records."""
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
