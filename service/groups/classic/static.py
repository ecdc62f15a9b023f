"""Static members that return: a known instance joins without a member id (KIP-345). [P]

It gets a new member id, and the holder of the old one is fenced. In a stable group whose protocol stays the
same, one record replaces the member without a rebalance; if it leads, JoinGroup 9 lets it skip its assignment
(KIP-814). Before that version the response names the old id as the leader, so that it does not assign.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.coordinator.shard import LATER, CoordinatorResult
from service.groups.classic.members import Member, protocols_of, select_protocol
from service.groups.classic.rebalance import Phase
from service.groups.classic.rebalance_step import Returned, Turn
from service.groups.requests import (
    NO_MEMBER,
    NONE,
    Client,
    JoinGroupMember,
    JoinGroupResponse,
)
from service.wire.schema import millis


def come_back(
    turn: Turn, request: Any, client: Client, ticket: int, old_id: str, new_id: str
) -> CoordinatorResult[Any]:
    """Let the instance that was `old_id` join as `new_id`."""
    if turn.phase is Phase.STABLE:
        decision = _undisturbed(turn, request, client, old_id, new_id)
        if decision is not None:
            return decision
    this = turn.round
    known = this.members[old_id]
    member = Member(
        new_id,
        known.instance_id,
        known.client_id,
        known.client_host,
        rebalance_timeout_ms(request, client),
        millis(request.session_timeout),
        protocols_of(request),
    )
    turn.end_join(known, ErrorCode.fenced_instance_id)
    turn.end_sync(known, ErrorCode.fenced_instance_id)
    turn.end_session(old_id)
    this.replace(old_id, member)
    turn.start_session(new_id, known.session_timeout_ms)
    this.wait_join(member, ticket)
    # In CompletingRebalance, too: the leader may have received the old id already.
    turn.rebalance()
    return turn.decision(LATER)


def _undisturbed(
    turn: Turn, request: Any, client: Client, old_id: str, new_id: str
) -> CoordinatorResult[Any] | None:
    """Replace the member without a rebalance; returns None if the group's protocol would change."""
    group, protocols = turn.group, protocols_of(request)
    all_protocols = {member_id: m.protocols for member_id, m in turn.round.members.items()}
    if select_protocol(all_protocols | {old_id: protocols}) != group.protocol:
        return None
    old = group.members[old_id]
    member = Member.of_value(old, protocols)
    member.member_id = new_id
    member.rebalance_timeout_ms = rebalance_timeout_ms(request, client)
    member.session_timeout_ms = millis(request.session_timeout)
    after = group.replacing(old_id, member.value(group.protocol, old.assignment))
    turn.live.protocols = all_protocols | {new_id: protocols}
    turn.has_synced(old_id)
    turn.end_session(old_id)
    turn.start_session(new_id, old.session_timeout_ms)
    turn.records.append(after.record(turn.group_id))
    turn.event = Returned(turn.group_id, old_id, new_id)
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
    return turn.decision(response)


def returned(turn: Turn, event: Returned) -> None:
    """Apply the outcome of the record of a return without rebalance: it is committed, or failed."""
    live = turn.live
    if event.new_id in turn.group.members:
        live.protocols.pop(event.old_id, None)
        return
    live.protocols.pop(event.new_id, None)
    if live.round is None or event.new_id not in live.round.members:
        turn.end_session(event.new_id)
    old = turn.group.members.get(event.old_id)
    if old is not None and live.round is None:
        turn.start_session(event.old_id, old.session_timeout_ms)


def rebalance_timeout_ms(request: Any, client: Client) -> int:
    """Return the rebalance timeout; JoinGroup 0 has none, and the session timeout stands for it."""
    return millis(request.session_timeout if client.version == 0 else request.rebalance_timeout)
