"""Change of one partition: the only place that decides leader, ISR and eligible replicas. [P]

It upholds invariants P5 (one leader in an epoch) and P7 (the leader is in sync, the ISR are replicas).

Source: Apache Kafka ``PartitionChangeBuilder`` (metadata.version 30), KIP-966 for eligible leader replicas.

- A leader comes from the ISR, or from the eligible replicas (ELR) once the ISR is empty, in the order of the
  replicas; the current leader stays while it may. A replica without room for records leads only where all
  others that may lead have no room either (Kafka does not consider room).
- With ELR the ISR may become empty. A replica that leaves an ISR below the topic's ``min.insync.replicas``
  enters the ELR, as it has every committed record. A replica that stopped uncleanly never does, nor does a
  former replica (Kafka keeps it there, where it can never lead, and blocks the last known leader). Where ISR
  and ELR are empty, the last known leader is elected, and marked as recovering.
- Without ELR the last member of the ISR stays in it, and leads again when it is back.
- An unclean election elects any live replica, which may lose records; a replica that a reassignment adds, and
  that may have no records yet, only where no other lives (Kafka elects it first).
- A leader epoch begins when a leader is written, even the same one: so when a replica leaves for good; not
  when the ISR shrinks. Every change begins a partition epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from service.metadata.image import BrokerImage, PartitionImage
from service.metadata.records import LEADER_UNCHANGED, NO_LEADER, PartitionChangeRecord

NOT_KNOWN: Final = UUID(int=0)
"""The broker has reported no directories (Kafka's ``DirectoryId.MIGRATING``)."""
UNASSIGNED: Final = UUID(int=1)
"""No directory yet: the broker chooses (Kafka's ``DirectoryId``)."""
LOST: Final = UUID(int=2)
"""The replica is offline, whatever its directory (Kafka's ``DirectoryId``)."""
RECOVERED: Final = 0
RECOVERING: Final = 1
_STATE_UNCHANGED: Final = -1


class Election(Enum):
    """Kinds of leader election."""

    PREFERRED = "preferred"
    """The first replica, where it may lead."""
    ONLINE = "online"
    """The current leader, else any replica that has all committed records."""
    UNCLEAN = "unclean"
    """As `ONLINE`; where that finds none, any live replica."""


class ElectionRules(NamedTuple):
    """Settings of a topic that its elections depend on."""

    min_isr: int = 1
    """``min.insync.replicas``"""
    is_elr_enabled: bool = False
    allows_unclean: bool = False
    """``unclean.leader.election.enable``"""
    first_replicas: int = 1
    """Number of replicas of the topic's partition 0."""

    @property
    def election(self) -> Election:
        """Kind of election that the topic's settings allow."""
        return Election.UNCLEAN if self.allows_unclean else Election.ONLINE


class PartitionTarget(NamedTuple):
    """Requested state of a partition; None: unchanged."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery: int | None = None
    directories: Mapping[int, UUID] | None = None
    """New directories by broker."""
    unclean: Collection[int] = ()
    """Brokers that stopped uncleanly, and may have lost records."""


_UNCHANGED: Final = PartitionTarget()


def directory_of_new(broker: BrokerImage | None) -> UUID:
    """Return the directory of a new replica of the broker (Kafka `ClusterControlManager.defaultDir`)."""
    if broker is None or len(broker.log_dirs) > 1:
        return UNASSIGNED
    return broker.log_dirs[0] if broker.log_dirs else NOT_KNOWN


def change_partition(
    topic_id: UUID,
    partition_id: int,
    state: PartitionImage,
    rules: ElectionRules,
    may_lead: Callable[[int], bool],
    *,
    has_room: Callable[[int], bool] = lambda broker_id: True,
    election: Election = Election.ONLINE,
    wanted: PartitionTarget = _UNCHANGED,
    default_directory: Callable[[int], UUID] = lambda broker_id: UNASSIGNED,
) -> PartitionChangeRecord | None:
    """Return the change to the wanted state, with the leader that results; None where there is no change.

    `may_lead(broker)`: it is alive, and its replica is in a working directory. `has_room(broker)`: that
    directory takes records; a replica without room leads only where no other may.
    `default_directory(broker)`: directory of a new replica.
    """
    change = _Change(state, rules, may_lead, has_room, election, wanted)
    change.complete_reassignment()
    change.choose_eligible()
    change.elect()
    return change.record(topic_id, partition_id, default_directory)


class _Change:
    """Change in progress: the new state of the partition beside the current one."""

    __slots__ = (
        "adding",
        "election",
        "eligible",
        "has_room",
        "isr",
        "leader",
        "may_lead",
        "recovery",
        "removing",
        "replicas",
        "rules",
        "state",
        "unclean_leader",
        "wanted",
    )

    def __init__(
        self,
        state: PartitionImage,
        rules: ElectionRules,
        may_lead: Callable[[int], bool],
        has_room: Callable[[int], bool],
        election: Election,
        wanted: PartitionTarget,
    ) -> None:
        self.state = state
        self.rules = rules
        self.may_lead = may_lead
        self.has_room = has_room
        self.election = election
        self.wanted = wanted
        self.isr = state.isr if wanted.isr is None else wanted.isr
        self.replicas = state.replicas if wanted.replicas is None else wanted.replicas
        self.removing = state.removing_replicas if wanted.removing is None else wanted.removing
        self.adding = state.adding_replicas if wanted.adding is None else wanted.adding
        self.recovery = state.leader_recovery_state if wanted.recovery is None else wanted.recovery
        self.eligible = state.eligible_leader_replicas
        self.leader = LEADER_UNCHANGED
        self.unclean_leader = False

    def complete_reassignment(self) -> None:
        """Complete a reassignment once all added replicas are in sync.

        Where it reduces the number of replicas, all remaining replicas must be in sync: else the ISR could
        fall below the number that it needs.
        """
        if not self.removing and not self.adding:
            return
        isr, replicas = self.isr, self.replicas
        if self.removing:
            isr = tuple(one for one in isr if one not in self.removing)
            replicas = tuple(one for one in replicas if one not in self.removing)
            if not isr or not replicas:
                return
        needed = {*self.adding, *replicas} if len(self.adding) < len(self.removing) else {*self.adding}
        if needed <= set(isr):
            self.isr, self.replicas, self.removing, self.adding = isr, replicas, (), ()

    def choose_eligible(self) -> None:
        """Set the eligible replicas: those that have all committed records and are not in sync."""
        if not self.rules.is_elr_enabled:
            return
        if self._is_at_min_isr():
            self.eligible = ()
            return
        unclean = self.wanted.unclean
        gone = set(self.state.replicas).difference(self.replicas)
        candidates = sorted({*self.eligible, *self.state.isr} - gone)
        self.eligible = tuple(one for one in candidates if one not in self.isr and one not in unclean)

    def _is_at_min_isr(self) -> bool:
        # At most the number of replicas. Apache Kafka uses that of partition 0, which a reassignment may have
        # made smaller than this one's, by which its leader counts: the ELR would be cleared too early.
        replicas = max(self.rules.first_replicas, len(self.replicas))
        return len(self.isr) >= min(self.rules.min_isr, replicas)

    def elect(self) -> None:
        elected, is_unclean = self._elected()
        if elected == self.state.leader:
            return
        if elected in self.eligible:
            self.isr = (elected,)
            # min.insync.replicas may be lower than when these became eligible.
            is_enough = self._is_at_min_isr()
            self.eligible = () if is_enough else tuple(one for one in self.eligible if one != elected)
        self.leader, self.unclean_leader = elected, is_unclean
        if is_unclean and self.state.leader_recovery_state != RECOVERING:
            self.recovery = RECOVERING

    def _elected(self) -> tuple[int, bool]:
        """Return the leader to elect, and whether it may lack committed records."""
        current, preferred = self.state.leader, self.replicas[0]
        able = list(filter(self._is_able, self.replicas))
        with_room = list(filter(self.has_room, able))
        if self.election is Election.PREFERRED and preferred in with_room:
            return preferred, False
        for candidates in (with_room, able):  # invariant P14: one with room, if there is any
            if candidates:
                return current if current in candidates else candidates[0], False
        if (last := self._last_known_leader()) is not None:
            return last, True
        if self.election is Election.UNCLEAN:
            alive = filter(self.may_lead, self.replicas)
            if (first := min(alive, key=self.adding.__contains__, default=None)) is not None:
                return first, True
        return NO_LEADER, False

    def _is_able(self, replica: int) -> bool:
        return replica in (self.isr or self.eligible) and self.may_lead(replica)

    def _last_known_leader(self) -> int | None:
        known = self.state.last_known_elr
        if not self.rules.is_elr_enabled or self.isr or self.eligible or len(known) != 1:
            return None
        return known[0] if self.may_lead(known[0]) else None

    def record(
        self, topic_id: UUID, partition_id: int, default_directory: Callable[[int], UUID]
    ) -> PartitionChangeRecord | None:
        state = self.state
        leader = self.leader
        if leader == LEADER_UNCHANGED and not set(state.replicas) <= set(self.replicas):
            leader = state.leader  # a replica leaves for good
        isr = self._changed_isr()
        eligible = self.eligible
        if self.unclean_leader or not self.rules.is_elr_enabled:
            eligible = ()
        directories = self._directories(default_directory)
        changes = (
            isr,
            leader,
            None if self.replicas == state.replicas else self.replicas,
            None if self.removing == state.removing_replicas else self.removing,
            None if self.adding == state.adding_replicas else self.adding,
            _STATE_UNCHANGED if self.recovery == state.leader_recovery_state else self.recovery,
            directories if directories != state.directories else None,
            None if eligible == state.eligible_leader_replicas else eligible,
            self._last_known(leader),
        )
        if changes == _NO_CHANGES:
            return None
        return PartitionChangeRecord(
            partition_id=partition_id,
            topic_id=topic_id,
            isr=changes[0],
            leader=changes[1],
            replicas=changes[2],
            removing_replicas=changes[3],
            adding_replicas=changes[4],
            leader_recovery_state=changes[5],
            directories=changes[6],
            eligible_leader_replicas=changes[7],
            last_known_elr=changes[8],
        )

    def _changed_isr(self) -> tuple[int, ...] | None:
        if self.unclean_leader:
            return (self.leader,)
        may_be_set = bool(self.isr) or self.rules.is_elr_enabled
        return self.isr if may_be_set and self.isr != self.state.isr else None

    def _last_known(self, leader: int) -> tuple[int, ...] | None:
        """Return the change of the last known leader: set when the last leader goes, cleared with a
        new one."""
        if not self.rules.is_elr_enabled:
            return None
        if leader == NO_LEADER and self.state.has_leader and not self.state.last_known_elr:
            return (self.state.leader,)
        if leader >= 0 and self.state.last_known_elr:
            return ()
        return None

    def _directories(self, default_directory: Callable[[int], UUID]) -> tuple[UUID, ...]:
        state, moved = self.state, self.wanted.directories
        if self.replicas == state.replicas and not moved:
            return state.directories
        known = dict(zip(state.replicas, state.directories, strict=False))
        known.update(moved or {})
        return tuple(
            known[replica] if replica in known else default_directory(replica) for replica in self.replicas
        )


_NO_CHANGES: Final = (None, LEADER_UNCHANGED, None, None, None, _STATE_UNCHANGED, None, None, None)
