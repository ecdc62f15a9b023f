"""The leader: answers fetches, advances the high watermark, checks that a majority still fetches. [P]

The high watermark is the median of the voters' durable ends, this node's among them, once it lies beyond the
start of this epoch (Raft, section 5.4.2). Followers may fetch records that are not flushed here yet, so that
the slower of two disks counts and not their sum. Apache Kafka 4.3 ``LeaderState``,
``KafkaRaftClient.handleFetchRequest``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.metadata.raft.core import RaftCore
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.log_view import ValidationKind, real_snapshots, validate_offset_and_epoch
from service.metadata.raft.requests import (
    NONE,
    BeginQuorumEpochRequest,
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    ReadLog,
    ReadSnapshot,
    Refusal,
    ReplicaDescription,
)
from service.metadata.raft.roles import NEVER, Leader, ParkedFetch, ReplicaState
from service.metadata.raft.voters import VoterNode

OBSERVER_SESSION_MS: Final = 300_000
MAX_REPLICAS: Final = 1000
"""Limit of tracked observers: a node can claim any id."""
MAX_ANSWER_BYTES: Final = 8 * 2**20
"""Limit of records or snapshot bytes in one response, whatever the request allows."""


class VoterSilence(NamedTuple):
    """Time since a voter has fetched from the leader, or since that leads if the voter has not."""

    ms: int
    has_fetched: bool


class LeaderRole:
    """Behaviour of the leader, and its answers to requests that only a leader serves."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core

    def refusal(self, epoch: int) -> ErrorCode:
        """Return the error for a request of `epoch`: none where this node leads in it
        (``validateLeaderOnlyRequest``)."""
        core = self._core
        if epoch < core.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > core.epoch:
            return ErrorCode.unknown_leader_epoch
        return NONE if isinstance(core.state, Leader) else ErrorCode.not_leader_or_follower

    # -- fetches

    def fetch(self, request_id: int, request: RaftFetchRequest) -> None:
        core = self._core
        if not core.identity.knows_cluster(request.cluster_id):
            core.reply(request_id, Refusal(ErrorCode.inconsistent_cluster_id))
            return
        if (
            request.max_wait_ms < 0
            or request.offset < 0
            or not 0 <= request.last_epoch <= request.epoch
            or request.replica.node_id == core.key.node_id
        ):
            core.reply(request_id, self._no_records(ErrorCode.invalid_request))
            return
        answer = self._answer(request, is_heard=True)
        state = core.state
        is_empty = answer.error is NONE and answer.diverging is None and answer.snapshot is None
        is_empty = is_empty and not isinstance(answer.records, ReadLog)
        if (
            is_empty
            and request.max_wait_ms > 0
            and isinstance(state, Leader)
            and not self._is_behind(request)
        ):
            state.parked[request_id] = ParkedFetch(request, core.now_ms + request.max_wait_ms)
        else:
            core.reply(request_id, answer)

    def _is_behind(self, request: RaftFetchRequest) -> bool:
        state = self._core.state
        return isinstance(state, Leader) and request.high_watermark < state.committed

    def _no_records(self, error: ErrorCode) -> RaftFetchResponse:
        core = self._core
        return RaftFetchResponse(error, core.epoch, core.leader_id, core.endpoint_of(core.leader_id))

    def _answer(self, request: RaftFetchRequest, *, is_heard: bool = False) -> RaftFetchResponse:
        """Build the response. `is_heard`: the request came just now, which proves that its sender lives."""
        core, state = self._core, self._core.state
        error = self.refusal(request.epoch)
        if error is not NONE or not isinstance(state, Leader):
            return self._no_records(error)
        validity = validate_offset_and_epoch(core.log, request.offset, request.last_epoch)
        records: ReadLog | bytes = b""
        if validity.fit is ValidationKind.VALID:
            if is_heard:
                self._update_progress(state, request)
            if request.offset < state.visible_end:
                records = ReadLog(request.offset, _bounded(request.max_bytes))
        return RaftFetchResponse(
            NONE,
            core.epoch,
            core.leader_id,
            core.endpoint_of(core.leader_id),
            state.committed,
            core.log.start_offset,
            validity.diverging,
            validity.snapshot,
            records,
        )

    def _update_progress(self, state: Leader, request: RaftFetchRequest) -> None:
        """Update the follower's progress: everything below its fetch offset is durable there."""
        core = self._core
        if request.replica.node_id < 0:
            return
        replica, end = self.replica(state, request.replica), core.log.end_offset
        if request.offset >= end:
            replica.last_caught_up_ms = core.now_ms
        elif replica.leader_end > 0 and request.offset >= replica.leader_end:
            replica.last_caught_up_ms = max(replica.last_caught_up_ms, replica.last_fetch_ms)
        replica.leader_end = end
        replica.last_fetch_ms = core.now_ms
        replica.end_offset = request.offset
        self.update_check_quorum(state, request.replica)
        if core.voters.has(request.replica):
            self.advance(state)

    def update_check_quorum(self, state: Leader, key: ReplicaKey) -> None:
        """Count a Fetch or FetchSnapshot of a voter; a majority of voters extends the quorum deadline."""
        core = self._core
        if not core.voters.has(key):
            return
        state.fetched_voters.add(key.node_id)
        ids = core.voters.ids
        count = sum(node_id in state.fetched_voters for node_id in ids) + core.is_voter
        if count >= core.voters.majority:
            state.fetched_voters.clear()
            core.confirmed_ms = core.now_ms
            state.quorum_deadline_ms = core.now_ms + core.timing.fetch_timeout_ms * 3 // 2

    def replica(self, state: Leader, key: ReplicaKey) -> ReplicaState:
        known = self._known_as(key)
        found = state.replicas.get(known)
        if found is None:
            if len(state.replicas) >= MAX_REPLICAS + len(self._core.voters):
                self._drop_one(state)
            found = state.replicas[known] = ReplicaState()
        return found

    def _drop_one(self, state: Leader) -> None:
        """Drop the observer that has been silent for longest."""
        voters = self._core.voters
        strangers = (key for key in state.replicas if not voters.has(key))
        del state.replicas[min(strangers, key=lambda key: state.replicas[key].last_fetch_ms)]

    def _known_as(self, key: ReplicaKey) -> ReplicaKey:
        """Return the key to track: a voter whose directory id is unknown is tracked by its node id."""
        voter = self._core.voters.get(key.node_id)
        return voter.key if voter is not None and voter.key.matches(key) else key

    def voter_end(self, state: Leader, voter: VoterNode) -> int:
        """Return the end of the voter's durable log."""
        core = self._core
        if voter.key.matches(core.key):
            return min(core.flushed, core.log.end_offset)
        replica = state.replicas.get(voter.key) or state.replicas.get(ReplicaKey(voter.node_id))
        return -1 if replica is None else replica.end_offset

    def advance(self, state: Leader) -> None:
        """Advance the high watermark where a majority allows it, to a batch of this epoch at least (invariant
        R8)."""
        core = self._core
        ends = sorted((self.voter_end(state, voter) for voter in core.voters), reverse=True)
        mark = ends[core.voters.majority - 1] if ends else -1
        if mark > max(state.committed, state.epoch_start):
            state.committed = mark
            core.commit(mark)

    def answer_parked(self, state: Leader) -> None:
        """Answer parked fetches that have records or a new high watermark to get, or whose wait is over."""
        core = self._core
        end = state.visible_end
        for request_id, parked in list(state.parked.items()):
            request = parked.request
            if (
                request.offset < end
                or request.high_watermark < state.committed
                or core.is_due(parked.deadline_ms)
            ):
                del state.parked[request_id]
                core.reply(request_id, self._answer(request))

    def dismiss(self, state: Leader) -> None:
        """Answer all parked fetches after the loss of leadership."""
        for request_id, parked in state.parked.items():
            self._core.reply(request_id, self._answer(parked.request))
        state.parked.clear()

    def snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        core, state = self._core, self._core.state
        if not core.identity.knows_cluster(request.cluster_id):
            core.reply(request_id, Refusal(ErrorCode.inconsistent_cluster_id))
            return
        error = self.refusal(request.epoch)
        if error is NONE and request.snapshot not in real_snapshots(core.log):
            error = ErrorCode.snapshot_not_found
        if error is NONE and request.position < 0:
            error = ErrorCode.position_out_of_range
        answer = FetchSnapshotResponse(error, core.epoch, core.leader_id, core.endpoint_of(core.leader_id))
        if error is NONE and isinstance(state, Leader):
            if request.replica.node_id >= 0 and request.replica.node_id != core.key.node_id:
                self.replica(state, request.replica).last_fetch_ms = core.now_ms
                self.update_check_quorum(state, request.replica)
            answer = answer._replace(
                snapshot=request.snapshot,
                position=request.position,
                data=ReadSnapshot(request.snapshot, request.position, _bounded(request.max_bytes)),
            )
        core.reply(request_id, answer)

    def describe(self, request_id: int) -> None:
        core, state = self._core, self._core.state
        if not isinstance(state, Leader):
            error = ErrorCode.not_leader_or_follower
            core.reply(request_id, DescribeQuorumResponse(error, core.epoch, core.leader_id))
            return
        voters = tuple(self._describe_voter(state, voter) for voter in core.voters)
        observers = tuple(
            ReplicaDescription(key, one.end_offset, one.last_fetch_ms, one.last_caught_up_ms)
            for key, one in sorted(state.replicas.items())
            if not core.voters.has(key) and core.now_ms - one.last_fetch_ms < OBSERVER_SESSION_MS
        )
        core.reply(
            request_id,
            DescribeQuorumResponse(
                NONE, core.epoch, core.key.node_id, state.committed, voters, observers, tuple(core.voters)
            ),
        )

    def silence(self, state: Leader, voter: VoterNode, now_ms: int) -> VoterSilence:
        """Return how long ago a voter has fetched; since this node leads, if it has not."""
        fetched_ms = _known_voter(state, voter).last_fetch_ms
        return VoterSilence(max(now_ms - max(fetched_ms, state.began_ms), 0), fetched_ms >= 0)

    def _describe_voter(self, state: Leader, voter: VoterNode) -> ReplicaDescription:
        core = self._core
        if voter.key.matches(core.key):
            return ReplicaDescription(voter.key, core.log.end_offset, core.now_ms, core.now_ms)
        one = _known_voter(state, voter)
        return ReplicaDescription(voter.key, one.end_offset, one.last_fetch_ms, one.last_caught_up_ms)

    # -- time

    def poll(self, state: Leader) -> None:
        core = self._core
        self._make_visible(state)
        if core.flushed < state.visible_end:
            core.flush_if_idle()
        self.advance(state)
        self.answer_parked(state)
        others = core.other_voters()
        if not others and core.is_voter:
            state.quorum_deadline_ms = NEVER
        elif state.quorum_deadline_ms == NEVER:
            state.quorum_deadline_ms = core.now_ms + core.timing.fetch_timeout_ms * 3 // 2
        if core.is_due(state.quorum_deadline_ms):
            self.resign(state)
            return
        self._drop_silent(state)
        for voter in others:
            self._send_begin_epoch(state, voter)

    def _make_visible(self, state: Leader) -> None:
        """Make appended batches visible to flushes and fetches: at once, or when the linger ends.

        The first batch of an epoch never lingers.
        """
        core = self._core
        end, linger_ms = core.log.end_offset, core.timing.append_linger_ms
        if state.visible_end >= end:
            return
        if linger_ms and state.committed >= 0:
            state.visible_at_ms = (
                core.now_ms + linger_ms if state.visible_at_ms is None else state.visible_at_ms
            )
            if not core.is_due(state.visible_at_ms):
                return
        state.visible_end, state.visible_at_ms = end, None

    def resign(self, state: Leader) -> None:
        """Give up leadership; prefer as successors the voters with the longest logs."""
        core = self._core
        others = sorted(core.other_voters(), key=lambda one: (-self.voter_end(state, one), one.node_id))
        core.resign(tuple(voter.key for voter in others))

    def _send_begin_epoch(self, state: Leader, voter: VoterNode) -> None:
        """Send BeginQuorumEpoch to a voter that has been silent for half of its fetch timeout."""
        core = self._core
        half = core.timing.fetch_timeout_ms // 2
        replica = state.replicas.get(voter.key)
        last = max(
            replica.last_fetch_ms if replica else -NEVER, state.last_begin_ms.get(voter.node_id, -NEVER)
        )
        if not core.is_due(last + half):
            return
        request = BeginQuorumEpochRequest(
            core.epoch, core.key.node_id, core.identity.endpoints, voter.key, core.identity.cluster_id
        )
        if core.ask(core.peer(voter), request):
            state.last_begin_ms[voter.node_id] = core.now_ms
            core.is_due(core.now_ms + half)

    def _drop_silent(self, state: Leader) -> None:
        """Drop silent observers once there are many."""
        core = self._core
        if len(state.replicas) > 2 * len(core.voters) + 16:
            state.replicas = {
                key: one
                for key, one in state.replicas.items()
                if core.voters.has(key) or core.now_ms - one.last_fetch_ms < OBSERVER_SESSION_MS
            }


def _bounded(max_bytes: int) -> int:
    return min(max(max_bytes, 0), MAX_ANSWER_BYTES)


def _known_voter(state: Leader, voter: VoterNode) -> ReplicaState:
    return state.replicas.get(voter.key) or state.replicas.get(ReplicaKey(voter.node_id)) or ReplicaState()
