"""The Raft machine: elects leaders and advances the high watermark of the metadata log. [P]

`handle` takes an event and returns effects; the shell applies them in order before the next event. Safety
depends on that order: state is persisted before an effect depends on it, records count as replicated only
once flushed, and nothing is committed until a batch of the leader's own epoch is (Raft, section 5.4.2).

`election`, `leading`, `following` and `reconfiguration` hold the behaviour of the roles; `core` holds their
shared state and the transitions; `roles` has the table of legal transitions. Source: KIP-595, KIP-853,
KIP-996, Apache Kafka 4.3 ``KafkaRaftClient``, ``QuorumState``.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft.core import RaftCore
from service.metadata.raft.election import ElectionRoles
from service.metadata.raft.events import (
    Appended,
    Cancelled,
    Effect,
    Event,
    Flushed,
    InboundRequest,
    InboundResponse,
    Initialize,
    NotAppended,
    Peer,
    SnapshotReady,
    Stop,
    Tick,
)
from service.metadata.raft.following import FollowerRole
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.leading import LeaderRole, VoterSilence
from service.metadata.raft.log_view import LogView
from service.metadata.raft.reconfiguration import Reconfiguration
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    ConnectionRefused,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderResponse,
    NoResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftRequest,
    RaftResponse,
    Refusal,
    RemoveVoter,
    UpdateVoter,
    UpgradeKRaftVersion,
    VersionUnsupported,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.roles import (
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
    Unattached,
)
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import MAX_KRAFT_VERSION, VoterSet


class RaftMachine:
    """One replica of the quorum. Owned by one thread; holds no clock, file or future."""

    def __init__(
        self, identity: ReplicaIdentity, log: LogView, timing: RaftTiming, random: RandomSource
    ) -> None:
        self.core = RaftCore(identity, log, timing, random)
        self.election = ElectionRoles(self.core)
        self.leading = LeaderRole(self.core)
        self.following = FollowerRole(self.core, self.election)
        self.reconfiguration = Reconfiguration(self.core, self.leading)

    # -- state

    @property
    def role(self) -> Role:
        return self.core.role

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def leader_id(self) -> int:
        """-1 where the leader is unknown."""
        return self.core.leader_id

    @property
    def leader_endpoint(self) -> Endpoint | None:
        return self.core.endpoint_of(self.core.leader_id)

    @property
    def high_watermark(self) -> int:
        return self.core.high_watermark

    @property
    def committed_end(self) -> int | None:
        """End of what the leader knows to be committed; None before it is known here."""
        state = self.core.state
        if isinstance(state, Leader):
            return state.committed if state.committed >= 0 else None
        if isinstance(state, Follower) and state.leader_high_watermark >= 0:
            return state.leader_high_watermark
        return None

    @property
    def voters(self) -> VoterSet:
        return self.core.voters

    def voter_lags(self) -> dict[int, int]:
        """Return how many records each voter lacks of this leader's log; nothing where another leads."""
        core = self.core
        state, end = core.state, core.log.end_offset
        if not isinstance(state, Leader):
            return {}
        ends = ((voter.node_id, self.leading.voter_end(state, voter)) for voter in core.voters)
        return {node_id: end - max(known, 0) for node_id, known in ends}

    def voter_silences(self, now_ms: int) -> dict[int, VoterSilence]:
        """Return how long ago each other voter has fetched from this leader; nothing where another leads."""
        core, state = self.core, self.core.state
        if not isinstance(state, Leader):
            return {}
        others = [voter for voter in core.voters if not voter.key.matches(core.key)]
        return {one.node_id: self.leading.silence(state, one, now_ms) for one in others}

    def next_deadline_ms(self) -> int | None:
        """Return when the machine needs a `Tick`, on the events' clock; None: not before the next event."""
        return None if self.core.deadline_ms >= NEVER else self.core.deadline_ms

    # -- events

    def handle(self, event: Event, now_ms: int) -> tuple[Effect, ...]:
        """Handle `event` and return its effects. Raises `InvariantError` for a violation: the node must end
        then."""
        core = self.core
        core.now_ms = max(core.now_ms, now_ms)
        core.effects, core.log_changes = [], False
        core.deadline_ms = NEVER
        core.flushed = min(core.flushed, core.log.end_offset)  # a truncation removes whole batches
        self._dispatch(event)
        self._poll()
        effects, core.effects = core.effects, []
        return tuple(effects)

    def _dispatch(self, event: Event) -> None:
        core = self.core
        match event:
            case Tick():
                pass
            case InboundResponse(peer, call, reply):
                self._responded(peer, call, reply)
            case InboundRequest(request_id, request):
                self._requested(request_id, request)
            case Appended():
                self._appended()
            case Flushed(end_offset):
                core.flush_ended(end_offset)
            case NotAppended():
                self._not_appended()
            case SnapshotReady():
                self.following.snapshot_ready(event)
            case Cancelled(request_id):
                if isinstance(core.state, Leader):
                    core.state.parked.pop(request_id, None)
            case Initialize(state):
                self._start(state)
            case Stop():
                self._stop()

    def _start(self, state: QuorumState | None) -> None:
        core = self.core
        core.set_persisted(state)
        core.flushed = core.log.end_offset
        core.confirmed_ms = core.now_ms
        snapshots = core.log.snapshots
        core.high_watermark = max(snapshots[-1].end_offset if snapshots else 0, 0)
        latest = core.log.epochs.latest
        if state is None or state.epoch < latest:
            state = QuorumState(max(latest, 0))
        core.epoch = state.epoch
        if state.voted_id >= 0:
            core.voted = ReplicaKey(state.voted_id, state.voted_directory)
        if core.is_sole_voter:
            core.become_candidate()
            return
        was_leader = state.leader_id == core.key.node_id
        if state.leader_id >= 0:
            core.leader_id = state.leader_id
            core.leader_endpoint = core.endpoint_of(state.leader_id)
        now_ms = core.now_ms
        if was_leader:
            core.resume(Resigned(now_ms + core.election_timeouts.timeout_ms(), (), self._other_ids()))
        elif (
            state.leader_id < 0  # else this epoch has a leader to follow
            and core.voted is not None
            and core.voted.matches(core.key)
            and core.is_voter
        ):
            core.resume(Candidate(now_ms + core.election_timeouts.timeout_ms(), {core.key.node_id}))
        elif state.leader_id >= 0 and core.leader_endpoint is not None:
            due_ms = now_ms + core.timing.fetch_timeout_ms
            core.resume(Follower(due_ms, due_ms))
        else:
            core.resume(Unattached(now_ms + core.election_timeouts.timeout_ms()))

    def _other_ids(self) -> set[int]:
        return {voter.node_id for voter in self.core.other_voters()}

    def _stop(self) -> None:
        core = self.core
        core.stopping = True
        if isinstance(core.state, Leader):
            self.leading.resign(core.state)

    def _appended(self) -> None:
        core, state = self.core, self.core.state
        if isinstance(state, Follower) and state.is_appending:
            state.is_appending = False
            self.following.advance_high_watermark(state)
        if not isinstance(state, Leader):
            core.flush_if_idle()

    def _not_appended(self) -> None:
        core, state = self.core, self.core.state
        if isinstance(state, Follower):
            state.is_appending = False
            if core.leader_endpoint is not None:
                core.calls.pause(Peer(core.leader_id, core.leader_endpoint), core.now_ms)

    def _requested(self, request_id: int, request: RaftRequest) -> None:
        match request:
            case RaftFetchRequest():
                self.leading.fetch(request_id, request)
            case VoteRequest():
                self.election.vote(request_id, request)
            case BeginQuorumEpochRequest():
                self.election.begin(request_id, request)
            case EndQuorumEpochRequest():
                self.election.end(request_id, request)
            case FetchSnapshotRequest():
                self.leading.snapshot(request_id, request)
            case AddVoter() | RemoveVoter():
                self.reconfiguration.change(request_id, request)
            case UpdateVoter():
                self.reconfiguration.update(request_id, request)
            case UpgradeKRaftVersion():
                self.reconfiguration.upgrade(request_id, request)
            case DescribeQuorumRequest():
                self.leading.describe(request_id)
            case ApiVersionsRequest():
                self.core.reply(request_id, ApiVersionsResponse(NONE, 0, MAX_KRAFT_VERSION))

    def _responded(self, peer: Peer, call: int, reply: RaftResponse | NoResponse) -> None:
        core = self.core
        request = core.calls.answered(peer, call)
        if request is None:
            return
        if isinstance(request, ApiVersionsRequest) and isinstance(
            reply, ApiVersionsResponse | NoResponse | Refusal
        ):
            self.reconfiguration.versions(peer, reply)
        if isinstance(reply, NoResponse | Refusal):
            core.calls.pause(peer, core.now_ms)
            if isinstance(reply, ConnectionRefused):
                self.following.refused(peer)
            if isinstance(request, VoteRequest):
                if isinstance(reply, VersionUnsupported) or (
                    isinstance(reply, Refusal) and reply.error is ErrorCode.unsupported_version
                ):
                    self.election.unsupported(request)
                elif isinstance(reply, NoResponse):
                    self.election.not_found(peer, request, refused=isinstance(reply, ConnectionRefused))
            return
        self._handle_response(peer, request, reply)

    def _handle_response(self, peer: Peer, request: RaftRequest, reply: RaftResponse) -> None:
        core = self.core
        match request, reply:
            case RaftFetchRequest(), RaftFetchResponse():
                self.following.fetched(peer, request, reply)
                return
            case VoteRequest(), VoteResponse():
                self.election.voted(peer, request, reply)
            case BeginQuorumEpochRequest(), LeaderResponse():
                self.election.is_settled(reply)
            case EndQuorumEpochRequest(), LeaderResponse():
                self.election.acknowledged(peer, reply)
            case FetchSnapshotRequest(), FetchSnapshotResponse():
                self.following.snapshot_fetched(peer, request, reply)
                return
            case ((UpdateVoter() | AddVoter() | RemoveVoter()), (LeaderResponse() | VoterChangeResponse())):
                self.following.updated(request, reply)
            case _:
                pass  # ignore a response of the wrong type
        if getattr(reply, "error", NONE) is not NONE:
            core.calls.pause(peer, core.now_ms)

    # -- time

    def _poll(self) -> None:
        """Run the current role until its state no longer changes. Where the log changes first, poll after
        that."""
        core, before = self.core, None
        while core.orphans or core.state is not before:
            while core.orphans:
                leader = core.orphans.pop()
                self.leading.dismiss(leader)
                self.reconfiguration.dismiss(leader)
            if core.log_changes:
                break
            before = core.state
            core.deadline_ms = NEVER
            self._poll_role()
        if core.log_changes:
            core.wake_at(core.now_ms)

    def _poll_role(self) -> None:
        state = self.core.state
        match state:
            case Follower():
                self.following.poll(state)
            case Leader():
                self.leading.poll(state)
                if self.core.state is state:
                    self.reconfiguration.poll(state)
            case Unattached():
                self.core.flush_if_idle()
                self.election.poll_unattached(state)
                if self.core.state is state:
                    self.following.poll_unattached(state)
            case Prospective() | Candidate():
                self.core.flush_if_idle()
                self.election.poll_candidacy(state)
            case Resigned():
                self.core.flush_if_idle()
                self.election.poll_resigned(state)
