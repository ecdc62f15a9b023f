"""Follower and observer: they fetch the leader's log and make their own equal to it. [P]

A voter's next fetch claims only records that are on its disk. A diverged log is truncated, never below the
high watermark; a log that ends before the leader's begins restarts from a snapshot. Apache Kafka 4.3
``KafkaRaftClient`` (handleFetchResponse, handleFetchSnapshotResponse), ``FollowerState``.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from service.metadata.raft.core import UPDATE_PERIOD_FETCH_TIMEOUTS, RaftCore
from service.metadata.raft.election import ElectionRoles
from service.metadata.raft.events import AppendFetched, Peer, RestartAt, SnapshotReady, StoreSnapshot
from service.metadata.raft.keys import NO_DIRECTORY, EpochEnd
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftRequest,
    ReadLog,
    ReadSnapshot,
    RemoveVoter,
    UpdateVoter,
    VoterChangeResponse,
)
from service.metadata.raft.roles import Follower, SnapshotFetch, Unattached
from service.metadata.raft.voters import RECONFIGURABLE, VoterNode

REFUSALS: Final = 3
REFUSALS_WITHIN_MS: Final = 300
SEEK_MS: Final = 100
"""Pause between two requests that look for the leader."""
MAX_SNAPSHOT_BYTES: Final = 16 * 2**30
"""Larger snapshot sizes are rejected as malformed."""


class FollowerRole:
    """Behaviour of the follower and of the observer."""

    def __init__(self, core: RaftCore, election: ElectionRoles) -> None:
        self._core = core
        self._election = election
        self._seek_at_ms = 0

    # -- requests out

    def poll(self, state: Follower) -> None:
        core = self._core
        core.flush_if_idle()
        if core.may_start_election and not core.stopping:
            if core.is_due(state.deadline_ms):
                core.become_prospective()
                return
        elif core.is_due(state.deadline_ms):
            self.find_leader()
            return
        if core.leader_endpoint is None or not self._is_ready(state):
            return
        peer = Peer(core.leader_id, core.leader_endpoint)
        request = self._own_change(state)
        if request is not None:
            if core.ask(peer, request):
                state.update_due_ms = core.now_ms + self._period_ms
            return
        core.ask(peer, self._next_request(state))

    @property
    def _period_ms(self) -> int:
        return UPDATE_PERIOD_FETCH_TIMEOUTS * self._core.timing.fetch_timeout_ms

    def _is_ready(self, state: Follower) -> bool:
        """Return whether the whole log is durable, so that a fetch may claim it (invariant R7)."""
        core = self._core
        whole = state.fetching is not None and state.fetching.is_whole
        return not (state.is_appending or whole or core.flushed < core.log.end_offset)

    def _next_request(self, state: Follower) -> RaftFetchRequest | FetchSnapshotRequest:
        core, timing = self._core, self._core.timing
        if state.fetching is not None:
            return FetchSnapshotRequest(
                core.key,
                core.epoch,
                state.fetching.snapshot,
                state.fetching.position,
                timing.snapshot_max_bytes,
                core.identity.cluster_id,
            )
        return self._fetch_request()

    def _fetch_request(self) -> RaftFetchRequest:
        """Build a fetch request. It claims only durable records: a leader may count us as a voter before we
        know it."""
        core, timing = self._core, self._core.timing
        end = min(core.flushed, core.log.end_offset)
        return RaftFetchRequest(
            core.key,
            core.epoch,
            end,
            core.log.epochs.epoch_below(end),
            core.high_watermark,
            timing.fetch_max_bytes,
            timing.fetch_wait_ms,
            core.identity.cluster_id,
        )

    def poll_unattached(self, state: Unattached) -> None:
        """Look for the leader as an observer. A voter learns of it by BeginQuorumEpoch, or starts an
        election."""
        core = self._core
        if not core.is_voter and not core.stopping:
            self.find_leader()

    def find_leader(self) -> None:
        """Send a fetch to a random node that may know the leader: of the configuration, a voter, or the last
        leader."""
        core = self._core
        if not core.is_due(self._seek_at_ms):
            return
        peers = [Peer(-2 - i, endpoint) for i, endpoint in enumerate(core.identity.bootstrap)]
        peers += [peer for voter in core.other_voters() if (peer := core.peer(voter)) is not None]
        if core.leader_endpoint is not None and core.leader_id != core.key.node_id:
            peers.append(Peer(core.leader_id, core.leader_endpoint))
        request = self._fetch_request()._replace(max_wait_ms=0)
        others = [one for one in peers if one.endpoint not in core.identity.endpoints]
        core.random.shuffle(others)
        for peer in others:
            if core.calls.free_at_ms(peer.endpoint, request) <= core.now_ms and core.ask(peer, request):
                break
        self._seek_at_ms = core.now_ms + SEEK_MS
        core.wake_at(self._seek_at_ms)

    # -- our own entry among the voters

    def _own_change(self, state: Follower) -> RaftRequest | None:
        """Return UpdateRaftVoter where our endpoints changed, AddRaftVoter where we join by ourselves."""
        core, history = self._core, self._core.log.voters
        if not core.identity.endpoints or not core.identity.can_vote:
            return None
        mine = VoterNode(core.key, core.identity.endpoints)
        if core.is_voter:
            if history.version < RECONFIGURABLE:
                if state.has_updated or not core.is_due(state.update_due_ms):
                    return None
                return UpdateVoter(core.epoch, mine, core.identity.cluster_id)
            if core.voters.get(core.key.node_id) == mine or not core.is_due(state.update_due_ms):
                return None
            return UpdateVoter(core.epoch, mine, core.identity.cluster_id)
        if not core.timing.auto_join or history.version < RECONFIGURABLE:
            return None
        if core.log.end_offset == 0 or core.high_watermark == 0 or not core.is_due(state.update_due_ms):
            return None
        old = core.voters.get(core.key.node_id)
        if old is not None and old.key.directory_id != NO_DIRECTORY:
            return RemoveVoter(old.key, core.identity.cluster_id)
        return AddVoter(
            mine,
            core.timing.request_timeout_ms,
            ack_when_committed=False,
            cluster_id=core.identity.cluster_id,
        )

    def updated(self, request: RaftRequest, answer: LeaderResponse | VoterChangeResponse) -> None:
        """Handle the response to that; `update_due_ms` decides when it is sent again."""
        core, state = self._core, self._core.state
        if isinstance(answer, LeaderResponse) and self._election.is_settled(answer):
            return
        if isinstance(state, Follower):
            if isinstance(request, UpdateVoter) and answer.error is NONE:
                state.has_updated = request.epoch == core.epoch
            if isinstance(request, RemoveVoter) and answer.error is NONE:
                state.update_due_ms = core.now_ms

    # -- responses

    def refused(self, peer: Peer) -> None:
        """Handle a refused connection to the leader: three within 300 ms mean a dead process, not a delay.

        A voter then asks for pre-votes, an observer looks for the next leader.
        """
        core, state = self._core, self._core.state
        if not isinstance(state, Follower) or peer.endpoint != core.leader_endpoint:
            return
        state.refusals = [at for at in state.refusals if core.now_ms - at <= REFUSALS_WITHIN_MS]
        state.refusals.append(core.now_ms)
        if len(state.refusals) < REFUSALS or core.stopping:
            return
        if not core.may_start_election:
            state.deadline_ms = core.now_ms
        elif core.timing.refused_election and core.is_voter:
            core.become_prospective()

    def _succeeded(self, state: Follower) -> None:
        state.has_fetched = True
        state.refusals.clear()
        state.deadline_ms = self._core.now_ms + self._core.timing.fetch_timeout_ms
        self._core.confirmed_ms = self._core.now_ms

    def fetched(self, peer: Peer, request: RaftFetchRequest, answer: RaftFetchResponse) -> None:
        core = self._core
        if self._election.is_settled(answer):
            if answer.error is not NONE:
                core.calls.pause(peer, core.now_ms)
            return
        state = core.state
        if not isinstance(state, Follower) or core.leader_id != answer.leader_id or state.is_appending:
            return
        if request.epoch != core.epoch or request.offset != core.log.end_offset:
            return
        if state.fetching is not None:  # a fetch that looked for the leader; the snapshot fetch continues
            self._succeeded(state)
            return
        self._succeeded(state)
        if answer.diverging is not None:
            self._truncate_diverged(answer.diverging)
        elif answer.snapshot is not None:
            if answer.snapshot.end_offset > 0 and answer.snapshot.epoch >= 0:
                state.fetching = SnapshotFetch(answer.snapshot)
        else:
            state.leader_high_watermark = max(state.leader_high_watermark, answer.high_watermark)
            if isinstance(answer.records, ReadLog):
                return
            if len(answer.records):
                state.is_appending = True
                core.emit(AppendFetched(core.epoch, answer.records))
            else:
                self.advance_high_watermark(state)

    def advance_high_watermark(self, state: Follower) -> None:
        """Advance the high watermark to the leader's, as far as the log reaches."""
        self._core.commit(min(state.leader_high_watermark, self._core.log.end_offset))

    def _truncate_diverged(self, leaders: EpochEnd) -> None:
        """Truncate to the last offset at which both logs may agree; the next fetch checks it."""
        core = self._core
        ours = core.log.epochs.end_of(leaders.epoch, core.log.end_offset)
        end = min(ours.end_offset, leaders.end_offset) if ours.epoch == leaders.epoch else ours.end_offset
        end = max(end, core.log.start_offset)
        if end < core.log.end_offset:
            core.truncate(end, f"its epoch {leaders.epoch} ends at {leaders.end_offset}")

    def snapshot_fetched(
        self, peer: Peer, request: FetchSnapshotRequest, answer: FetchSnapshotResponse
    ) -> None:
        core = self._core
        if self._election.is_settled(answer):
            if answer.error is not NONE:
                self._abort_snapshot_fetch(peer)
            return
        state = core.state
        if not isinstance(state, Follower) or core.leader_id != answer.leader_id:
            return
        fetching = state.fetching
        if request.epoch != core.epoch or fetching is None or request.snapshot != fetching.snapshot:
            return
        if answer.error is ErrorCode.snapshot_not_found or answer.snapshot is None:
            state.fetching = None
            self._succeeded(state)
            return
        size = len(answer.data) if not isinstance(answer.data, ReadSnapshot) else 0
        end = fetching.position + size
        if (
            answer.snapshot != fetching.snapshot
            or answer.position != fetching.position
            or not 0 < size <= answer.size
            or end > answer.size
            or answer.size > MAX_SNAPSHOT_BYTES
            or isinstance(answer.data, ReadSnapshot)
        ):
            self._abort_snapshot_fetch(peer)
            return
        self._succeeded(state)
        is_last = end == answer.size
        core.emit(StoreSnapshot(fetching.snapshot, fetching.position, answer.data, is_last))
        fetching.position, fetching.is_whole = end, is_last

    def _abort_snapshot_fetch(self, peer: Peer) -> None:
        core, state = self._core, self._core.state
        if isinstance(state, Follower):
            state.fetching = None
        core.calls.pause(peer, core.now_ms)

    def snapshot_ready(self, event: SnapshotReady) -> None:
        """Replace the log by the fetched snapshot, unless it was invalid."""
        core, state = self._core, self._core.state
        if not isinstance(state, Follower) or state.fetching is None:
            return
        if state.fetching.snapshot != event.snapshot or not state.fetching.is_whole:
            return
        state.fetching = None
        if event.is_good:
            core.restart(RestartAt(event.snapshot))
        elif core.leader_endpoint is not None:
            core.calls.pause(Peer(core.leader_id, core.leader_endpoint), core.now_ms)
