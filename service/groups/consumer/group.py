"""State of a KIP-848 group: members, targets, and owners of partitions. Changed by replay alone. [P]

Epochs: the *group epoch* rises with every change of members, subscriptions or topics; the *target epoch* is
the group epoch that the targets were made for; a *member's epoch* is the target epoch that it has reached.

Group states, derived and not stored::

    Empty        no members
    Assigning    the targets are of an older epoch than the group
    Reconciling  some member has not reached its target
    Stable

Member states and their moves (`reconcile`)::

    STABLE                 at its target
    UNREVOKED_PARTITIONS   must revoke partitions before its epoch rises
    UNRELEASED_PARTITIONS  waits for partitions that others have not revoked

Volatile state is in `Volatile`: results of checks, and work in progress. Source: Apache Kafka
``ConsumerGroup``, ``ModernGroup``, ``ConsumerGroupMember``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from service.base.timeline import Journal, Timeline
from service.groups.records_modern import (
    ClassicMemberMetadata,
    CurrentValue,
    MemberValue,
    Owned,
    Partitions,
)

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
AWAY_EPOCH: Final = -2
"""Epoch of a static member that left temporarily: the next member with its instance id replaces it."""
FIRST_EPOCH: Final = 1
"""Epoch of a group without members, and of its targets."""
NO_EPOCH: Final = -1
"""Epoch of targets that were deleted with their group."""

NEVER: Final = -1
"""Below any version of the topics."""

NOTHING_OWNED: Final[Owned] = MappingProxyType({})
NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


class MemberState(IntEnum):
    """Member states by their numbers in the record; see above."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class GroupState(Enum):
    """Group states by their names in the admin APIs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroupMember(NamedTuple):
    """A member, from its records 5 and 8. `classic`: it uses the classic protocol."""

    member_id: str
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = ""
    assignor: str | None = None
    assigned: Owned = NOTHING_OWNED
    pending_revocation: Owned = NOTHING_OWNED
    classic: ClassicMemberMetadata | None = None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def with_subscription(self, value: MemberValue) -> ConsumerGroupMember:
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex,
            assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_current(self, value: CurrentValue) -> ConsumerGroupMember:
        return self._replace(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=value.assigned,
            pending_revocation=value.pending_revocation,
        )

    def subscription(self) -> MemberValue:
        """Return the value of record 5."""
        return MemberValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=tuple(sorted(self.topics)),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=self.classic,
        )

    def current(self) -> CurrentValue:
        """Return the value of record 8."""
        return CurrentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            assigned=self.assigned,
            pending_revocation=self.pending_revocation,
        )


class Resolved(NamedTuple):
    """Topics that match a regular expression, with the version of the metadata and the time (ms) of the
    match."""

    topics: frozenset[str]
    version: int
    timestamp: int


class Subscribers(NamedTuple):
    """Number of members that subscribe to a topic by name, and of regular expressions that match it."""

    by_name: int
    by_regex: int


WORK_TIMEOUT_MS: Final = 60_000
"""Timeout of long work: without a result by then it is started again."""


def is_under_way(until_ms: int, now_ms: int) -> bool:
    """Return whether work with this timeout is in progress. After a clock was set back, it is not."""
    return until_ms - WORK_TIMEOUT_MS <= now_ms < until_ms


class Volatile:
    """Volatile state of a group; what is lost is found again."""

    __slots__ = ("assigning", "checked", "join_due", "resolved_at", "resolving_until_ms")

    def __init__(self) -> None:
        self.checked: tuple[int, int] | None = None
        """version of the topics and group epoch at which the metadata hash was last found unchanged"""
        self.resolved_at = NEVER
        """version of the topics that the regular expressions were last resolved with"""
        self.resolving_until_ms = 0
        """timeout of the resolution in progress"""
        self.assigning: tuple[int, int] | None = None
        """epoch of the target assignment in progress, and its timeout (ms)"""
        self.join_due: dict[str, int] = {}
        """deadlines of classic members that have to rejoin"""


class ConsumerGroup:
    """One group. Timelines are the shard's; only `put_*`, `remove_*` and `set_*` change them."""

    __slots__ = (
        "_journal",
        "_numbers",
        "_owners",
        "group_id",
        "members",
        "regex_members",
        "regexes",
        "static_members",
        "subscribed",
        "targets",
        "volatile",
    )

    def __init__(self, group_id: str, journal: Journal) -> None:
        self.group_id = group_id
        self._journal = journal
        self._numbers: Timeline[str, int] = Timeline(journal)
        self.members: Timeline[str, ConsumerGroupMember] = Timeline(journal)
        self.targets: Timeline[str, Partitions] = Timeline(journal)
        self.static_members: Timeline[str, str] = Timeline(journal)
        """member ids by instance ids"""
        self.subscribed: Timeline[str, Subscribers] = Timeline(journal)
        """by the topic's name"""
        self.regexes: Timeline[str, Resolved] = Timeline(journal)
        self.regex_members: Timeline[str, int] = Timeline(journal)
        """number of members that subscribe to a regular expression"""
        self._owners: dict[UUID, Timeline[int, str]] = {}
        self.volatile = Volatile()

    @property
    def epoch(self) -> int:
        return self._numbers.get("epoch", FIRST_EPOCH)

    @property
    def metadata_hash(self) -> int:
        return self._numbers.get("hash", 0)

    @property
    def target_epoch(self) -> int:
        return self._numbers.get("target epoch", FIRST_EPOCH)

    @property
    def target_ms(self) -> int:
        """Time at which the targets were made; 0 if there are none, or it is not known."""
        return self._numbers.get("target ms", 0)

    @property
    def classic_count(self) -> int:
        """Number of members that use the classic protocol."""
        return self._numbers.get("classic", 0)

    @property
    def has_partition_metadata(self) -> bool:
        """The log has a record of type 4, which needs a tombstone."""
        return "partition metadata" in self._numbers

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        """Return the member that owns the partition, or has not revoked it yet."""
        owners = self._owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        if instance_id is None:
            return None
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str, instance_id: str | None = None) -> Partitions:
        """Return the member's target; a static member's is that of its instance id's holder."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, "")
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name or by its resolved regular expression."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        if resolved is None or not resolved.topics:
            return member.topics
        return member.topics | resolved.topics if member.topics else resolved.topics

    # The states, newest and committed.

    def state(self) -> GroupState:
        return _state(self.members.values(), self.epoch, self.target_epoch)

    def committed_epochs(self) -> tuple[int, int]:
        """Return the committed group epoch and target epoch."""
        committed = self._numbers.committed
        return committed("epoch", FIRST_EPOCH), committed("target epoch", FIRST_EPOCH)

    def committed_state(self) -> GroupState:
        members = (member for _, member in self.members.committed_items())
        return _state(members, *self.committed_epochs())

    # Changes by replay.

    def put_member(self, new: ConsumerGroupMember) -> None:
        old = self.members.get(new.member_id)
        self.members[new.member_id] = new
        self._count_topics(old.topics if old else frozenset(), new.topics)
        self._count_regex(old.regex if old else None, new.regex)
        self._count_classic((new.classic is not None) - (old is not None and old.classic is not None))
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.member_id
        if old is None:
            self._own(new.member_id, NOTHING_OWNED, NOTHING_OWNED, new)
        else:
            self._own(new.member_id, old.assigned, old.pending_revocation, new)

    def remove_member(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is None:
            return
        self._count_topics(old.topics, frozenset())
        self._count_regex(old.regex, None)
        self._count_classic(-(old.classic is not None))
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]
        self._own(member_id, old.assigned, old.pending_revocation, None)
        self.volatile.join_due.pop(member_id, None)

    def put_target(self, member_id: str, partitions: Partitions) -> None:
        self.targets[member_id] = partitions

    def remove_target(self, member_id: str) -> None:
        self.targets.pop(member_id, None)

    def put_regex(self, regex: str, resolved: Resolved) -> None:
        old = self.regexes.get(regex)
        self.regexes[regex] = resolved
        if old is None or old.topics != resolved.topics:
            self._count_resolved(old.topics if old else frozenset(), resolved.topics)

    def remove_regex(self, regex: str) -> None:
        old = self.regexes.pop(regex, None)
        if old is not None:
            self._count_resolved(old.topics, frozenset())

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        self._numbers["epoch"] = epoch
        self._numbers["hash"] = metadata_hash

    def set_target_epoch(self, epoch: int, timestamp: int) -> None:
        self._numbers["target epoch"] = epoch
        self._numbers["target ms"] = timestamp

    def set_partition_metadata(self, there: bool) -> None:
        if there:
            self._numbers["partition metadata"] = 1
        else:
            self._numbers.pop("partition metadata", None)

    def _count_topics(self, old: frozenset[str], new: frozenset[str]) -> None:
        if old == new:
            return
        for name in old - new:
            self._count(name, -1, 0)
        for name in new - old:
            self._count(name, 1, 0)

    def _count_resolved(self, old: frozenset[str], new: frozenset[str]) -> None:
        for name in old - new:
            self._count(name, 0, -1)
        for name in new - old:
            self._count(name, 0, 1)

    def _count(self, name: str, by_name: int, by_regex: int) -> None:
        count = self.subscribed.get(name, Subscribers(0, 0))
        counted = Subscribers(count.by_name + by_name, count.by_regex + by_regex)
        if counted == (0, 0):
            self.subscribed.pop(name, None)
        else:
            self.subscribed[name] = counted

    def _count_regex(self, old: str | None, new: str | None) -> None:
        if old == new:
            return
        if old:
            left = self.regex_members.get(old, 1) - 1
            if left:
                self.regex_members[old] = left
            else:
                self.regex_members.pop(old, None)
        if new:
            self.regex_members[new] = self.regex_members.get(new, 0) + 1

    def _count_classic(self, change: int) -> None:
        if change:
            self._numbers["classic"] = self.classic_count + change

    def _own(self, member_id: str, assigned: Owned, pending: Owned, new: ConsumerGroupMember | None) -> None:
        """Change the owners: the member owned `assigned` and `pending`, and now owns what `new` has."""
        after = (NOTHING_OWNED, NOTHING_OWNED) if new is None else (new.assigned, new.pending_revocation)
        if (assigned, pending) == after:
            return
        for topic_id, partition in _owned(assigned, pending):
            owners = self._owners.get(topic_id)
            if (
                owners is not None
                and owners.get(partition) == member_id
                and not any(partition in having.get(topic_id, ()) for having in after)
            ):
                del owners[partition]
        for topic_id, partition in _owned(*after):
            owners = self._owners.get(topic_id)
            if owners is None:
                self._sweep()
                owners = self._owners[topic_id] = Timeline(self._journal)
            if owners.get(partition) != member_id:
                owners[partition] = member_id

    def _sweep(self) -> None:
        """Drop empty per-topic ownership maps once no uncommitted change can roll back into them."""
        if len(self._journal) == 0:
            for topic_id in [topic_id for topic_id, owners in self._owners.items() if not len(owners)]:
                del self._owners[topic_id]


def _owned(assigned: Owned, pending: Owned) -> Iterator[tuple[UUID, int]]:
    for owned in (assigned, pending):
        for topic_id, partitions in owned.items():
            for partition in partitions:
                yield topic_id, partition


def _state(members: Iterable[ConsumerGroupMember], epoch: int, target_epoch: int) -> GroupState:
    state = GroupState.EMPTY
    for member in members:
        if epoch > target_epoch:
            return GroupState.ASSIGNING
        if not member.is_reconciled_to(target_epoch):
            return GroupState.RECONCILING
        state = GroupState.STABLE
    return state
