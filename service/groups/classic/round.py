"""One round of a classic group: who is in it, who is awaited, and what comes of it. [P]

States, Kafka's `ClassicGroupState`, and where they lie::

    Empty, Stable          the group as its log has it (`group`)
    PreparingRebalance     a `Round`: members are joining
    CompletingRebalance    a `Round`: the leader is assigning; until its record is committed

A round begins as a copy of what the log says, and what comes of it is one record. Nothing else of it
survives: a coordinator that takes over finds the group as it was before, and its members join again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import MappingProxyType

from service.base.types import Buffer
from service.groups.classic.group import ClassicGroup, check_member
from service.groups.classic.members import Member, Protocols, select_protocol
from service.groups.requests import NO_MEMBER, NONE, JoinGroupMember, JoinGroupResponse


class Phase(Enum):
    """Values are Kafka's names of the states."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


MAY_PREPARE = frozenset({Phase.EMPTY, Phase.COMPLETING, Phase.STABLE})
"""States from which a rebalance begins; during one it is not begun again."""


class Round:
    """A classic group that changes. Made of the group as its log has it, thrown away when that is true
    again.
    """

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
        self.members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self._known: dict[str, int] = {}
        """how many members know a protocol"""
        self.joining = 0
        """how many members wait for the first half of the round to end"""
        for value in group.members.values():
            # After a load only the protocol that was chosen is known.
            known = protocols.get(value.member_id) or ((group.protocol or "", value.subscription),)
            self._put(Member.of_value(value, known))
        self.unsynced: dict[str, None] = {}
        """members that have not sent SyncGroup in this generation"""
        self.assigning = False
        """the leader's record is on its way to the log"""
        self.forgot_assignments = False
        """a generation was given up before its leader had assigned: nobody has anything now"""
        self.subscriptions: tuple[bytes, ...] | None = None
        """metadata of the members when the last generation of this round began; None before the first"""
        self.initial = False
        """the group was empty before this round"""
        self.is_delayed = False
        """the first round is waiting for more members"""
        self.joined_since = False
        """somebody has joined since the delay was looked at last"""
        self.delay_ms = 0
        self.remaining_ms = 0

    # Members.

    def _put(self, member: Member) -> None:
        self.members[member.member_id] = member
        self._know(member, 1)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def _know(self, member: Member, change: int) -> None:
        for name, _ in member.protocols:
            self._known[name] = self._known.get(name, 0) + change

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._put(member)

    def remove(self, member_id: str) -> Member | None:
        """Whoever leads then is the longest-standing member. Its tickets are the caller's to answer."""
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

    def replace(self, old_id: str, member: Member) -> Member:
        """`member`, who waits for nothing yet, takes the place of `old_id`, whose instance it is."""
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

    def update(self, member: Member, protocols: Protocols, rebalance_ms: int, session_ms: int) -> None:
        """A member has joined anew, with what it can do now."""
        self._know(member, -1)
        member.protocols = protocols
        self._know(member, 1)
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def wait_join(self, member: Member, ticket: int) -> int | None:
        """The member waits from now on; returns the ticket that it waited with before."""
        before, member.join = member.join, ticket
        self.joining += before is None
        return before

    def end_wait_join(self, member: Member) -> int | None:
        """The ticket of a member that waits no more."""
        ticket, member.join = member.join, None
        self.joining -= ticket is not None
        return ticket

    def instance(self, instance_id: str) -> str | None:
        """The member that is this instance."""
        return self._instances.get(instance_id)

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID."""
        check_member(self.members, self._instances, member_id, instance_id)

    # What holds of all of them.

    @property
    def awaited(self) -> Iterator[Member]:
        """Members that wait for the round's first half to end."""
        return (member for member in self.members.values() if member.join is not None)

    @property
    def all_joined(self) -> bool:
        return self.joining == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody with these can be in the group: all must have one in common."""
        if self.phase is Phase.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        return any(self._known.get(name, 0) == len(self.members) for name, _ in protocols)

    def votes(self) -> str:
        """The protocol of the generation that begins."""
        return select_protocol({member_id: member.protocols for member_id, member in self.members.items()})

    def elect(self) -> bool:
        """A leader that has joined; False where there is none."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is None:
            joined = next(self.awaited, None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def joined(self, member_id: str) -> JoinGroupResponse:
        """What a member of this generation is told of it; the leader alone hears of the others."""
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
        """The group that comes of this generation; whom the leader has forgotten gets an empty assignment."""
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
