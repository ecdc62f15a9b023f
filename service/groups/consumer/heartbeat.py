"""ConsumerGroupHeartbeat: a member joins, reports its state, or leaves. [P]

Source: KIP-848, KIP-1082; Apache Kafka ``GroupMetadataManager.consumerGroupHeartbeat``.
"""

from __future__ import annotations

from typing import Any

from service.base.errors import RequestError
from service.coordinator.shard import CoordinatorResult
from service.groups.consumer import admission, fencing, pipeline
from service.groups.consumer.context import (
    ConsumerGroupContext,
    Migration,
    Opened,
    TimerKind,
    Writing,
    schedule,
)
from service.groups.consumer.group import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerGroupMember,
)
from service.groups.consumer.requests import (
    UNCHANGED_MS,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    TopicPartitions,
    check_heartbeat,
    is_full,
    rebalance_timeout_ms,
)
from service.groups.requests import RequestOrigin


def heartbeat(
    context: ConsumerGroupContext, migration: Migration, request: Any, client: RequestOrigin, now_ms: int
) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
    """Handle a ConsumerGroupHeartbeat. A rejected request gets a response with error and message; nothing is
    written."""
    try:
        check_heartbeat(request, client.version, context.config().assignors)
        if request.member_epoch in (LEAVING_EPOCH, AWAY_EPOCH):
            return _leave(context, migration, request, now_ms)
        return _beat(context, migration, request, client, now_ms)
    except RequestError as e:
        return CoordinatorResult(ConsumerGroupHeartbeatResponse(e.code, e.message))


def _beat(
    context: ConsumerGroupContext, migration: Migration, request: Any, client: RequestOrigin, now_ms: int
) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
    joins = request.member_epoch == JOINING_EPOCH
    opened = _opened(context, migration, request.group_id, now_ms) if joins else None
    group = opened.group if opened is not None else context.group(request.group_id)
    admission.check_size(context, group, request.member_id)
    out = Writing(opened)
    owned = request.topic_partitions
    sender = admission.RequestingMember(
        request.member_id or context.new_member_id(), request.instance_id, joins, request.member_epoch, owned
    )
    member = admission.admitted(group, sender, out)
    updated = _updated(member, request, client)
    changed = pipeline.write_subscription(context, group, member, updated, now_ms, out, client.may_describe)
    epoch = pipeline.write_epoch(context, group, member, updated, changed.bumps, out)
    goal = pipeline.write_targets(context, group, epoch, updated, now_ms, out)
    updated = pipeline.write_assignment(
        context, group, updated, goal, changed.subscription, owned, now_ms, out
    )
    if opened is not None and opened.end_classic is not None:
        out.effects[:0] = opened.end_classic()
    due_ms = now_ms + context.session_timeout_ms(group.group_id)
    out.effects.append(schedule(TimerKind.SESSION, group.group_id, updated.member_id, due_ms))
    has_news = joins or is_full(request) or updated.assigned != member.assigned
    response = ConsumerGroupHeartbeatResponse(
        member_id=updated.member_id,
        member_epoch=updated.epoch,
        heartbeat_interval=context.heartbeat_interval_ms(group.group_id),
        assignment=_assignment(updated) if has_news else None,
    )
    return CoordinatorResult(response, tuple(out.records), tuple(out.effects), out.event)


def _opened(context: ConsumerGroupContext, migration: Migration, group_id: str, now_ms: int) -> Opened:
    """Return the group to join: an existing one, a converted classic one, or a new one."""
    found = context.groups.get(group_id)
    if isinstance(found, ConsumerGroup):
        return Opened(found)
    return migration.upgraded(group_id, now_ms)


def _updated(member: ConsumerGroupMember, request: Any, client: RequestOrigin) -> ConsumerGroupMember:
    """Return the member with the request's fields; null fields have not changed. It is not classic any
    more."""
    timeout_ms = rebalance_timeout_ms(request)
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if (
        names is regex is request.instance_id is request.rack_id is request.server_assignor is None
        and timeout_ms == UNCHANGED_MS
        and (member.client_id, member.client_host, member.classic) == (client.client_id, client.host, None)
    ):
        return member
    return member._replace(
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == UNCHANGED_MS else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        client_id=client.client_id,
        client_host=client.host,
        classic=None,
    )


def _assignment(member: ConsumerGroupMember) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        tuple(TopicPartitions(topic_id, tuple(owned)) for topic_id, owned in member.assigned.items())
    )


def _leave(
    context: ConsumerGroupContext, migration: Migration, request: Any, now_ms: int
) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
    group = context.group(request.group_id)
    member = admission.member_of(group, request.member_id, request.instance_id)
    out = Writing()
    if request.instance_id is not None and request.member_epoch == AWAY_EPOCH:
        fencing.leave_temporarily(group, member, out)
    else:
        fencing.fence(context, migration, group, [member], now_ms, out)
    response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    return CoordinatorResult(response, tuple(out.records), tuple(out.effects), out.event)
