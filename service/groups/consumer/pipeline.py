"""Pipeline of every change of a member, by KIP-848 heartbeat or classic join. [P]

Member record → regular expressions → hash of the subscribed topics → epoch → targets → the
member's own assignment. Each step reads the present group and the results of the steps before; none changes
the group, except its volatile notes of work in progress (`group.Volatile`). Source: Apache Kafka
``GroupMetadataManager.consumerGroupHeartbeat``, ``classicGroupJoinToConsumerGroup``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.steps import at_once
from service.groups.consumer import target as targets
from service.groups.consumer.context import (
    ConsumerGroupContext,
    TimerKind,
    WorkKind,
    Writing,
    cancel,
    schedule,
)
from service.groups.consumer.group import (
    WORK_TIMEOUT_MS,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    is_under_way,
)
from service.groups.consumer.reconcile import Goal, reconciled
from service.groups.consumer.regex import Freshness, RegexChange, Resolution, regex_change, resolution
from service.groups.consumer.subscriptions import metadata_hash, names_after, names_resolved
from service.groups.records_modern import (
    PartitionMetadataKey,
    Partitions,
    RegexKey,
    current_record,
    epoch_record,
    member_record,
    regex_record,
    tombstone,
)


class Changed(NamedTuple):
    """Effect of a member's new subscription: `subscription` has changed; `bumps`: the group's epoch rises at
    once."""

    subscription: bool
    bumps: bool


_UNCHANGED: Final = Changed(False, False)


def write_subscription(
    context: ConsumerGroupContext,
    group: ConsumerGroup,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    now_ms: int,
    out: Writing,
    may_describe: Callable[[str], bool] | None = None,
) -> Changed:
    """Write the member's record if it has changed, and start the resolution of regular expressions that is
    due: to topics that the sender of this request may describe."""
    if new is old and not group.regex_members:
        return _UNCHANGED
    if new != old:
        out.records.append(member_record(group.group_id, new.member_id, new.subscription()))
    names_changed = new.topics != old.topics
    interval_ms = context.config().regex_refresh_interval_ms
    fresh = Freshness(context.new_topics_version, interval_ms, now_ms)
    regex: RegexChange = regex_change(group, old, new, fresh)
    if regex.dropped is not None:
        out.records.append(tombstone(RegexKey(group.group_id, regex.dropped)))
    if regex.to_resolve:
        steps = resolution(
            regex.to_resolve, context.topics.names(), context.topics_version, now_ms, may_describe
        )
        out.work(WorkKind.REGEX, group.group_id, steps)
        group.volatile.resolving_until_ms = now_ms + WORK_TIMEOUT_MS
    return Changed(names_changed or regex.changed, names_changed or regex.resolved)


def write_epoch(
    context: ConsumerGroupContext,
    group: ConsumerGroup,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    bumps: bool,
    out: Writing,
) -> int:
    """Return the group's epoch, one higher if the subscriptions or their topics have changed."""
    checked = (context.topics_version, group.epoch)
    if not bumps and group.volatile.checked == checked:
        return group.epoch
    hashed = metadata_hash(names_after(group, ((old, new),)), context.topics)
    if group.has_partition_metadata:
        out.records.append(tombstone(PartitionMetadataKey(group.group_id)))
    if not bumps and hashed == group.metadata_hash:
        group.volatile.checked = checked
        return group.epoch
    out.records.append(epoch_record(group.group_id, group.epoch + 1, hashed))
    context.metrics.consumer_rebalances += 1
    return group.epoch + 1


def write_targets(
    context: ConsumerGroupContext,
    group: ConsumerGroup,
    epoch: int,
    member: ConsumerGroupMember,
    now_ms: int,
    out: Writing,
) -> tuple[int, Partitions]:
    """Return the target epoch and the member's target; makes new targets if they are due."""
    last = group.target_epoch, group.target(member.member_id, member.instance_id)
    if group.target_epoch >= epoch:
        return last
    if not targets.is_due(group.target_ms, context.assignment_interval_ms(group.group_id), now_ms):
        return last
    under_way = group.volatile.assigning
    if under_way is not None and under_way[0] == epoch and is_under_way(under_way[1], now_ms):
        return last
    base = targets.basis(group, epoch, member, context.config().assignors, context.topics)
    if base.is_large:
        _begin_targets(group, base, now_ms, out)
        return last
    made = at_once(targets.make_targets(base))
    out.records += targets.records_of(group.group_id, made, now_ms)
    return epoch, made.targets[member.member_id]


def _begin_targets(group: ConsumerGroup, base: targets.Basis, now_ms: int, out: Writing) -> None:
    out.work(WorkKind.TARGET, group.group_id, targets.make_targets(base))
    group.volatile.assigning = (base.epoch, now_ms + WORK_TIMEOUT_MS)


def write_made_targets(
    context: ConsumerGroupContext,
    group: ConsumerGroup,
    made: targets.TargetAssignment,
    now_ms: int,
    out: Writing,
) -> None:
    """Apply the result of long work: write it, start again, or drop it, as the group has changed
    meanwhile."""
    group.volatile.assigning = None
    if not group.epoch == made.epoch > group.target_epoch:
        return
    if made.is_of(group):
        out.records += targets.records_of(group.group_id, made, now_ms)
    else:
        base = targets.basis(group, group.epoch, None, context.config().assignors, context.topics)
        _begin_targets(group, base, now_ms, out)


def write_assignment(
    context: ConsumerGroupContext,
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    goal: tuple[int, Partitions],
    subscription_changed: bool,
    owned: Iterable[Any] | None,
    now_ms: int,
    out: Writing,
) -> ConsumerGroupMember:
    """Return the member, reconciled as far as possible now. Raises `RequestError` FENCED_MEMBER_EPOCH."""
    target_epoch, target = goal
    if not subscription_changed and member.is_reconciled_to(target_epoch):
        return member
    topic_ids = subscribed_ids(context, group, member)
    moved = reconciled(group, member, Goal(target_epoch, target, topic_ids), subscription_changed, owned)
    if moved == member:
        return member
    out.records.append(current_record(group.group_id, moved.member_id, moved.current()))
    if moved.classic is None:  # classic members have other timers
        if moved.state is MemberState.UNREVOKED_PARTITIONS:
            due_ms = now_ms + moved.rebalance_timeout_ms
            out.effects.append(schedule(TimerKind.REBALANCE, group.group_id, moved.member_id, due_ms))
        else:
            out.effects.append(cancel(TimerKind.REBALANCE, group.group_id, moved.member_id))
    return moved


def subscribed_ids(
    context: ConsumerGroupContext, group: ConsumerGroup, member: ConsumerGroupMember
) -> frozenset[UUID]:
    """Return the ids of the topics that a member may own partitions of."""
    found = (context.topics.by_name(name) for name in group.topics_of(member))
    return frozenset(topic.topic_id for topic in found if topic is not None)


def write_resolved(
    context: ConsumerGroupContext, group: ConsumerGroup, result: Resolution, out: Writing
) -> None:
    """Write the resolved expressions, and the next epoch if the topics have changed."""
    found = {regex: topics for regex, topics in result.topics.items() if regex in group.regex_members}
    changed = False
    for regex, topics in found.items():
        before = group.regexes.get(regex)
        changed = changed or (before.topics if before else frozenset()) != topics
        out.records.append(regex_record(group.group_id, regex, topics, result.version, result.timestamp))
    hashed = metadata_hash(names_resolved(group, found), context.topics)
    if changed or hashed != group.metadata_hash:
        out.records.append(epoch_record(group.group_id, group.epoch + 1, hashed))
        context.metrics.consumer_rebalances += 1
