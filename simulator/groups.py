"""Model of groups: acknowledged commits, the members' partitions, and what the disk holds of them. [P]

Committed offsets are numbers that only rise, each sent once, so that a read offset identifies its commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.java_hash import partition_of
from service.groups import records
from service.records.batch import complete_headers, verify_crc
from service.records.decode import records_of
from simulator.durable import durable_logs
from simulator.model import Violation
from simulator.power_loss import Platter

OFFSETS: Final = "__consumer_offsets"
OFFSETS_PARTITIONS: Final = 2
NOTHING: Final = -1
"""What a position is that was never committed."""


class Place(NamedTuple):
    """Partition for which an offset is committed."""

    topic_id: UUID
    topic: str
    partition: int


@dataclass
class Position:
    """One partition's commits by one group."""

    there: int = NOTHING
    """acknowledged or read: this one, or one that was sent later, is committed"""
    answered: int = NOTHING
    """last acknowledged one"""
    sent: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    """commits without a response, each with the process that it was sent to, which may write it late"""
    gone: int = NOTHING
    """commits up to this one were deleted"""
    goes_late: int = NOTHING
    """process with an unanswered deletion, which may delete late"""

    def judge(self, value: int, where: str, run: int) -> None:
        """Check that `value` may be the committed offset. Raises `Violation`."""
        if value in self.refused:
            raise Violation(f"{where}: {value} is committed, and was refused ({self.refused[value]})")
        if value != NOTHING and value not in self.sent:
            raise Violation(f"{where}: {value} is committed, and was never sent")
        if NOTHING < value <= self.gone and value not in self.late:
            raise Violation(f"{where}: {value} is committed, and was deleted")
        is_late = value in self.late or (value == NOTHING and self.goes_late != NOTHING)
        if value < self.there and not is_late:
            raise Violation(f"{where}: {value} is committed, and {self.there} was before")
        self.there = value
        self.late = {late: of for late, of in self.late.items() if of == run}
        if self.goes_late != run:
            self.goes_late = NOTHING

    def deleted(self) -> None:
        """Note that the deletion of the position was acknowledged."""
        self.there = self.answered = NOTHING
        self.gone = max(self.sent, default=NOTHING)

    def may_be_deleted(self, run: int) -> None:
        """Note that a deletion was sent to process `run` and has no response."""
        self.answered, self.goes_late = NOTHING, run

    def past_returns(self, value: int) -> None:
        """Note that the log surely holds `value`, and perhaps later commits and deletions."""
        if self.gone != NOTHING and value <= self.gone:
            self.there = self.answered = self.gone = NOTHING
            return
        self.there = self.answered = min(self.there, value) if value not in self.late else value


@dataclass
class Member:
    """Member of a group as the client knows itself, with the assignment of its last response."""

    member_id: str = ""
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    is_doubtful: bool = False
    """whether a response was lost, so that the coordinator may be ahead of it"""
    is_leaving: bool = False
    instance_id: str | None = None
    """set for a static member, which leaves for a while and comes back under another member id"""
    is_away: bool = False
    """whether it left for a while, so that its partitions are kept for it"""


@dataclass
class GroupModel:
    """Model of a group. `kind`: ``simple``, ``classic`` or ``consumer``; `topic`: the one that it reads."""

    group_id: str
    kind: str
    topic_id: UUID
    topic: str
    positions: dict[Place, Position] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    left: list[Member] = field(default_factory=list)
    """members that have left, and are back if an older disk returns"""
    is_settled: bool = False
    """whether all classic members have assignments of one generation, and no later rebalance has begun"""
    deals: dict[int, list[dict[str, bytes]]] = field(default_factory=dict)
    """assignments that leaders have sent, by generation"""
    fixed: dict[int, dict[str, bytes]] = field(default_factory=dict)
    """assignment of which a member has got its part, by generation"""
    excused: str = ""
    is_busy: bool = False

    def __str__(self) -> str:
        return f"group {self.group_id}"

    @property
    def partition(self) -> int:
        """Partition of `__consumer_offsets` that holds the group."""
        return partition_of(self.group_id, OFFSETS_PARTITIONS)

    def owns(self, member: Member, told: frozenset[int]) -> None:
        """Note a member's assignment. Raises `Violation` where another member owns some of it."""
        for other in self.members:
            both = other.owned & told
            if other is not member and both:
                raise Violation(
                    f"{self}: {member.member_id} is given {sorted(both)}, which {other.member_id} owns"
                )
        member.owned = told

    def deal(self, generation: int, shares: Mapping[str, bytes]) -> None:
        """Note the leader's assignment. A generation may come twice if no member got its assignment."""
        self.deals.setdefault(generation, []).append(dict(shares))

    def told(self, generation: int, member_id: str, share: bytes) -> None:
        """Check a member's share. Raises `Violation` where it is not of the generation's assignment."""
        fixed = self.fixed.get(generation)
        deals = self.deals.get(generation, []) if fixed is None else [fixed]
        found = next((deal for deal in deals if deal.get(member_id, b"") == share), None)
        if found is None:
            raise Violation(f"{self}: {member_id} has what the leader of {generation} did not give")
        if share:
            self.fixed[generation] = found

    def past_returns(self) -> None:
        """Note that the coordinator may know an older state of the members."""
        self.is_settled = False
        self.fixed.clear()
        for member in self.members:
            if member.instance_id is not None and not member.is_leaving:
                self.begins_anew(member)
        self.members += self.left
        self.left.clear()
        for member in self.members:
            member.epoch, member.owned, member.is_doubtful = 0, frozenset(), True
            member.is_away = False

    def leaves(self, member: Member) -> None:
        """Note that the coordinator knows that a member has left."""
        self.members.remove(member)
        self.left.append(Member(member.member_id, is_leaving=True, instance_id=member.instance_id))

    def begins_anew(self, member: Member) -> None:
        """Give a static member another member id; its partitions are kept for it."""
        self.left.append(Member(member.member_id, is_leaving=True, instance_id=member.instance_id))
        member.member_id, member.epoch, member.is_away = f"{member.member_id}+", 0, False


@dataclass
class Groups:
    """All of one history."""

    all: list[GroupModel] = field(default_factory=list)
    flushed: bool = False
    """whether every acknowledged commit was fsynced before"""
    committed: int = 0
    """how many were sent: the number of the last one"""
    damaged: dict[int, str] = field(default_factory=dict)
    """partitions of `__consumer_offsets` in which something rotted, and what"""

    def add(self, group: GroupModel) -> None:
        group.excused = self.damaged.get(group.partition, "")
        self.all.append(group)

    def excuse(self, partition: int, why: str) -> None:
        """Note that the log of this partition may be unreadable, for later groups as well."""
        self.damaged[partition] = why
        for group in self.of_partition(partition):
            group.excused = why
            group.past_returns()

    def of_partition(self, partition: int) -> Iterator[GroupModel]:
        return (group for group in self.all if group.partition == partition)

    def forget(self) -> None:
        """Forget all groups: an act removed the offsets topic."""
        self.all.clear()
        self.damaged.clear()
        self.flushed = False

    def may_lose(self, platter: Platter, log_dirs: Iterable[Path], *, also_answered: bool) -> None:
        """Allow the loss of what `platter` does not hold durably. Commits that were flushed before their
        response may be lost only with `also_answered`."""
        dirs = tuple(log_dirs)
        for partition in range(OFFSETS_PARTITIONS):
            durable = durable_positions(platter, dirs, partition)
            for group in self.of_partition(partition):
                for place, position in group.positions.items():
                    held = durable.get((group.group_id, place.topic, place.partition), NOTHING)
                    kept = self.flushed and not also_answered
                    if not kept:
                        position.past_returns(held)
                    elif max(held, position.answered) > position.gone:
                        position.past_returns(max(held, position.answered))
                if not self.flushed or also_answered:
                    group.past_returns()


def durable_positions(
    platter: Platter, log_dirs: Iterable[Path], partition: int
) -> dict[tuple[str, str, int], int]:
    """Return the offsets that are durable on the disk now, by group, topic and partition."""
    found: dict[tuple[str, str, int], int] = {}
    for data in durable_logs(platter, log_dirs, OFFSETS, partition):
        try:
            for header in complete_headers(data):
                if not verify_crc(data, header):
                    return found
                for record in records_of(data, header):
                    key = record.key or b""
                    if records.record_type(key) != records.OFFSET_COMMIT:
                        continue
                    where = records.decode_offset_key(key)
                    name = (where.group, where.topic, where.partition)
                    if record.value is None:
                        found.pop(name, None)
                    else:
                        found[name] = records.decode_offset_value(record.value).offset
        except CorruptionError:
            return found
    return found
