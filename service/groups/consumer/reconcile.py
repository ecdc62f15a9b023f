"""Reconciliation of a member's assignment with its target: revoke first, then assign. [P]

A partition is assigned only once no other member owns it, so each has at most one owner at any time. A member
that must revoke partitions stays in its epoch until it no longer reports them as owned.

Source: KIP-848; Apache Kafka ``CurrentAssignmentBuilder``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.groups.consumer.group import NOTHING_OWNED, ConsumerGroup, ConsumerGroupMember, MemberState
from service.groups.records_modern import Owned, Partitions


class Goal(NamedTuple):
    """Target epoch and target of a member, and the topics that it may own."""

    epoch: int
    target: Partitions
    topic_ids: Collection[UUID]


def reconciled(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    goal: Goal,
    subscription_changed: bool,
    owned: Iterable[Any] | None,
) -> ConsumerGroupMember:
    """Return `member`, reconciled with its goal as far as possible now.

    `owned` are the partitions that it reports (`topic_id`, `partitions` each), None if it does not report
    them. Raises `RequestError` FENCED_MEMBER_EPOCH for a member in a state of a later version.
    """
    match member.state:
        case MemberState.STABLE:
            if member.epoch != goal.epoch:
                return _next(group, member, goal, member.epoch, owned)
            return _without_unsubscribed(member, goal, owned) if subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if _has_any(owned, member.pending_revocation):
                return _without_unsubscribed(member, goal, owned) if subscription_changed else member
            return _next(group, member, goal, member.epoch, owned)
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(group, member, goal, member.epoch, owned)
        case MemberState.UNKNOWN:
            if owned is None or list(owned):
                raise RequestError(
                    ErrorCode.fenced_member_epoch,
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                )
            return _next(group, member, goal, goal.epoch, owned)


def _has_any(owned: Iterable[Any] | None, revoked: Owned) -> bool:
    """Return whether the member may still own some of the revoked partitions; True if it does not report."""
    if owned is None:
        return True
    return any(n in revoked.get(topic.topic_id, ()) for topic in owned for n in topic.partitions)


def _moved(
    member: ConsumerGroupMember, epoch: int, state: MemberState, assigned: Owned, pending: Owned
) -> ConsumerGroupMember:
    return member._replace(
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending,
    )


def _without_unsubscribed(
    member: ConsumerGroupMember, goal: Goal, owned: Iterable[Any] | None
) -> ConsumerGroupMember:
    """Revoke topics that the member no longer subscribes to, in its present epoch."""
    unsubscribed = {t: epochs for t, epochs in member.assigned.items() if t not in goal.topic_ids}
    if not unsubscribed:
        return member
    assigned = {t: epochs for t, epochs in member.assigned.items() if t not in unsubscribed}
    pending = dict(member.pending_revocation)
    for topic_id, epochs in unsubscribed.items():
        pending[topic_id] = {**pending.get(topic_id, {}), **epochs}
    if _has_any(owned, pending):
        return _moved(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending)
    return member._replace(previous_epoch=member.epoch, assigned=assigned)


def _next(
    group: ConsumerGroup, member: ConsumerGroupMember, goal: Goal, epoch: int, owned: Iterable[Any] | None
) -> ConsumerGroupMember:
    assigned: dict[UUID, dict[int, int]] = {}
    revoked: dict[UUID, dict[int, int]] = {}
    given: list[tuple[UUID, int]] = []
    unreleased = False
    for topic_id in dict.fromkeys((*goal.target, *member.assigned)):
        target = goal.target.get(topic_id, ()) if topic_id in goal.topic_ids else ()
        has = member.assigned.get(topic_id, {})
        wanted = frozenset(target)
        kept = {n: since for n, since in has.items() if n in wanted}
        if kept:
            assigned[topic_id] = kept
        if len(kept) < len(has):
            revoked[topic_id] = {n: since for n, since in has.items() if n not in wanted}
        own_pending = member.pending_revocation.get(topic_id, ())
        for number in target:
            if number in kept:
                continue
            if group.owner(topic_id, number) is None or number in own_pending:
                given.append((topic_id, number))
            else:
                unreleased = True
    if revoked and _has_any(owned, revoked):
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoked)
    for topic_id, number in given:
        assigned.setdefault(topic_id, {})[number] = goal.epoch
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return _moved(member, goal.epoch, state, assigned, NOTHING_OWNED)
