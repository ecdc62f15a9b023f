"""State that all roles of the Raft machine share (epoch, vote, leader), and the transitions. [P]

A change of the epoch, the vote or the leader is persisted before any effect that depends on it.
"""

from __future__ import annotations

from typing import Final

from service.base.errors import InvariantError
from service.metadata.endpoint import Endpoint
from service.metadata.raft.election_timeouts import ElectionTimeouts
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendControl,
    AppendFetched,
    ControlRecord,
    Effect,
    FlushLog,
    FollowLeader,
    KRaftVersion,
    KRaftVoters,
    Lead,
    LeaderChange,
    OutboundResponse,
    Peer,
    Persist,
    RestartAt,
    StepDown,
    TruncateTo,
)
from service.metadata.raft.keys import NO_DIRECTORY, NOBODY, ReplicaKey
from service.metadata.raft.log_view import LogView
from service.metadata.raft.request_manager import RequestManager
from service.metadata.raft.requests import RaftRequest, RaftResponse
from service.metadata.raft.roles import (
    LEGAL_MOVES,
    NEVER,
    Candidate,
    Follower,
    Leader,
    Prospective,
    RaftTiming,
    RandomSource,
    ReplicaIdentity,
    Resigned,
    Role,
    RoleState,
    Unattached,
)
from service.metadata.raft.state import MAX_EPOCH, QuorumState
from service.metadata.raft.voters import RECONFIGURABLE, VoterNode, VoterSet

UPDATE_PERIOD_FETCH_TIMEOUTS: Final = 3
_CHANGES_LOG: Final = (AppendControl, AppendFetched, TruncateTo, RestartAt)
_TWO_PASTS: Final = (
    "; one of the two has a disk of a diverged history of the cluster: stop that node (docs/operations.md, "
    '"Of a cluster of several")'
)


class RaftCore:
    """Shared state. Owned by the machine; role modules read it, and change it by its methods."""

    def __init__(
        self, identity: ReplicaIdentity, log: LogView, timing: RaftTiming, random: RandomSource
    ) -> None:
        self.identity = identity
        self.key = identity.key
        self.log = log
        self.timing = timing
        self.random = random
        self.election_timeouts = ElectionTimeouts(timing, random)
        self.calls = RequestManager(timing.request_timeout_ms, timing.retry_backoff_ms)
        self.now_ms = 0
        self.epoch = 0
        self.voted: ReplicaKey | None = None
        self.leader_id = NOBODY
        self.leader_endpoint: Endpoint | None = None
        self.high_watermark = 0
        """Everything below it is known to be committed. Never falls."""
        self.flushed = 0
        self.state: RoleState = Unattached(NEVER)
        self.stopping = False
        self.deadline_ms = NEVER
        self.confirmed_ms = 0
        """Newest time at which the leader answered this replica, or a majority fetched from it as the leader;
        the start before that."""
        self.effects: list[Effect] = []
        self.log_changes = False
        self.orphans: list[Leader] = []
        """Past leaderships of this node whose parked requests are still to be answered."""
        self._persisted: QuorumState | None = None
        self._flushing: int | None = None

    # -- state

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.latest

    @property
    def is_voter(self) -> bool:
        return self.voters.has(self.key)

    @property
    def has_moved(self) -> bool:
        """True where this voter's endpoints differ from those in the voters' record."""
        mine = self.voters.get(self.key.node_id)
        is_recordable = self.log.voters.version >= RECONFIGURABLE and bool(self.identity.endpoints)
        return (
            is_recordable and self.is_voter and mine is not None and mine.endpoints != self.identity.endpoints
        )

    @property
    def is_recorded(self) -> bool:
        """True where the committed voters' record has this voter's endpoints, and for a node that is no
        voter."""
        offset = self.log.voters.latest_offset
        return not self.has_moved and (offset is None or offset < self.high_watermark)

    @property
    def may_start_election(self) -> bool:
        """True where this replica may start an election.

        A voter may; a removed voter may, too, until its removal is known to be committed: of two voters it
        may be the only one that has the record, and the other cannot win without its vote (Raft thesis,
        4.2.2).
        """
        if self.epoch > MAX_EPOCH - 1:
            return False  # no epoch is left
        if self.is_voter:
            return True
        offset, before = self.log.voters.latest_offset, self.log.voters.previous
        is_open = offset is not None and offset >= self.high_watermark
        return is_open and before is not None and before.has(self.key)

    @property
    def is_sole_voter(self) -> bool:
        return len(self.voters) == 1 and self.is_voter

    def other_voters(self) -> list[VoterNode]:
        return [voter for voter in self.voters if voter.node_id != self.key.node_id]

    def peer(self, voter: VoterNode) -> Peer | None:
        endpoint = self.identity.reached(voter.endpoints)
        return None if endpoint is None else Peer(voter.node_id, endpoint)

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """Return the endpoint of the leader `node_id` for responses."""
        if node_id == self.key.node_id:
            return self.identity.endpoints[0] if self.identity.endpoints else None
        if node_id == self.leader_id and self.leader_endpoint is not None:
            return self.leader_endpoint
        return endpoint_of_voter(self, node_id)

    # -- effects and time

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)
        if isinstance(effect, _CHANGES_LOG):
            self.log_changes = True

    def reply(self, request_id: int, answer: RaftResponse) -> None:
        self.emit(OutboundResponse(request_id, answer))

    def wake_at(self, time_ms: int) -> None:
        self.deadline_ms = min(self.deadline_ms, time_ms)

    def is_due(self, time_ms: int) -> bool:
        """Return whether `time_ms` has come; if not, request a tick then."""
        if time_ms <= self.now_ms:
            return True
        self.wake_at(time_ms)
        return False

    def ask(self, peer: Peer | None, request: RaftRequest) -> bool:
        """Send `request`, and return True; where the peer is busy or backed off, request a tick and return
        False."""
        if peer is None or not self.is_due(self.calls.free_at_ms(peer.endpoint, request)):
            return False
        self.emit(self.calls.send(peer, request, self.now_ms))
        return True

    def commit(self, mark: int) -> None:
        if mark > self.high_watermark:  # invariant R5: it never falls
            self.high_watermark = mark
            self.emit(AdvanceHighWatermark(mark))

    # -- the log

    def flush_if_idle(self) -> None:
        """Flush the log unless a flush is running: batches appended meanwhile share the next flush."""
        end = self.log.end_offset
        if not self.identity.can_vote:
            self.flushed = end
        elif self._flushing is None and self.flushed < end:
            self._flushing = end
            self.emit(FlushLog(end))

    def flush_ended(self, end_offset: int) -> None:
        self._flushing = None
        self.flushed = max(self.flushed, end_offset)

    def truncate(self, end_offset: int, reason: str) -> None:
        """Truncate the log; `InvariantError` where that would take committed records away (invariant R3)."""
        if end_offset < self.high_watermark:
            raise InvariantError(
                f"raft: the leader of epoch {self.epoch} (node {self.leader_id}) requires the metadata log "
                f"to end at {end_offset} ({reason}); ours ends at {self.log.end_offset} in epoch "
                f"{self.log.epochs.latest} and is committed up to {self.high_watermark}{_TWO_PASTS}"
            )
        self.flushed, self._flushing = min(self.flushed, end_offset), None
        self.emit(TruncateTo(end_offset))

    def restart(self, effect: RestartAt) -> None:
        end_offset = effect.snapshot.end_offset
        if end_offset < self.high_watermark:
            raise InvariantError(
                f"raft: the leader of epoch {self.epoch} (node {self.leader_id}) sent a snapshot that "
                f"ends at {end_offset}; ours is committed up to {self.high_watermark}{_TWO_PASTS}"
            )
        self.flushed, self._flushing = end_offset, None
        self.emit(effect)
        self.commit(end_offset)

    # -- persisting

    def set_persisted(self, state: QuorumState | None) -> None:
        """Set the state that is on disk."""
        self._persisted = state

    def persist(self) -> None:
        """Persist epoch, vote and leader where they changed; replaces a `Persist` that is not applied yet."""
        version = min(self.log.voters.version, 1)
        leads = self.leader_id == self.key.node_id
        voted = ReplicaKey(NOBODY) if self.voted is None or leads else self.voted
        state = QuorumState(
            self.epoch,
            self.leader_id,
            voted.node_id,
            () if version else self.voters.ids,
            voted.directory_id if version else NO_DIRECTORY,
            version,
        )
        if state == self._persisted:
            return
        self._persisted = state
        for i in range(len(self.effects) - 1, -1, -1):
            if isinstance(self.effects[i], Persist):
                self.effects[i] = Persist(state)  # no effect depends on the replaced one
                return
            if not isinstance(self.effects[i], FollowLeader | StepDown):
                break
        self.emit(Persist(state))

    # -- moves

    def _move(self, state: RoleState) -> None:
        before = self.state
        if state.role not in LEGAL_MOVES[before.role]:
            raise InvariantError(f"raft: {before.role.value} does not become {state.role.value}")
        self.state = state
        if isinstance(before, Leader):
            self._leave(before)

    def _leave(self, leader: Leader) -> None:
        """Keep the leadership for the machine, which answers its parked requests before anything else."""
        self.emit(StepDown())
        self.orphans.append(leader)

    def resume(self, state: RoleState) -> None:
        """Set the role at start-up."""
        self.state = state

    def become_unattached(self, epoch: int, *, restart_timeout: bool = False) -> None:
        """Enter a later epoch, or give up the leader of this one.

        A role that was waiting for an election keeps its deadline, unless it `restart_timeout`.
        """
        before = self.state
        if epoch > self.epoch:
            self.epoch, self.voted = epoch, None
            self.leader_id, self.leader_endpoint = NOBODY, None
        if not restart_timeout and isinstance(before, Unattached | Prospective | Candidate | Resigned):
            deadline_ms = before.deadline_ms
        else:
            deadline_ms = self.now_ms + self.election_timeouts.timeout_ms()
        self._move(Unattached(deadline_ms))
        self.persist()
        self.emit(FollowLeader(NOBODY, self.epoch))

    def vote_for(self, candidate: ReplicaKey) -> None:
        """Vote for `candidate`: as Unattached or Prospective only, once in an epoch. Restarts the election
        timeout."""
        if self.voted is not None and not self.voted.matches(candidate):
            raise InvariantError(f"raft: voted for {self.voted} in epoch {self.epoch}, not for {candidate}")
        self.voted = candidate
        deadline_ms = self.now_ms + self.election_timeouts.timeout_ms()
        if isinstance(self.state, Unattached):
            self.state.deadline_ms = deadline_ms
        elif isinstance(self.state, Prospective):
            self.state = Prospective(
                deadline_ms, {self.key.node_id}
            )  # asks for pre-votes again if that election fails
        self.persist()

    def become_follower(self, epoch: int, leader_id: int, endpoint: Endpoint | None) -> None:
        """Follow `leader_id` in `epoch`. Without its endpoint, stay Unattached with an election timeout."""
        if leader_id == self.key.node_id:
            raise InvariantError(f"raft: node {leader_id} is to follow itself in epoch {epoch}")
        if epoch == self.epoch and self.leader_id not in (NOBODY, leader_id):
            raise InvariantError(
                f"raft: two leaders in epoch {epoch}: {self.leader_id} and {leader_id}; our log ends at "
                f"{self.log.end_offset} in epoch {self.log.epochs.latest}"
            )
        if epoch > self.epoch:
            self.epoch, self.voted = epoch, None
        self.leader_id, self.leader_endpoint = leader_id, endpoint
        period_ms = UPDATE_PERIOD_FETCH_TIMEOUTS * self.timing.fetch_timeout_ms
        if endpoint is None:
            deadline_ms = self.now_ms + self.election_timeouts.timeout_ms()
            self._move(Unattached(deadline_ms))
        else:
            self.election_timeouts.lost = 0
            self._move(
                Follower(
                    deadline_ms=self.now_ms + self.timing.fetch_timeout_ms,
                    # Kafka waits for a period: a leader that is elected meanwhile would not find us.
                    update_due_ms=self.now_ms + (0 if self.has_moved else period_ms),
                )
            )
        self.persist()
        self.emit(FollowLeader(leader_id, epoch))

    def become_prospective(self) -> None:
        """Ask for pre-votes first: a node that cannot win does not disturb the others with a new epoch."""
        self._move(Prospective(self.now_ms + self.election_timeouts.timeout_ms(), {self.key.node_id}))

    def become_candidate(self) -> None:
        self.epoch += 1
        self.election_timeouts.lost += 1
        self.leader_id, self.leader_endpoint = NOBODY, None
        self.voted = self.key
        self._move(Candidate(self.now_ms + self.election_timeouts.timeout_ms(), {self.key.node_id}))
        self.persist()

    def become_leader(self, granted: tuple[int, ...]) -> None:
        """Lead: once the leadership is on disk, append the epoch's first batch."""
        self.leader_id, self.leader_endpoint = self.key.node_id, self.endpoint_of(self.key.node_id)
        self.election_timeouts.lost = 0
        wait_ms = self.timing.fetch_timeout_ms * 3 // 2
        deadline_ms = self.now_ms + wait_ms
        self._move(Leader(self.log.end_offset, granted, deadline_ms, began_ms=self.now_ms))
        self.persist()
        self.emit(AppendControl(self.epoch, (self._leader_change(granted), *self._voters_to_append())))
        self.emit(Lead(self.epoch))

    def _leader_change(self, granted: tuple[int, ...]) -> LeaderChange:
        return LeaderChange(self.key.node_id, self.voters.ids, granted)

    def _voters_to_append(self) -> tuple[ControlRecord, ...]:
        """Return the voters' records to append: where the log lacks the bootstrap snapshot's voters, or we
        moved."""
        history = self.log.voters
        if history.version < RECONFIGURABLE:
            return ()
        voters = history.latest
        mine = voters.get(self.key.node_id)
        moved = voters
        if mine is not None and self.identity.endpoints and mine.endpoints != self.identity.endpoints:
            moved = voters.with_voter(mine._replace(endpoints=self.identity.endpoints))
        if moved == voters and history.latest_offset not in (None, -1):
            return ()
        return (KRaftVersion(history.version), KRaftVoters(moved))

    def resign(self, successors: tuple[ReplicaKey, ...] = ()) -> None:
        """Give up the leadership."""
        others = {voter.node_id for voter in self.other_voters()}
        self._move(Resigned(self.now_ms + self.election_timeouts.timeout_ms(), successors, others))


def endpoint_of_voter(core: RaftCore, node_id: int) -> Endpoint | None:
    """Return the endpoint at which this replica reaches a voter."""
    voter = core.voters.get(node_id)
    return None if voter is None else core.identity.reached(voter.endpoints)


def endpoint_for(core: RaftCore, listener: str, leader_id: int, own: Endpoint | None) -> Endpoint | None:
    """Return the leader's endpoint for a peer that came to a listener of ours: that of the same name.

    Where the peer uses the listener that we use, that is `own`, at which we reach the leader; else it is in
    the voters' record, or nowhere (``KafkaRaftClient``: ``leaderEndpoints.address(listenerName)``).
    """
    mine, name = core.identity.endpoints, listener.upper()
    if own is None or not mine or name == mine[0].name.upper():
        return own
    voter = core.voters.get(leader_id)
    known = mine if leader_id == core.key.node_id else () if voter is None else voter.endpoints
    return next((one for one in known if one.name.upper() == name), None)
