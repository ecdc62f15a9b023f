"""Admission of a request's sender to a KIP-848 group: checks of ids and epochs, static members. [P]

Source: KIP-848, KIP-345; Apache Kafka ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.groups.consumer.context import ConsumerGroupContext, Writing
from service.groups.consumer.fencing import removal
from service.groups.consumer.group import AWAY_EPOCH, JOINING_EPOCH, ConsumerGroup, ConsumerGroupMember
from service.groups.records_modern import Owned, current_record, member_record, target_record

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
    out.records += removal(group.group_id, existing.member_id)
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
