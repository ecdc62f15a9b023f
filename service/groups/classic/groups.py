"""Classic groups of a shard: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and their timers. [P]

A protocol machine: requests, timers and outcomes of writes come in, replies and timers go out. Its state
beside the log (`VolatileGroup`) is volatile: rebalances in progress, ids given to members that have not
joined yet, protocols of members besides the chosen one. Durable state is changed by replay of GroupMetadata
alone, and only four decisions write one: the first join of a group, the leader's SyncGroup, the removal of
the last member, and a static member's return.

If a write fails, all waiting requests get its error. Then: after the first join of a group, nothing is left
of the group; after the leader's SyncGroup, the next rebalance begins; after the removal of the last member,
the log's members are members again; after a static member's return, its previous member is back.

Timers are named ``("classic session", group, member)``, ``("classic join", group)`` and ``("classic sync",
group)``. Order of checks and error codes are those of Kafka's `GroupMetadataManager`. Every request gets a
response, even where Kafka forgets one: a request that a later one of its member replaces gets
REBALANCE_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.timeline import Timeline
from service.coordinator.shard import LATER, NOTHING, CoordinatorRecord, CoordinatorResult, Effect, Outcome
from service.groups.classic import static
from service.groups.classic.group import EMPTY_GROUP, ClassicGroup
from service.groups.classic.member import ClassicGroupMember, Protocols, protocols_of
from service.groups.classic.rebalance_state import Phase, Rebalance
from service.groups.classic.rebalance_step import (
    JOIN,
    SESSION,
    SYNC,
    Assigned,
    ClassicEvent,
    Created,
    Emptied,
    RebalanceStep,
    Returned,
    VolatileGroup,
)
from service.groups.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupsConfig
from service.groups.metrics import GroupMetrics
from service.groups.requests import (
    NO_MEMBER,
    NONE,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    RequestOrigin,
    SyncGroupResponse,
)
from service.wire.schema import millis


class ClassicGroups:
    """Classic groups of one shard. `groups` is the durable state; values of other kinds are ignored."""

    def __init__(
        self, groups: Timeline[str, Any], config: Callable[[], GroupsConfig], metrics: GroupMetrics
    ) -> None:
        self._groups = groups
        self._config = config
        self._metrics = metrics
        self._volatile: dict[str, VolatileGroup] = {}

    def step(self, group_id: str, now_ms: int) -> RebalanceStep:
        """Return the step for an event at this group; of an empty group if there is none, or one of another
        kind."""
        group = self._groups.get(group_id)
        classic = group if isinstance(group, ClassicGroup) else EMPTY_GROUP
        volatile = self._volatile.get(group_id)
        return RebalanceStep(
            group_id, classic, VolatileGroup() if volatile is None else volatile, self._config(), now_ms
        )

    def _done(self, step: RebalanceStep) -> None:
        if step.volatile.is_idle:
            self._volatile.pop(step.group_id, None)
        else:
            self._volatile[step.group_id] = step.volatile

    def rebalance_of(self, group_id: str) -> Rebalance | None:
        """Return the rebalance in progress."""
        volatile = self._volatile.get(group_id)
        return None if volatile is None else volatile.rebalance

    def members(self, group_id: str) -> tuple[ClassicGroupMember, ...]:
        """Return the members with all their protocols, for a conversion of the group. Copies nothing."""
        return tuple(self.step(group_id, 0).rebalance.members.values())

    def forget(self, group_id: str) -> None:
        """Drop the volatile state of a deleted group. `abandon` has answered its waiting requests before."""
        self._volatile.pop(group_id, None)

    def abandon(self, group_id: str, error: ErrorCode, now_ms: int) -> tuple[Effect, ...]:
        """Answer all waiting requests with `error`, cancel all timers and drop the group's volatile state."""
        step = self.step(group_id, now_ms)
        for member in step.rebalance.members.values():
            step.end_session(member.member_id)
        step.not_created(error)
        self._volatile.pop(group_id, None)
        return tuple(step.effects)

    def begin_rebalance(self, group_id: str, group: ClassicGroup, now_ms: int) -> tuple[Effect, ...]:
        """Begin a rebalance in `group`, which has just been decided and is not in the log yet."""
        volatile = self._volatile.get(group_id) or VolatileGroup()
        step = RebalanceStep(group_id, group, volatile, self._config(), now_ms)
        for member in group.members.values():
            step.start_session(member.member_id, member.session_timeout_ms)
        step.prepare()
        self._done(step)
        return tuple(step.effects)

    # JoinGroup.

    def join(
        self,
        request: Any,
        client: RequestOrigin,
        ticket: int,
        fresh_id: str,
        now_ms: int,
        instead_of: tuple[CoordinatorRecord, ...] = (),
    ) -> CoordinatorResult[Any]:
        """Handle a JoinGroup. `fresh_id` is a new UUID as text. `instead_of`: tombstones of an empty group of
        another kind, which this one replaces."""
        group_id, member_id = request.group_id, request.member_id
        is_new_group = bool(instead_of) or group_id not in self._groups
        if is_new_group and member_id != NO_MEMBER:
            return _refused_join(ErrorCode.unknown_member_id, member_id)
        step = self.step(group_id, now_ms)
        if not self._has_room(step, member_id):
            step.remove(member_id)
            step.maybe_complete()
            self._done(step)
            refusal = JoinGroupResponse(ErrorCode.group_max_size_reached, NO_MEMBER)
            return step.result(refusal)
        protocols = protocols_of(request)
        if not step.rebalance.supports(request.protocol_type, protocols):
            return _refused_join(ErrorCode.inconsistent_group_protocol, member_id)
        if member_id == NO_MEMBER:
            decision = self._join_new(step, request, client, ticket, fresh_id)
        else:
            decision = self._rejoin(step, request, client, ticket, protocols)
        self._done(step)
        if is_new_group:
            # The group exists in the log before its first rebalance ends.
            created = ClassicGroup(state_ms=now_ms).record(group_id)
            decision = decision._replace(records=(*instead_of, created), event=Created(group_id))
        return decision

    def _has_room(self, step: RebalanceStep, member_id: str) -> bool:
        most = step.config.group_max_size
        phase = step.phase
        if phase is Phase.EMPTY:
            return True
        if phase is Phase.PREPARING:
            member = step.rebalance.members.get(member_id)
            # A waiting member stays: the group may have exceeded its limit when that was set.
            return (member is not None and member.join is not None) or step.rebalance.joining < most
        return member_id in step.rebalance.members or len(step.rebalance.members) < most

    def _join_new(
        self, step: RebalanceStep, request: Any, client: RequestOrigin, ticket: int, fresh_id: str
    ) -> CoordinatorResult[Any]:
        instance_id = request.group_instance_id
        if instance_id is not None:
            new_id = f"{instance_id}-{fresh_id}"
            old_id = step.rebalance.instance(instance_id)
            if old_id is not None:
                return static.rejoin(step, request, client, ticket, old_id, new_id)
            return self._add(step, request, client, ticket, new_id)
        new_id = f"{client.client_id}-{fresh_id}"
        if client.version < 4:
            return self._add(step, request, client, ticket, new_id)
        step.volatile.pending[new_id] = None
        step.start_session(new_id, millis(request.session_timeout))
        return step.result(JoinGroupResponse(ErrorCode.member_id_required, new_id))

    def _add(
        self, step: RebalanceStep, request: Any, client: RequestOrigin, ticket: int, member_id: str
    ) -> CoordinatorResult[Any]:
        rebalance = step.rebalance
        member = ClassicGroupMember(
            member_id,
            request.group_instance_id,
            client.client_id,
            client.host,
            static.rebalance_timeout_ms(request, client),
            millis(request.session_timeout),
            protocols_of(request),
        )
        member.is_new = True
        if rebalance.phase is Phase.PREPARING and rebalance.initial:
            rebalance.joined_since = True
        rebalance.add(member, request.protocol_type)
        rebalance.wait_join(member, ticket)
        step.volatile.pending.pop(member_id, None)
        # A new member that disconnects looks like one that waits for the rebalance: limit its wait.
        step.start_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        step.prepare_or_complete()
        return step.result(LATER)

    def _rejoin(
        self, step: RebalanceStep, request: Any, client: RequestOrigin, ticket: int, protocols: Protocols
    ) -> CoordinatorResult[Any]:
        member_id, rebalance = request.member_id, step.rebalance
        if member_id in step.volatile.pending:
            if request.group_instance_id is not None:
                # Static members do not get ids to join with.
                return _refused_join(ErrorCode.unknown_server_error, member_id)
            return self._add(step, request, client, ticket, member_id)
        try:
            rebalance.check_member(member_id, request.group_instance_id)
        except RequestError as e:
            return _refused_join(e.code, member_id)
        member = rebalance.members[member_id]
        if rebalance.phase is Phase.EMPTY:
            return _refused_join(ErrorCode.unknown_member_id, member_id)
        unchanged = member.protocols == protocols
        if rebalance.phase is Phase.COMPLETING and unchanged:
            # Its response to this generation's join was lost.
            return step.result(rebalance.joined(member_id))
        if rebalance.phase is Phase.STABLE and unchanged and rebalance.leader != member_id:
            return step.result(rebalance.joined(member_id))
        rebalance.update(
            member,
            protocols,
            static.rebalance_timeout_ms(request, client),
            millis(request.session_timeout),
        )
        replaced = rebalance.wait_join(member, ticket)
        step.reply(replaced, JoinGroupResponse(ErrorCode.rebalance_in_progress, member_id))
        step.prepare_or_complete()
        return step.result(LATER)

    # SyncGroup, Heartbeat, LeaveGroup.

    def sync(self, request: Any, ticket: int, now_ms: int) -> CoordinatorResult[Any]:
        step = self.step(request.group_id, now_ms)
        refusal = _refused_sync(step, request)
        if refusal is not None:
            return CoordinatorResult(SyncGroupResponse(refusal))
        member_id = request.member_id
        step.has_synced(member_id)
        if step.phase is Phase.STABLE:
            self._done(step)
            member = step.group.members[member_id]
            return step.result(
                SyncGroupResponse(NONE, step.group.protocol_type, step.group.protocol, member.assignment)
            )
        rebalance = step.rebalance
        waiting = rebalance.members[member_id]
        step.end_sync(waiting, ErrorCode.rebalance_in_progress)
        waiting.sync = ticket
        if rebalance.leader == member_id and not rebalance.assigning:
            members = rebalance.members
            assignments = {a.member_id: a.assignment for a in request.assignments if a.member_id in members}
            step.records.append(rebalance.outcome(assignments).record(request.group_id))
            step.event = Assigned(request.group_id, rebalance.generation)
            rebalance.assigning = True
        return step.result(LATER)

    def heartbeat(self, request: Any, now_ms: int) -> CoordinatorResult[Any]:
        """Handle a Heartbeat: the session begins anew, and a member that must join again is told so
        (REBALANCE_IN_PROGRESS).

        Raises `RequestError` UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        step = self.step(request.group_id, now_ms)
        step.check_member(request.member_id, request.group_instance_id)
        rebalance = step.volatile.rebalance
        if request.generation_id != (step.group if rebalance is None else rebalance).generation:
            raise RequestError(ErrorCode.illegal_generation)
        session_ms = _session_ms(step, request.member_id)
        assert session_ms is not None
        step.start_session(request.member_id, session_ms)
        preparing = step.phase is Phase.PREPARING
        return step.result(HeartbeatResponse(ErrorCode.rebalance_in_progress if preparing else NONE))

    def leave(self, request: Any, now_ms: int) -> CoordinatorResult[Any]:
        step = self.step(request.group_id, now_ms)
        members = tuple(
            LeftMember(identity.member_id, identity.group_instance_id, self._leave(step, identity))
            for identity in request.members
        )
        if any(member.error_code == NONE for member in members):
            if step.phase is Phase.PREPARING:
                step.maybe_complete()
            elif step.rebalance.phase is not Phase.EMPTY:
                step.prepare_or_complete()
        self._done(step)
        return step.result(LeaveGroupResponse(NONE, members))

    def _leave(self, step: RebalanceStep, identity: Any) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER:
            # An operator may remove a static member by its instance id.
            member_id = (
                None
                if identity.group_instance_id is None
                else step.rebalance.instance(identity.group_instance_id)
            )
            if member_id is None:
                return ErrorCode.unknown_member_id
        elif member_id in step.volatile.pending:
            del step.volatile.pending[member_id]
            step.end_session(member_id)
            return NONE
        else:
            try:
                step.rebalance.check_member(member_id, identity.group_instance_id)
            except RequestError as e:
                return e.code
        step.end_session(member_id)
        step.remove(member_id)
        return NONE

    # Offsets.

    def is_alive(self, group_id: str, member_id: str, now_ms: int) -> tuple[Effect, ...]:
        """Restart the session of a member that has committed, as a heartbeat does."""
        step = self.step(group_id, now_ms)
        if step.phase not in (Phase.STABLE, Phase.PREPARING):
            return ()
        session_ms = _session_ms(step, member_id)
        if session_ms is not None:
            step.start_session(member_id, session_ms)
        return tuple(step.effects)

    # Events.

    def loaded(self, group_id: str, group: ClassicGroup, now_ms: int) -> tuple[Effect, ...]:
        """Start all sessions. A group above its size limit rebalances, so that members can be left out."""
        step = self.step(group_id, now_ms)
        for member in group.members.values():
            step.start_session(member.member_id, member.session_timeout_ms)
        if len(group.members) > step.config.group_max_size:
            step.prepare()
            self._done(step)
        return tuple(step.effects)

    def expired(self, name: Hashable, now_ms: int) -> Outcome | None:
        """Handle a due timer; returns None for one that is not of classic groups."""
        match name:
            case (kind, str(group_id), *rest) if kind in (SESSION, JOIN, SYNC):
                if not isinstance(self._groups.get(group_id), ClassicGroup):
                    return NOTHING
                step = self.step(group_id, now_ms)
                if kind == SESSION:
                    _session_has_ended(step, str(rest[0]))
                elif kind == JOIN:
                    step.join_time_is_up()
                else:
                    step.sync_time_is_up()
                self._done(step)
                return step.result(None)
        return None

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome | None:
        """Handle the outcome of a write; returns None for an event that is not of classic groups."""
        if not isinstance(event, ClassicEvent):
            return None
        step = self.step(event.group_id, now_ms)
        match event:
            case Assigned(group_id, generation):
                rebalance = self.rebalance_of(group_id)
                if (
                    rebalance is None
                    or rebalance.phase is not Phase.COMPLETING
                    or rebalance.generation != generation
                ):
                    return NOTHING
                if error is None:
                    step.assigned()
                    self._metrics.classic_rebalances_completed += 1
                else:
                    step.not_assigned(error)
            case Created() if error is not None:
                step.not_created(error)
                step.volatile = VolatileGroup()
            case Emptied() if error is not None:
                step.not_emptied()
            case Returned():
                static.return_written(step, event)
        self._done(step)
        return step.result(None)


def _session_has_ended(step: RebalanceStep, member_id: str) -> None:
    if member_id in step.volatile.pending:
        del step.volatile.pending[member_id]
        if step.phase is Phase.PREPARING and step.all_joined():
            step.complete_join()
        return
    member = step.rebalance.members.get(member_id)
    if member is not None and not member.waits:
        step.remove_and_rebalance(member_id)


def _session_ms(step: RebalanceStep, member_id: str) -> int | None:
    rebalance = step.volatile.rebalance
    if rebalance is None:
        value = step.group.members.get(member_id)
        return None if value is None else value.session_timeout_ms
    member = rebalance.members.get(member_id)
    return None if member is None else member.session_timeout_ms


def _refused_join(error: ErrorCode, member_id: str) -> CoordinatorResult[Any]:
    return CoordinatorResult(JoinGroupResponse(error, member_id))


def _refused_sync(step: RebalanceStep, request: Any) -> ErrorCode | None:
    if step.phase is Phase.EMPTY:
        return ErrorCode.unknown_member_id
    try:
        step.check_member(request.member_id, request.group_instance_id)
    except RequestError as e:
        return e.code
    group: ClassicGroup | Rebalance = (
        step.group if step.volatile.rebalance is None else step.volatile.rebalance
    )
    if request.generation_id != group.generation:
        return ErrorCode.illegal_generation
    for ours, theirs in (
        (group.protocol_type, request.protocol_type),
        (group.protocol, request.protocol_name),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            return ErrorCode.inconsistent_group_protocol
    if step.phase is Phase.PREPARING:
        return ErrorCode.rebalance_in_progress
    return None
