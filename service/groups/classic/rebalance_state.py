"""Rebalance of a classic group: its members, those that have joined, and its result. [P]

States, Kafka's `ClassicGroupState`, and where they are kept::

    Empty, Stable          the group as its log has it (`group`)
    PreparingRebalance     a `Rebalance`: members are joining
    CompletingRebalance    a `Rebalance`: the leader is assigning; until its record is committed

A group is in one of them, so it has one generation and one leader that assigns in it (invariant G3). A
rebalance begins as a copy of the durable state, and its result is one record. Nothing else of it is durable:
a new coordinator finds the group as it was before, and its members join again (invariant G4).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import MappingProxyType

from service.base.types import Buffer
from service.groups.classic.group import ClassicGroup, check_member
from service.groups.classic.member import ClassicGroupMember, Protocols, select_protocol
from service.groups.requests import NO_MEMBER, NONE, JoinGroupMember, JoinGroupResponse


class Phase(Enum):
    """Group states, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


MAY_PREPARE = frozenset({Phase.EMPTY, Phase.COMPLETING, Phase.STABLE})
"""States from which a rebalance begins; one in progress is not begun again."""


class Rebalance:
    """A classic group during a rebalance. Made from the group's durable state, and dropped when that is up to
    date again."""

    __slots__ = (
        "_instances",
        "_known",
        "assigning",
        "delay_ms",
        "forgot_assignments",
        "generation",
        "initial",
        "is_delayed",
        "joined_since",
        "joining",
        "leader",
        "members",
        "phase",
        "protocol",
        "protocol_type",
        "remaining_ms",
        "since_ms",
        "subscriptions",
        "unsynced",
    )

    def __init__(self, group: ClassicGroup, protocols: dict[str, Protocols]) -> None:
        self.phase = Phase.STABLE if group.members else Phase.EMPTY
        self.generation = group.generation
        self.protocol_type = group.protocol_type
        self.protocol = group.protocol
        self.leader = group.leader if group.members else None
        self.since_ms = group.state_ms
        self.members: dict[str, ClassicGroupMember] = {}
        self._instances: dict[str, str] = {}
        self._known: dict[str, int] = {}
        """number of members that support a protocol"""
        self.joining = 0
        """number of members that wait for the join phase to end"""
        for value in group.members.values():
            # After a load only the chosen protocol is known.
            known = protocols.get(value.member_id) or ((group.protocol or "", value.subscription),)
            self._put(ClassicGroupMember.of_value(value, known))
        self.unsynced: dict[str, None] = {}
        """members that have not sent SyncGroup in this generation"""
        self.assigning = False
        """the record of the leader's assignment is being written"""
        self.forgot_assignments = False
        """a generation ended before its leader had assigned: no member has an assignment"""
        self.subscriptions: tuple[bytes, ...] | None = None
        """metadata of the members when this rebalance's last generation began; None before the first"""
        self.initial = False
        """the group was empty before this rebalance"""
        self.is_delayed = False
        """the first rebalance is waiting for more members"""
        self.joined_since = False
        """a member has joined since the delay was last extended"""
        self.delay_ms = 0
        self.remaining_ms = 0

    # Members.

    def _put(self, member: ClassicGroupMember) -> None:
        self.members[member.member_id] = member
        self._know(member, 1)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def _know(self, member: ClassicGroupMember, change: int) -> None:
        for name, _ in member.protocols:
            self._known[name] = self._known.get(name, 0) + change

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._put(member)

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member; the caller answers its tickets. If it led, the oldest member leads."""
        member = self.members.pop(member_id, None)
        self.unsynced.pop(member_id, None)
        if member is not None:
            self._know(member, -1)
            self.joining -= member.join is not None
            if member.instance_id is not None:
                self._instances.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace(self, old_id: str, member: ClassicGroupMember) -> ClassicGroupMember:
        """Put `member`, which waits for nothing yet, in the place of `old_id`, whose instance it is."""
        assert member.instance_id is not None
        old = self.members[old_id]
        self._know(old, -1)
        self._know(member, 1)
        self.joining -= old.join is not None
        self.members = {
            (member.member_id if key == old_id else key): (member if key == old_id else value)
            for key, value in self.members.items()
        }
        self.unsynced.pop(old_id, None)
        if self.leader == old_id:
            self.leader = member.member_id
        self._instances[member.instance_id] = member.member_id
        return old

    def update(
        self, member: ClassicGroupMember, protocols: Protocols, rebalance_ms: int, session_ms: int
    ) -> None:
        """Update a member that has joined again."""
        self._know(member, -1)
        member.protocols = protocols
        self._know(member, 1)
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def wait_join(self, member: ClassicGroupMember, ticket: int) -> int | None:
        """Note that the member waits for the join phase to end; returns the ticket of its previous wait."""
        before, member.join = member.join, ticket
        self.joining += before is None
        return before

    def end_wait_join(self, member: ClassicGroupMember) -> int | None:
        """End the member's wait and return its ticket."""
        ticket, member.join = member.join, None
        self.joining -= ticket is not None
        return ticket

    def instance(self, instance_id: str) -> str | None:
        """Return the member id of the instance."""
        return self._instances.get(instance_id)

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Check the ids. Raises UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID."""
        check_member(self.members, self._instances, member_id, instance_id)

    # All members together.

    @property
    def awaited(self) -> Iterator[ClassicGroupMember]:
        """Members that wait for the join phase to end."""
        return (member for member in self.members.values() if member.join is not None)

    @property
    def all_joined(self) -> bool:
        return self.joining == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols may join: all members must have one in common."""
        if self.phase is Phase.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        return any(self._known.get(name, 0) == len(self.members) for name, _ in protocols)

    def votes(self) -> str:
        """Return the protocol of the generation that begins."""
        return select_protocol({member_id: member.protocols for member_id, member in self.members.items()})

    def elect(self) -> bool:
        """Elect a leader that has joined; returns False if no member has."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is None:
            joined = next(self.awaited, None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def joined(self, member_id: str) -> JoinGroupResponse:
        """Return the JoinGroup response of a member of this generation; only the leader's lists the
        members."""
        members: tuple[JoinGroupMember, ...] = ()
        if self.leader == member_id:
            members = tuple(
                JoinGroupMember(m.member_id, m.instance_id, m.metadata(self.protocol))
                for m in self.members.values()
            )
        return JoinGroupResponse(
            NONE,
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or NO_MEMBER,
            members=members,
        )

    def outcome(self, assignments: dict[str, Buffer]) -> ClassicGroup:
        """Return the group after this generation; members that the leader left out get an empty
        assignment."""
        return ClassicGroup(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.since_ms,
            MappingProxyType(
                {
                    member_id: member.value(self.protocol, bytes(assignments.get(member_id, b"")))
                    for member_id, member in self.members.items()
                }
            ),
        )
