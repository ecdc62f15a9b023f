"""Classic groups of a shard: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and their timers. [P]

A protocol machine: requests, timers and outcomes of writes come in, replies and timers go out. Its state
beside the log (`Live`) is volatile: rebalances in progress, ids given to members that have not joined yet,
protocols of members besides the chosen one. Durable state is changed by replay of GroupMetadata alone, and
only four decisions write one: the first join of a group, the leader's SyncGroup, the removal of the last
member, and a static member's return.

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
from service.groups.classic.members import Member, Protocols, protocols_of
from service.groups.classic.rebalance import Phase, Round
from service.groups.classic.rebalance_step import (
    JOIN,
    SESSION,
    SYNC,
    Assigned,
    ClassicEvent,
    Created,
    Emptied,
    Live,
    Returned,
    Turn,
)
from service.groups.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupsConfig
from service.groups.metrics import GroupMetrics
from service.groups.requests import (
    NO_MEMBER,
    NONE,
    Client,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
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
        self._lives: dict[str, Live] = {}

    def turn(self, group_id: str, now_ms: int) -> Turn:
        """Return the step for an event at this group; of an empty group if there is none, or one of another
        kind."""
        group = self._groups.get(group_id)
        classic = group if isinstance(group, ClassicGroup) else EMPTY_GROUP
        live = self._lives.get(group_id)
        return Turn(group_id, classic, Live() if live is None else live, self._config(), now_ms)

    def _done(self, turn: Turn) -> None:
        if turn.live.is_idle:
            self._lives.pop(turn.group_id, None)
        else:
            self._lives[turn.group_id] = turn.live

    def round_of(self, group_id: str) -> Round | None:
        """Return the rebalance in progress."""
        live = self._lives.get(group_id)
        return None if live is None else live.round

    def members(self, group_id: str) -> tuple[Member, ...]:
        """Return the members with all their protocols, for a conversion of the group. Copies nothing."""
        return tuple(self.turn(group_id, 0).round.members.values())

    def forget(self, group_id: str) -> None:
        """Drop the volatile state of a deleted group. `abandon` has answered its waiting requests before."""
        self._lives.pop(group_id, None)

    def abandon(self, group_id: str, error: ErrorCode, now_ms: int) -> tuple[Effect, ...]:
        """Answer all waiting requests with `error`, cancel all timers and drop the group's volatile state."""
        turn = self.turn(group_id, now_ms)
        for member in turn.round.members.values():
            turn.end_session(member.member_id)
        turn.not_created(error)
        self._lives.pop(group_id, None)
        return tuple(turn.effects)

    def rebalance(self, group_id: str, group: ClassicGroup, now_ms: int) -> tuple[Effect, ...]:
        """Begin a rebalance in `group`, which has just been decided and is not in the log yet."""
        live = self._lives.get(group_id) or Live()
        turn = Turn(group_id, group, live, self._config(), now_ms)
        for member in group.members.values():
            turn.start_session(member.member_id, member.session_timeout_ms)
        turn.prepare()
        self._done(turn)
        return tuple(turn.effects)

    # JoinGroup.

    def join(
        self,
        request: Any,
        client: Client,
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
        turn = self.turn(group_id, now_ms)
        if not self._has_room(turn, member_id):
            turn.remove(member_id)
            turn.maybe_complete()
            self._done(turn)
            refusal = JoinGroupResponse(ErrorCode.group_max_size_reached, NO_MEMBER)
            return turn.decision(refusal)
        protocols = protocols_of(request)
        if not turn.round.supports(request.protocol_type, protocols):
            return _refused_join(ErrorCode.inconsistent_group_protocol, member_id)
        if member_id == NO_MEMBER:
            decision = self._join_anew(turn, request, client, ticket, fresh_id)
        else:
            decision = self._join_again(turn, request, client, ticket, protocols)
        self._done(turn)
        if is_new_group:
            # The group exists in the log before its first rebalance ends.
            created = ClassicGroup(state_ms=now_ms).record(group_id)
            decision = decision._replace(records=(*instead_of, created), event=Created(group_id))
        return decision

    def _has_room(self, turn: Turn, member_id: str) -> bool:
        most = turn.config.group_max_size
        phase = turn.phase
        if phase is Phase.EMPTY:
            return True
        if phase is Phase.PREPARING:
            member = turn.round.members.get(member_id)
            # A waiting member stays: the group may have exceeded its limit when that was set.
            return (member is not None and member.join is not None) or turn.round.joining < most
        return member_id in turn.round.members or len(turn.round.members) < most

    def _join_anew(
        self, turn: Turn, request: Any, client: Client, ticket: int, fresh_id: str
    ) -> CoordinatorResult[Any]:
        instance_id = request.group_instance_id
        if instance_id is not None:
            new_id = f"{instance_id}-{fresh_id}"
            old_id = turn.round.instance(instance_id)
            if old_id is not None:
                return static.come_back(turn, request, client, ticket, old_id, new_id)
            return self._add(turn, request, client, ticket, new_id)
        new_id = f"{client.client_id}-{fresh_id}"
        if client.version < 4:
            return self._add(turn, request, client, ticket, new_id)
        turn.live.pending[new_id] = None
        turn.start_session(new_id, millis(request.session_timeout))
        return turn.decision(JoinGroupResponse(ErrorCode.member_id_required, new_id))

    def _add(
        self, turn: Turn, request: Any, client: Client, ticket: int, member_id: str
    ) -> CoordinatorResult[Any]:
        this = turn.round
        member = Member(
            member_id,
            request.group_instance_id,
            client.client_id,
            client.host,
            static.rebalance_timeout_ms(request, client),
            millis(request.session_timeout),
            protocols_of(request),
        )
        member.is_new = True
        if this.phase is Phase.PREPARING and this.initial:
            this.joined_since = True
        this.add(member, request.protocol_type)
        this.wait_join(member, ticket)
        turn.live.pending.pop(member_id, None)
        # A new member that disconnects looks like one that waits for the rebalance: limit its wait.
        turn.start_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        turn.rebalance()
        return turn.decision(LATER)

    def _join_again(
        self, turn: Turn, request: Any, client: Client, ticket: int, protocols: Protocols
    ) -> CoordinatorResult[Any]:
        member_id, this = request.member_id, turn.round
        if member_id in turn.live.pending:
            if request.group_instance_id is not None:
                # Static members do not get ids to join with.
                return _refused_join(ErrorCode.unknown_server_error, member_id)
            return self._add(turn, request, client, ticket, member_id)
        try:
            this.check_member(member_id, request.group_instance_id)
        except RequestError as e:
            return _refused_join(e.code, member_id)
        member = this.members[member_id]
        if this.phase is Phase.EMPTY:
            return _refused_join(ErrorCode.unknown_member_id, member_id)
        unchanged = member.protocols == protocols
        if this.phase is Phase.COMPLETING and unchanged:
            # Its response to this generation's join was lost.
            return turn.decision(this.joined(member_id))
        if this.phase is Phase.STABLE and unchanged and this.leader != member_id:
            return turn.decision(this.joined(member_id))
        this.update(
            member,
            protocols,
            static.rebalance_timeout_ms(request, client),
            millis(request.session_timeout),
        )
        replaced = this.wait_join(member, ticket)
        turn.reply(replaced, JoinGroupResponse(ErrorCode.rebalance_in_progress, member_id))
        turn.rebalance()
        return turn.decision(LATER)

    # SyncGroup, Heartbeat, LeaveGroup.

    def sync(self, request: Any, ticket: int, now_ms: int) -> CoordinatorResult[Any]:
        turn = self.turn(request.group_id, now_ms)
        refusal = _refused_sync(turn, request)
        if refusal is not None:
            return CoordinatorResult(SyncGroupResponse(refusal))
        member_id = request.member_id
        turn.has_synced(member_id)
        if turn.phase is Phase.STABLE:
            self._done(turn)
            member = turn.group.members[member_id]
            return turn.decision(
                SyncGroupResponse(NONE, turn.group.protocol_type, turn.group.protocol, member.assignment)
            )
        this = turn.round
        waiting = this.members[member_id]
        turn.end_sync(waiting, ErrorCode.rebalance_in_progress)
        waiting.sync = ticket
        if this.leader == member_id and not this.assigning:
            members = this.members
            assignments = {a.member_id: a.assignment for a in request.assignments if a.member_id in members}
            turn.records.append(this.outcome(assignments).record(request.group_id))
            turn.event = Assigned(request.group_id, this.generation)
            this.assigning = True
        return turn.decision(LATER)

    def heartbeat(self, request: Any, now_ms: int) -> CoordinatorResult[Any]:
        """Handle a Heartbeat. Raises `RequestError` for an unknown member, or one of another generation."""
        turn = self.turn(request.group_id, now_ms)
        turn.check_member(request.member_id, request.group_instance_id)
        this = turn.live.round
        if request.generation_id != (turn.group if this is None else this).generation:
            raise RequestError(ErrorCode.illegal_generation)
        session_ms = _session_ms(turn, request.member_id)
        assert session_ms is not None
        turn.start_session(request.member_id, session_ms)
        preparing = turn.phase is Phase.PREPARING
        return turn.decision(HeartbeatResponse(ErrorCode.rebalance_in_progress if preparing else NONE))

    def leave(self, request: Any, now_ms: int) -> CoordinatorResult[Any]:
        turn = self.turn(request.group_id, now_ms)
        members = tuple(
            LeftMember(who.member_id, who.group_instance_id, self._leave(turn, who))
            for who in request.members
        )
        if any(member.error_code == NONE for member in members):
            if turn.phase is Phase.PREPARING:
                turn.maybe_complete()
            elif turn.round.phase is not Phase.EMPTY:
                turn.rebalance()
        self._done(turn)
        return turn.decision(LeaveGroupResponse(NONE, members))

    def _leave(self, turn: Turn, who: Any) -> ErrorCode:
        member_id = who.member_id
        if member_id == NO_MEMBER:
            # An operator may remove a static member by its instance id.
            member_id = None if who.group_instance_id is None else turn.round.instance(who.group_instance_id)
            if member_id is None:
                return ErrorCode.unknown_member_id
        elif member_id in turn.live.pending:
            del turn.live.pending[member_id]
            turn.end_session(member_id)
            return NONE
        else:
            try:
                turn.round.check_member(member_id, who.group_instance_id)
            except RequestError as e:
                return e.code
        turn.end_session(member_id)
        turn.remove(member_id)
        return NONE

    # Offsets.

    def is_alive(self, group_id: str, member_id: str, now_ms: int) -> tuple[Effect, ...]:
        """Restart the session of a member that has committed, as a heartbeat does."""
        turn = self.turn(group_id, now_ms)
        if turn.phase not in (Phase.STABLE, Phase.PREPARING):
            return ()
        session_ms = _session_ms(turn, member_id)
        if session_ms is not None:
            turn.start_session(member_id, session_ms)
        return tuple(turn.effects)

    # Events.

    def loaded(self, group_id: str, group: ClassicGroup, now_ms: int) -> tuple[Effect, ...]:
        """Start all sessions. A group above its size limit rebalances, so that members can be left out."""
        turn = self.turn(group_id, now_ms)
        for member in group.members.values():
            turn.start_session(member.member_id, member.session_timeout_ms)
        if len(group.members) > turn.config.group_max_size:
            turn.prepare()
            self._done(turn)
        return tuple(turn.effects)

    def expired(self, name: Hashable, now_ms: int) -> Outcome | None:
        """Handle a due timer; returns None for one that is not of classic groups."""
        match name:
            case (kind, str(group_id), *rest) if kind in (SESSION, JOIN, SYNC):
                if not isinstance(self._groups.get(group_id), ClassicGroup):
                    return NOTHING
                turn = self.turn(group_id, now_ms)
                if kind == SESSION:
                    _session_has_ended(turn, str(rest[0]))
                elif kind == JOIN:
                    turn.join_time_is_up()
                else:
                    turn.sync_time_is_up()
                self._done(turn)
                return turn.decision(None)
        return None

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome | None:
        """Handle the outcome of a write; returns None for an event that is not of classic groups."""
        if not isinstance(event, ClassicEvent):
            return None
        turn = self.turn(event.group_id, now_ms)
        match event:
            case Assigned(group_id, generation):
                this = self.round_of(group_id)
                if this is None or this.phase is not Phase.COMPLETING or this.generation != generation:
                    return NOTHING
                if error is None:
                    turn.assigned()
                    self._metrics.classic_rebalances_completed += 1
                else:
                    turn.not_assigned(error)
            case Created() if error is not None:
                turn.not_created(error)
                turn.live = Live()
            case Emptied() if error is not None:
                turn.not_emptied()
            case Returned():
                static.returned(turn, event)
        self._done(turn)
        return turn.decision(None)


def _session_has_ended(turn: Turn, member_id: str) -> None:
    if member_id in turn.live.pending:
        del turn.live.pending[member_id]
        if turn.phase is Phase.PREPARING and turn.all_joined():
            turn.complete_join()
        return
    member = turn.round.members.get(member_id)
    if member is not None and not member.waits:
        turn.remove_and_rebalance(member_id)


def _session_ms(turn: Turn, member_id: str) -> int | None:
    this = turn.live.round
    if this is None:
        value = turn.group.members.get(member_id)
        return None if value is None else value.session_timeout_ms
    member = this.members.get(member_id)
    return None if member is None else member.session_timeout_ms


def _refused_join(error: ErrorCode, member_id: str) -> CoordinatorResult[Any]:
    return CoordinatorResult(JoinGroupResponse(error, member_id))


def _refused_sync(turn: Turn, request: Any) -> ErrorCode | None:
    if turn.phase is Phase.EMPTY:
        return ErrorCode.unknown_member_id
    try:
        turn.check_member(request.member_id, request.group_instance_id)
    except RequestError as e:
        return e.code
    group: ClassicGroup | Round = turn.group if turn.live.round is None else turn.live.round
    if request.generation_id != group.generation:
        return ErrorCode.illegal_generation
    for ours, theirs in (
        (group.protocol_type, request.protocol_type),
        (group.protocol, request.protocol_name),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            return ErrorCode.inconsistent_group_protocol
    if turn.phase is Phase.PREPARING:
        return ErrorCode.rebalance_in_progress
    return None
