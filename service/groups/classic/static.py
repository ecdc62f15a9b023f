"""Static members that return: a known instance joins without a member id (KIP-345). [P]

It gets a new member id, and the holder of the old one is fenced. In a stable group whose protocol stays the
same, one record replaces the member without a rebalance; if it leads, JoinGroup 9 lets it skip its assignment
(KIP-814). Before that version the response names the old id as the leader, so that it does not assign.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.coordinator.shard import LATER, CoordinatorResult
from service.groups.classic.member import ClassicGroupMember, protocols_of, select_protocol
from service.groups.classic.rebalance_state import Phase
from service.groups.classic.rebalance_step import RebalanceStep, Returned
from service.groups.requests import (
    NO_MEMBER,
    NONE,
    JoinGroupMember,
    JoinGroupResponse,
    RequestOrigin,
)
from service.wire.schema import millis


def rejoin(
    step: RebalanceStep, request: Any, client: RequestOrigin, ticket: int, old_id: str, new_id: str
) -> CoordinatorResult[Any]:
    """Let the instance that was `old_id` join as `new_id`."""
    if step.phase is Phase.STABLE:
        decision = _replace_without_rebalance(step, request, client, old_id, new_id)
        if decision is not None:
            return decision
    rebalance = step.rebalance
    known = rebalance.members[old_id]
    member = ClassicGroupMember(
        new_id,
        known.instance_id,
        known.client_id,
        known.client_host,
        rebalance_timeout_ms(request, client),
        millis(request.session_timeout),
        protocols_of(request),
    )
    step.end_join(known, ErrorCode.fenced_instance_id)
    step.end_sync(known, ErrorCode.fenced_instance_id)
    step.end_session(old_id)
    rebalance.replace(old_id, member)
    step.start_session(new_id, known.session_timeout_ms)
    rebalance.wait_join(member, ticket)
    # In CompletingRebalance, too: the leader may have received the old id already.
    step.prepare_or_complete()
    return step.result(LATER)


def _replace_without_rebalance(
    step: RebalanceStep, request: Any, client: RequestOrigin, old_id: str, new_id: str
) -> CoordinatorResult[Any] | None:
    """Replace the member without a rebalance; returns None if the group's protocol would change."""
    group, protocols = step.group, protocols_of(request)
    all_protocols = {member_id: m.protocols for member_id, m in step.rebalance.members.items()}
    if select_protocol(all_protocols | {old_id: protocols}) != group.protocol:
        return None
    old = group.members[old_id]
    member = ClassicGroupMember.of_value(old, protocols)
    member.member_id = new_id
    member.rebalance_timeout_ms = rebalance_timeout_ms(request, client)
    member.session_timeout_ms = millis(request.session_timeout)
    after = group.replacing(old_id, member.value(group.protocol, old.assignment))
    step.volatile.protocols = all_protocols | {new_id: protocols}
    step.has_synced(old_id)
    step.end_session(old_id)
    step.start_session(new_id, old.session_timeout_ms)
    step.records.append(after.record(step.group_id))
    step.event = Returned(step.group_id, old_id, new_id)
    skips = client.version >= 9
    leads = after.leader == new_id
    response = JoinGroupResponse(
        NONE,
        new_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        (after.leader if skips else group.leader) or NO_MEMBER,
        skip_assignment=skips and leads,
        members=tuple(
            JoinGroupMember(m.member_id, m.instance_id, m.subscription) for m in after.members.values()
        )
        if skips and leads
        else (),
    )
    return step.result(response)


def return_written(step: RebalanceStep, event: Returned) -> None:
    """Apply the outcome of the record of a return without rebalance: it is committed, or failed."""
    volatile = step.volatile
    if event.new_id in step.group.members:
        volatile.protocols.pop(event.old_id, None)
        return
    volatile.protocols.pop(event.new_id, None)
    if volatile.rebalance is None or event.new_id not in volatile.rebalance.members:
        step.end_session(event.new_id)
    old = step.group.members.get(event.old_id)
    if old is not None and volatile.rebalance is None:
        step.start_session(event.old_id, old.session_timeout_ms)


def rebalance_timeout_ms(request: Any, client: RequestOrigin) -> int:
    """Return the rebalance timeout; JoinGroup 0 has none, and the session timeout stands for it."""
    return millis(request.session_timeout if client.version == 0 else request.rebalance_timeout)
