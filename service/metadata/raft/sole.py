"""The Raft machine: who leads, and up to which offset the log is committed. [P]

    UNATTACHED --start--> CANDIDATE --votes of a majority--> LEADER --stop--> RESIGNED

An event goes in, effects come out, and the shell does them in their order: that order is what makes it safe.
State is persisted before anything is done on its strength, the log is flushed before it counts, and nothing
is committed until a batch of the leader's own epoch is (Raft, section 5.4.2).

Quorums of one voter are what this software runs so far; votes and flushed offsets are counted per voter all
the same. Source: KIP-595, Apache Kafka ``QuorumState``, ``LeaderState``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from service.base.errors import ConfigError, InvariantError
from service.metadata.raft.state import QuorumState


class Role(Enum):
    UNATTACHED = "unattached"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


LEGAL_MOVES: Final = {
    Role.UNATTACHED: frozenset({Role.CANDIDATE, Role.RESIGNED}),
    Role.CANDIDATE: frozenset({Role.LEADER, Role.RESIGNED}),
    Role.LEADER: frozenset({Role.RESIGNED}),
    Role.RESIGNED: frozenset[Role](),
}


class Start(NamedTuple):
    """The node starts. `state` is what ``quorum-state`` says; the log ends (exclusive) as given."""

    state: QuorumState | None
    log_end_offset: int
    last_epoch: int


class Appended(NamedTuple):
    """Batches were written up to `end_offset` (exclusive); they are not on disk yet."""

    end_offset: int


class Flushed(NamedTuple):
    """The log is on disk up to `end_offset` (exclusive)."""

    end_offset: int


class Stop(NamedTuple):
    """The node stops in good order."""


Event = Start | Appended | Flushed | Stop


class Persist(NamedTuple):
    """Write ``quorum-state`` and fsync it, before the next effect."""

    state: QuorumState


class BecomeLeader(NamedTuple):
    """Append a LeaderChangeMessage of this epoch, then what clients ask for; tell `Appended` each time."""

    epoch: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class Flush(NamedTuple):
    """Fsync the log up to `end_offset` (exclusive), in the background; tell `Flushed`. One at a time."""

    end_offset: int


class Commit(NamedTuple):
    """Everything below `high_watermark` is decided for good."""

    high_watermark: int


Effect = Persist | BecomeLeader | Flush | Commit


class RaftMachine:
    """One node's part in the quorum. Owned by one thread; holds no clock, no file and no future."""

    def __init__(self, node_id: int, voters: tuple[int, ...]) -> None:
        if voters != (node_id,):
            raise ConfigError(
                f"controller.quorum.voters: node {node_id} must be the only voter, not one of {voters}"
            )
        self.node_id = node_id
        self.voters = voters
        self.role = Role.UNATTACHED
        self.epoch = 0
        self.high_watermark = 0
        self._granted: set[int] = set()
        self._epoch_start = 0
        self._end_offset = 0
        self._flushing: int | None = None
        self._flushed = dict.fromkeys(voters, 0)

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """What `event` leads to. Raises `InvariantError` for an event that the role does not know."""
        match event:
            case Start():
                return self._start(event)
            case Appended(end_offset):
                return self._appended(end_offset)
            case Flushed(end_offset):
                return self._flushed_up_to(end_offset)
            case Stop():
                self._move(Role.RESIGNED)
                return ()

    def next_deadline_ms(self) -> int | None:
        """A sole voter waits for nobody."""
        return None

    def _move(self, role: Role) -> None:
        if role not in LEGAL_MOVES[self.role]:
            raise InvariantError(f"raft: {self.role.value} does not become {role.value}")
        self.role = role

    def _start(self, event: Start) -> tuple[Effect, ...]:
        """Stand for election in a new epoch at once: a sole voter has nobody to wait for."""
        known = event.state.epoch if event.state is not None else 0
        self.epoch = max(known, event.last_epoch, 0) + 1
        self._epoch_start = self._end_offset = event.log_end_offset
        self._move(Role.CANDIDATE)
        vote = Persist(QuorumState(self.epoch, voted_id=self.node_id, voters=self.voters))
        self._granted = {self.node_id}
        return (vote, *self._win_if_elected())

    def _win_if_elected(self) -> tuple[Effect, ...]:
        if len(self._granted) < self._majority:
            return ()
        self._move(Role.LEADER)
        return (
            Persist(QuorumState(self.epoch, leader_id=self.node_id, voters=self.voters)),
            BecomeLeader(self.epoch, self.voters, tuple(sorted(self._granted))),
        )

    @property
    def _majority(self) -> int:
        return len(self.voters) // 2 + 1

    def _appended(self, end_offset: int) -> tuple[Effect, ...]:
        if self.role is not Role.LEADER or end_offset <= self._end_offset:
            raise InvariantError(f"raft: {self.role.value} at {self._end_offset} appended up to {end_offset}")
        self._end_offset = end_offset
        return self._flush_if_idle()

    def _flush_if_idle(self) -> tuple[Effect, ...]:
        """One flush at a time: what is appended while it runs shares the next one."""
        if self._flushing is not None or self._flushed[self.node_id] >= self._end_offset:
            return ()
        self._flushing = self._end_offset
        return (Flush(self._end_offset),)

    def _flushed_up_to(self, end_offset: int) -> tuple[Effect, ...]:
        self._flushing = None
        self._flushed[self.node_id] = max(self._flushed[self.node_id], end_offset)
        if self.role is not Role.LEADER:
            return ()
        by_majority = sorted(self._flushed.values(), reverse=True)[self._majority - 1]
        commit: tuple[Effect, ...] = ()
        if by_majority > max(self.high_watermark, self._epoch_start):
            self.high_watermark = by_majority
            commit = (Commit(by_majority),)
        return (*commit, *self._flush_if_idle())
