"""One event at one classic group: the steps of a rebalance, collected into a decision. [P]

Steps and their order are those of Kafka's `GroupMetadataManager` (`prepareRebalance`,
`completeClassicGroupJoin` and others). Each reads the group's `Rebalance` and adds effects and records.
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
from service.groups.classic.member import ClassicGroupMember, Protocols
from service.groups.classic.rebalance_state import MAY_PREPARE, Phase, Rebalance
from service.groups.config import GroupsConfig
from service.groups.requests import NO_MEMBER, JoinGroupResponse, SyncGroupResponse

R = TypeVar("R")

SESSION: Final = "classic session"
JOIN: Final = "classic join"
SYNC: Final = "classic sync"


class Created(NamedTuple):
    """Event: the record of a new group was committed, or its write failed."""

    group_id: str


class Emptied(NamedTuple):
    """Event: the record of a group whose last member is gone was committed, or its write failed."""

    group_id: str
    generation: int


class Assigned(NamedTuple):
    """Event: the record of a leader's assignment was committed, or its write failed."""

    group_id: str
    generation: int


class Returned(NamedTuple):
    """Event: the record of a static member that returned under another id was committed, or its write
    failed."""

    group_id: str
    old_id: str
    new_id: str


ClassicEvent = Created | Emptied | Assigned | Returned


class VolatileGroup:
    """Volatile state of a classic group."""

    __slots__ = ("pending", "protocols", "rebalance", "unsynced")

    def __init__(self) -> None:
        self.rebalance: Rebalance | None = None
        """the rebalance in progress"""
        self.pending: dict[str, None] = {}
        """member ids that were given out and have not joined yet (KIP-394)"""
        self.protocols: dict[str, Protocols] = {}
        """all protocols of the members; the log has the chosen protocol's metadata only"""
        self.unsynced: dict[str, None] = {}
        """members of a stable group that have not fetched their assignment"""

    @property
    def is_idle(self) -> bool:
        return self.rebalance is None and not (self.pending or self.protocols or self.unsynced)


class RebalanceStep:
    """One event at one group. `group` is its durable state, an empty group if it has none."""

    __slots__ = (
        "_opened",
        "config",
        "effects",
        "event",
        "group",
        "group_id",
        "now_ms",
        "records",
        "volatile",
    )

    def __init__(
        self, group_id: str, group: ClassicGroup, volatile: VolatileGroup, config: GroupsConfig, now_ms: int
    ) -> None:
        self.group_id = group_id
        self.group = group
        self.volatile = volatile
        self.config = config
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.records: list[CoordinatorRecord] = []
        self.event: Hashable | None = None
        self._opened: Rebalance | None = None

    def result(self, response: R) -> CoordinatorResult[R]:
        return CoordinatorResult(response, tuple(self.records), tuple(self.effects), self.event)

    @property
    def rebalance(self) -> Rebalance:
        """The rebalance in progress, or the group as it would begin one."""
        if self.volatile.rebalance is not None:
            return self.volatile.rebalance
        if self._opened is None:
            self._opened = Rebalance(self.group, self.volatile.protocols)
            if self._opened.phase is Phase.STABLE:
                self._opened.unsynced = dict(self.volatile.unsynced)
        return self._opened

    @property
    def phase(self) -> Phase:
        """State of the group."""
        if self.volatile.rebalance is not None:
            return self.volatile.rebalance.phase
        return Phase.STABLE if self.group.members else Phase.EMPTY

    # Responses and timers.

    def reply(self, ticket: int | None, response: object) -> None:
        if ticket is not None:
            self.effects.append(DeferredReply(ticket, response))

    def end_join(self, member: ClassicGroupMember, error: ErrorCode, member_id: str | None = None) -> None:
        """End a member's wait in the join phase with an error."""
        ticket = self.rebalance.end_wait_join(member)
        answered_id = member.member_id if member_id is None else member_id
        self.reply(ticket, JoinGroupResponse(error, answered_id))

    def end_sync(self, member: ClassicGroupMember, error: ErrorCode) -> bool:
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
        return self.rebalance.all_joined and not self.volatile.pending

    def remove(self, member_id: str) -> None:
        """Remove a member, or an id that was given out. Requests that it waits with fail; it may join
        again."""
        self.volatile.pending.pop(member_id, None)
        member = self.rebalance.members.get(member_id)
        if member is not None:
            self.end_join(member, ErrorCode.unknown_member_id, NO_MEMBER)
            self.end_sync(member, ErrorCode.unknown_member_id)
            self.rebalance.remove(member_id)

    def prepare_or_complete(self) -> None:
        """Begin a rebalance after a change of the members, or continue the one in progress."""
        if self.rebalance.phase in MAY_PREPARE:
            self.prepare()
        else:
            self.maybe_complete()

    def prepare(self) -> None:
        """Enter PreparingRebalance."""
        rebalance = self.rebalance
        for member in rebalance.members.values():
            if self.end_sync(member, ErrorCode.rebalance_in_progress):
                self.start_session(member.member_id, member.session_timeout_ms)
        rebalance.unsynced = {}
        rebalance.assigning = False
        rebalance.forgot_assignments |= rebalance.phase is Phase.COMPLETING
        self.volatile.unsynced = {}
        self.effects.append(Cancel((SYNC, self.group_id)))
        rebalance.initial = rebalance.is_delayed = rebalance.phase is Phase.EMPTY
        rebalance.phase = Phase.PREPARING
        rebalance.since_ms = self.now_ms
        self.volatile.rebalance = rebalance
        if rebalance.initial:
            # The group is new: more members are likely to join soon.
            rebalance.delay_ms = self.config.group_initial_rebalance_delay_ms
            rebalance.remaining_ms = max(rebalance.rebalance_timeout_ms - rebalance.delay_ms, 0)
            rebalance.joined_since = False
            self.schedule_join(rebalance.delay_ms)
        elif self.all_joined():
            self.complete_join()
        else:
            self.schedule_join(rebalance.rebalance_timeout_ms)

    def maybe_complete(self) -> None:
        """End the join phase if all have joined; never that of a group's first rebalance, which runs for its
        full time."""
        if self.phase is Phase.PREPARING and not self.rebalance.initial and self.all_joined():
            self.complete_join()

    def join_time_is_up(self) -> None:
        """End the join phase on its timeout. A first rebalance is extended while members arrive."""
        rebalance = self.rebalance
        if rebalance.phase is not Phase.PREPARING:
            return
        if rebalance.is_delayed and rebalance.joined_since and rebalance.remaining_ms:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, rebalance.remaining_ms)
            rebalance.remaining_ms = max(rebalance.remaining_ms - rebalance.delay_ms, 0)
            rebalance.delay_ms = delay_ms
            rebalance.joined_since = False
            self.schedule_join(delay_ms)
            return
        rebalance.is_delayed = False
        self.complete_join()

    def complete_join(self) -> None:
        """End the join phase: a generation begins, or the group is empty.

        Dynamic members that have not joined are removed. Where only static ones are left, none of which has
        joined, the phase goes on for another rebalance timeout.
        """
        rebalance = self.rebalance
        self.effects.append(Cancel((JOIN, self.group_id)))
        for member in [m for m in rebalance.members.values() if m.join is None and m.instance_id is None]:
            self.remove(member.member_id)
            self.end_session(member.member_id)
        if not rebalance.members:
            self._end_empty(rebalance)
        elif rebalance.elect():
            self._begin_generation(rebalance)
        else:
            # Only static members, of which none has joined: they join, or their sessions end.
            self.schedule_join(rebalance.rebalance_timeout_ms)

    def _end_empty(self, rebalance: Rebalance) -> None:
        generation = rebalance.generation + 1
        empty = ClassicGroup(generation, rebalance.protocol_type, state_ms=self.now_ms)
        self.records.append(empty.record(self.group_id))
        self.event = Emptied(self.group_id, generation)
        self.volatile.rebalance = None
        self.volatile.protocols = {}

    def _begin_generation(self, rebalance: Rebalance) -> None:
        rebalance.generation += 1
        rebalance.protocol = rebalance.votes()
        rebalance.phase = Phase.COMPLETING
        rebalance.initial = rebalance.is_delayed = False
        rebalance.since_ms = self.now_ms
        rebalance.unsynced = dict.fromkeys(rebalance.members)
        rebalance.subscriptions = tuple(
            member.metadata(rebalance.protocol) for member in rebalance.members.values()
        )
        for member in rebalance.members.values():
            ticket = rebalance.end_wait_join(member)
            if ticket is not None:
                self.reply(ticket, rebalance.joined(member.member_id))
            self.start_session(member.member_id, member.session_timeout_ms)
            member.is_new = False
        self.effects.append(Schedule((SYNC, self.group_id), self.now_ms + rebalance.rebalance_timeout_ms))

    def sync_time_is_up(self) -> None:
        """Remove the members that have joined the generation and not sent SyncGroup."""
        rebalance = self.rebalance
        if rebalance.phase not in (Phase.COMPLETING, Phase.STABLE) or not rebalance.unsynced:
            return
        for member_id in tuple(rebalance.unsynced):
            self.remove(member_id)
            self.end_session(member_id)
        self.prepare()

    def has_synced(self, member_id: str) -> None:
        """Note that a member has sent SyncGroup."""
        unsynced = (
            self.volatile.unsynced if self.volatile.rebalance is None else self.volatile.rebalance.unsynced
        )
        if unsynced.pop(member_id, False) is None and not unsynced:
            self.effects.append(Cancel((SYNC, self.group_id)))

    def remove_and_rebalance(self, member_id: str) -> None:
        """Remove a member whose session has ended."""
        self.remove(member_id)
        if self.phase is Phase.PREPARING:
            if self.all_joined():
                self.complete_join()
        elif self.phase is not Phase.EMPTY:
            self.prepare_or_complete()

    # Outcomes of writes.

    def assigned(self) -> None:
        """Answer all members, as the leader's assignment is committed: the group is stable."""
        rebalance = self.volatile.rebalance
        assert rebalance is not None
        for member in rebalance.members.values():
            if member.sync is not None:
                value = self.group.members[member.member_id]
                ticket, member.sync = member.sync, None
                self.reply(
                    ticket,
                    SyncGroupResponse(
                        ErrorCode.none, rebalance.protocol_type, rebalance.protocol, value.assignment
                    ),
                )
                self.start_session(member.member_id, member.session_timeout_ms)
        self.volatile.rebalance = None
        self.volatile.unsynced = rebalance.unsynced
        self.volatile.protocols = {
            member.member_id: member.protocols for member in rebalance.members.values()
        }

    def not_assigned(self, error: ErrorCode) -> None:
        """Answer all members, as writing the leader's assignment failed, and begin the next rebalance."""
        for member in self.rebalance.members.values():
            if self.end_sync(member, error):
                self.start_session(member.member_id, member.session_timeout_ms)
        self.prepare_or_complete()

    def not_created(self, error: ErrorCode) -> None:
        """Answer all waiting requests with `error` and end all timers: the new group was not written."""
        for member_id in self.volatile.pending:
            self.end_session(member_id)
        if self.volatile.rebalance is not None:
            for member in self.volatile.rebalance.members.values():
                self.end_join(member, error)
                self.end_sync(member, error)
                self.end_session(member.member_id)
            self.effects += (Cancel((JOIN, self.group_id)), Cancel((SYNC, self.group_id)))

    def not_emptied(self) -> None:
        """Restart the sessions of the log's members, as writing the empty group failed."""
        if self.volatile.rebalance is None:
            for value in self.group.members.values():
                self.start_session(value.member_id, value.session_timeout_ms)

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Check the ids, without beginning a rebalance. Raises UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID."""
        if self.volatile.rebalance is not None:
            self.volatile.rebalance.check_member(member_id, instance_id)
        else:
            self.group.check_member(member_id, instance_id)
