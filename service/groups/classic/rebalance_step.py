"""One event at one classic group: the steps of a rebalance, collected into a decision. [P]

Steps and their order are those of Kafka's `GroupMetadataManager` (`prepareRebalance`,
`completeClassicGroupJoin` and others). Each reads the group's `Round` and adds effects and records.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from service.coordinator.shard import (
    Cancel,
    CoordinatorRecord,
    CoordinatorResult,
    DeferredReply,
    Effect,
    Schedule,
)
from service.groups.classic.group import ClassicGroup
from service.groups.classic.members import Member, Protocols
from service.groups.classic.rebalance import MAY_PREPARE, Phase, Round
from service.groups.config import GroupsConfig
from service.groups.requests import NO_MEMBER, JoinGroupResponse, SyncGroupResponse

R = TypeVar("R")

SESSION: Final = "classic session"
JOIN: Final = "classic join"
SYNC: Final = "classic sync"


class Created(NamedTuple):
    """Event of the record of a new group."""

    group_id: str


class Emptied(NamedTuple):
    """Event of the record of a group whose last member is gone."""

    group_id: str
    generation: int


class Assigned(NamedTuple):
    """Event of the record of a leader's assignment."""

    group_id: str
    generation: int


class Returned(NamedTuple):
    """Event of the record of a static member that returned under another id."""

    group_id: str
    old_id: str
    new_id: str


ClassicEvent = Created | Emptied | Assigned | Returned


class Live:
    """Volatile state of a classic group."""

    __slots__ = ("pending", "protocols", "round", "unsynced")

    def __init__(self) -> None:
        self.round: Round | None = None
        """the rebalance in progress"""
        self.pending: dict[str, None] = {}
        """member ids that were given out and have not joined yet (KIP-394)"""
        self.protocols: dict[str, Protocols] = {}
        """all protocols of the members; the log has the chosen protocol's metadata only"""
        self.unsynced: dict[str, None] = {}
        """members of a stable group that have not fetched their assignment"""

    @property
    def is_idle(self) -> bool:
        return self.round is None and not (self.pending or self.protocols or self.unsynced)


class Turn:
    """One event at one group. `group` is its durable state, an empty group if it has none."""

    __slots__ = ("_opened", "config", "effects", "event", "group", "group_id", "live", "now_ms", "records")

    def __init__(
        self, group_id: str, group: ClassicGroup, live: Live, config: GroupsConfig, now_ms: int
    ) -> None:
        self.group_id = group_id
        self.group = group
        self.live = live
        self.config = config
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.records: list[CoordinatorRecord] = []
        self.event: Hashable | None = None
        self._opened: Round | None = None

    def decision(self, response: R) -> CoordinatorResult[R]:
        return CoordinatorResult(response, tuple(self.records), tuple(self.effects), self.event)

    @property
    def round(self) -> Round:
        """The rebalance in progress, or the group as it would begin one."""
        if self.live.round is not None:
            return self.live.round
        if self._opened is None:
            self._opened = Round(self.group, self.live.protocols)
            if self._opened.phase is Phase.STABLE:
                self._opened.unsynced = dict(self.live.unsynced)
        return self._opened

    @property
    def phase(self) -> Phase:
        """State of the group."""
        if self.live.round is not None:
            return self.live.round.phase
        return Phase.STABLE if self.group.members else Phase.EMPTY

    # Responses and timers.

    def reply(self, ticket: int | None, response: object) -> None:
        if ticket is not None:
            self.effects.append(DeferredReply(ticket, response))

    def end_join(self, member: Member, error: ErrorCode, member_id: str | None = None) -> None:
        """End a member's wait in the join phase with an error."""
        ticket = self.round.end_wait_join(member)
        told = member.member_id if member_id is None else member_id
        self.reply(ticket, JoinGroupResponse(error, told))

    def end_sync(self, member: Member, error: ErrorCode) -> bool:
        """End a member's wait for its assignment with an error; returns False if it does not wait."""
        ticket, member.sync = member.sync, None
        self.reply(ticket, SyncGroupResponse(error))
        return ticket is not None

    def start_session(self, member_id: str, timeout_ms: int) -> None:
        """Restart the member's session."""
        self.effects.append(Schedule((SESSION, self.group_id, member_id), self.now_ms + timeout_ms))

    def end_session(self, member_id: str) -> None:
        self.effects.append(Cancel((SESSION, self.group_id, member_id)))

    def schedule_join(self, delay_ms: int) -> None:
        self.effects.append(Schedule((JOIN, self.group_id), self.now_ms + delay_ms))

    # Steps of a rebalance.

    def all_joined(self) -> bool:
        """Return whether all members, and all ids that were given out, have joined."""
        return self.round.all_joined and not self.live.pending

    def remove(self, member_id: str) -> None:
        """Remove a member, or an id that was given out. Requests that it waits with fail; it may join
        again."""
        self.live.pending.pop(member_id, None)
        member = self.round.members.get(member_id)
        if member is not None:
            self.end_join(member, ErrorCode.unknown_member_id, NO_MEMBER)
            self.end_sync(member, ErrorCode.unknown_member_id)
            self.round.remove(member_id)

    def rebalance(self) -> None:
        """Begin a rebalance after a change of the members, or continue the one in progress."""
        if self.round.phase in MAY_PREPARE:
            self.prepare()
        else:
            self.maybe_complete()

    def prepare(self) -> None:
        """Enter PreparingRebalance."""
        this = self.round
        for member in this.members.values():
            if self.end_sync(member, ErrorCode.rebalance_in_progress):
                self.start_session(member.member_id, member.session_timeout_ms)
        this.unsynced = {}
        this.assigning = False
        this.forgot_assignments |= this.phase is Phase.COMPLETING
        self.live.unsynced = {}
        self.effects.append(Cancel((SYNC, self.group_id)))
        this.initial = this.is_delayed = this.phase is Phase.EMPTY
        this.phase = Phase.PREPARING
        this.since_ms = self.now_ms
        self.live.round = this
        if this.initial:
            # The group is new: more members are likely to join soon.
            this.delay_ms = self.config.group_initial_rebalance_delay_ms
            this.remaining_ms = max(this.rebalance_timeout_ms - this.delay_ms, 0)
            this.joined_since = False
            self.schedule_join(this.delay_ms)
        elif self.all_joined():
            self.complete_join()
        else:
            self.schedule_join(this.rebalance_timeout_ms)

    def maybe_complete(self) -> None:
        """End the join phase if all have joined; never that of a group's first rebalance, which runs for its
        full time."""
        if self.phase is Phase.PREPARING and not self.round.initial and self.all_joined():
            self.complete_join()

    def join_time_is_up(self) -> None:
        """End the join phase on its timeout. A first rebalance is extended while members arrive."""
        this = self.round
        if this.phase is not Phase.PREPARING:
            return
        if this.is_delayed and this.joined_since and this.remaining_ms:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, this.remaining_ms)
            this.remaining_ms = max(this.remaining_ms - this.delay_ms, 0)
            this.delay_ms = delay_ms
            this.joined_since = False
            self.schedule_join(delay_ms)
            return
        this.is_delayed = False
        self.complete_join()

    def complete_join(self) -> None:
        """End the join phase: a generation begins, or the group is empty."""
        this = self.round
        self.effects.append(Cancel((JOIN, self.group_id)))
        for member in [m for m in this.members.values() if m.join is None and m.instance_id is None]:
            self.remove(member.member_id)
            self.end_session(member.member_id)
        if not this.members:
            self._end_empty(this)
        elif this.elect():
            self._begin_generation(this)
        else:
            # Only static members, of which none has joined: they join, or their sessions end.
            self.schedule_join(this.rebalance_timeout_ms)

    def _end_empty(self, this: Round) -> None:
        generation = this.generation + 1
        empty = ClassicGroup(generation, this.protocol_type, state_ms=self.now_ms)
        self.records.append(empty.record(self.group_id))
        self.event = Emptied(self.group_id, generation)
        self.live.round = None
        self.live.protocols = {}

    def _begin_generation(self, this: Round) -> None:
        this.generation += 1
        this.protocol = this.votes()
        this.phase = Phase.COMPLETING
        this.initial = this.is_delayed = False
        this.since_ms = self.now_ms
        this.unsynced = dict.fromkeys(this.members)
        this.subscriptions = tuple(member.metadata(this.protocol) for member in this.members.values())
        for member in this.members.values():
            ticket = this.end_wait_join(member)
            if ticket is not None:
                self.reply(ticket, this.joined(member.member_id))
            self.start_session(member.member_id, member.session_timeout_ms)
            member.is_new = False
        self.effects.append(Schedule((SYNC, self.group_id), self.now_ms + this.rebalance_timeout_ms))

    def sync_time_is_up(self) -> None:
        """Remove the members that have joined the generation and not sent SyncGroup."""
        this = self.round
        if this.phase not in (Phase.COMPLETING, Phase.STABLE) or not this.unsynced:
            return
        for member_id in tuple(this.unsynced):
            self.remove(member_id)
            self.end_session(member_id)
        self.prepare()

    def has_synced(self, member_id: str) -> None:
        """Note that a member has sent SyncGroup."""
        unsynced = self.live.unsynced if self.live.round is None else self.live.round.unsynced
        if unsynced.pop(member_id, False) is None and not unsynced:
            self.effects.append(Cancel((SYNC, self.group_id)))

    def remove_and_rebalance(self, member_id: str) -> None:
        """Remove a member whose session has ended."""
        self.remove(member_id)
        if self.phase is Phase.PREPARING:
            if self.all_joined():
                self.complete_join()
        elif self.phase is not Phase.EMPTY:
            self.rebalance()

    # Outcomes of writes.

    def assigned(self) -> None:
        """Answer all members, as the leader's assignment is committed: the group is stable."""
        this = self.live.round
        assert this is not None
        for member in this.members.values():
            if member.sync is not None:
                value = self.group.members[member.member_id]
                ticket, member.sync = member.sync, None
                self.reply(
                    ticket,
                    SyncGroupResponse(ErrorCode.none, this.protocol_type, this.protocol, value.assignment),
                )
                self.start_session(member.member_id, member.session_timeout_ms)
        self.live.round = None
        self.live.unsynced = this.unsynced
        self.live.protocols = {member.member_id: member.protocols for member in this.members.values()}

    def not_assigned(self, error: ErrorCode) -> None:
        """Answer all members, as writing the leader's assignment failed, and begin the next rebalance."""
        for member in self.round.members.values():
            if self.end_sync(member, error):
                self.start_session(member.member_id, member.session_timeout_ms)
        self.rebalance()

    def not_created(self, error: ErrorCode) -> None:
        """End all waits and timers, as writing the new group failed."""
        for member_id in self.live.pending:
            self.end_session(member_id)
        if self.live.round is not None:
            for member in self.live.round.members.values():
                self.end_join(member, error)
                self.end_sync(member, error)
                self.end_session(member.member_id)
            self.effects += (Cancel((JOIN, self.group_id)), Cancel((SYNC, self.group_id)))

    def not_emptied(self) -> None:
        """Restart the sessions of the log's members, as writing the empty group failed."""
        if self.live.round is None:
            for value in self.group.members.values():
                self.start_session(value.member_id, value.session_timeout_ms)

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Check the ids, without beginning a rebalance. Raises UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID."""
        if self.live.round is not None:
            self.live.round.check_member(member_id, instance_id)
        else:
            self.group.check_member(member_id, instance_id)
