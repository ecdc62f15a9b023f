"""Changes of the voter set: voters are added, removed and updated, one change at a time (invariant R6). [P]

Apache Kafka 4.3 ``AddVoterHandler``, ``RemoveVoterHandler``, ``UpdateVoterHandler``; KIP-853.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from service.metadata.raft.core import RaftCore
from service.metadata.raft.events import AppendControl, ControlRecord, KRaftVersion, KRaftVoters, Peer
from service.metadata.raft.keys import NO_DIRECTORY
from service.metadata.raft.leading import LeaderRole
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    LeaderResponse,
    NoResponse,
    Refusal,
    RemoveVoter,
    UpdateVoter,
    UpgradeKRaftVersion,
    VoterChangeResponse,
)
from service.metadata.raft.roles import Change, Leader
from service.metadata.raft.voters import MAX_KRAFT_VERSION, RECONFIGURABLE, VoterNode, VoterSet

CAUGHT_UP_WITHIN_MS: Final = 3_600_000
_TIMED_OUT: Final = ErrorCode.request_timed_out


class Reconfiguration:
    """The leader's handling of voter changes."""

    def __init__(self, core: RaftCore, leading: LeaderRole) -> None:
        self._core = core
        self._leading = leading

    # -- AddRaftVoter and RemoveRaftVoter

    def change(self, request_id: int, request: AddVoter | RemoveVoter) -> None:
        core, state = self._core, self._core.state
        if not core.identity.knows_cluster(request.cluster_id):
            answer = f'The given id "{request.cluster_id}" is not the cluster\'s.'
            core.reply(request_id, VoterChangeResponse(ErrorCode.inconsistent_cluster_id, answer))
            return
        if not isinstance(state, Leader):
            core.reply(
                request_id, VoterChangeResponse(ErrorCode.not_leader_or_follower, "This node does not lead.")
            )
            return
        refusal = self._malformed(request) or self._not_now(state) or self._unfit(request)
        if refusal is not None:
            core.reply(request_id, refusal)
        elif isinstance(request, AddVoter):
            self._ask_versions(state, request_id, request)
        else:
            self._append(core.voters.without(request.key))
            deadline_ms = core.now_ms + core.timing.request_timeout_ms
            state.change = Change(request_id, request, deadline_ms, core.log.end_offset)

    def _malformed(self, request: AddVoter | RemoveVoter) -> VoterChangeResponse | None:
        key = request.voter.key if isinstance(request, AddVoter) else request.key
        if key.node_id < 0 or key.directory_id == NO_DIRECTORY:
            return VoterChangeResponse(ErrorCode.invalid_request, "The request names no voter.")
        if isinstance(request, AddVoter) and self._core.identity.at_listener(request.voter.endpoints) is None:
            mine = self._core.identity.endpoints
            where = f" for the listener {mine[0].name}" if mine else ""
            return VoterChangeResponse(ErrorCode.invalid_request, f"The request names no endpoint{where}.")
        return None

    def _not_now(self, state: Leader) -> VoterChangeResponse | None:
        core, history = self._core, self._core.log.voters
        if self._is_pending(state):
            return VoterChangeResponse(_TIMED_OUT, "Another voter change is under way.")
        if state.committed < 0:
            return VoterChangeResponse(_TIMED_OUT, "Nothing of the leader's epoch is committed yet.")
        if history.version < RECONFIGURABLE:
            reason = f"Voters do not change while kraft.version is {history.version}."
            return VoterChangeResponse(ErrorCode.unsupported_version, reason)
        offset = history.latest_offset
        if offset is None or offset >= state.committed:
            return VoterChangeResponse(_TIMED_OUT, f"The voters at offset {offset} are not committed yet.")
        if core.log_changes:
            return VoterChangeResponse(_TIMED_OUT, "Another change is being written.")
        return None

    def _unfit(self, request: AddVoter | RemoveVoter) -> VoterChangeResponse | None:
        voters = self._core.voters
        if isinstance(request, AddVoter):
            if voters.get(request.voter.node_id) is not None:
                reason = f"Node {request.voter.node_id} is a voter already."
                return VoterChangeResponse(ErrorCode.duplicate_voter, reason)
        elif voters.without(request.key) == voters:
            return VoterChangeResponse(
                ErrorCode.voter_not_found, f"{request.key} is none of the voters {voters.ids}."
            )
        elif len(voters) == 1:  # Kafka's error for it
            return VoterChangeResponse(
                ErrorCode.voter_not_found, f"Node {request.key.node_id} is the only voter."
            )
        return None

    def _ask_versions(self, state: Leader, request_id: int, request: AddVoter) -> None:
        core = self._core
        if not core.ask(core.peer(request.voter), ApiVersionsRequest()):
            core.reply(request_id, VoterChangeResponse(_TIMED_OUT, "The new voter cannot be asked now."))
            return
        state.change = Change(request_id, request, core.now_ms + core.timing.request_timeout_ms)

    def versions(self, peer: Peer, answer: ApiVersionsResponse | Refusal | NoResponse) -> None:
        """Handle the new voter's ApiVersions response, or its failure."""
        state = self._core.state
        change = state.change if isinstance(state, Leader) else None
        if not isinstance(state, Leader) or change is None or change.offset is not None:
            return
        request = change.request
        if not isinstance(request, AddVoter) or request.voter.node_id != peer.node_id:
            return
        refusal = self._unready(state, request, answer)
        if refusal is not None or not isinstance(answer, ApiVersionsResponse):
            self._finish(state, refusal or VoterChangeResponse(_TIMED_OUT))
            return
        voter = request.voter._replace(min_version=answer.min_version, max_version=answer.max_version)
        change.offset = self._core.log.end_offset
        self._append(self._core.voters.with_voter(voter))
        if not request.ack_when_committed and change.request_id is not None:
            self._core.reply(change.request_id, VoterChangeResponse(NONE))
            change.request_id = None

    def _unready(
        self, state: Leader, request: AddVoter, answer: ApiVersionsResponse | Refusal | NoResponse
    ) -> VoterChangeResponse | None:
        core, node_id = self._core, request.voter.node_id
        if not isinstance(answer, ApiVersionsResponse) or answer.error is not NONE:
            return VoterChangeResponse(_TIMED_OUT, f"Node {node_id} did not say which versions it speaks.")
        if not answer.min_version <= core.log.voters.version <= answer.max_version:
            reason = f"Node {node_id} does not speak kraft.version {core.log.voters.version}."
            return VoterChangeResponse(ErrorCode.invalid_request, reason)
        replica = state.replicas.get(request.voter.key)
        since = core.now_ms - CAUGHT_UP_WITHIN_MS
        if replica is None or replica.last_caught_up_ms < 0 or replica.last_caught_up_ms <= since:
            return VoterChangeResponse(_TIMED_OUT, f"Node {node_id} has not caught up with the log.")
        return None

    # -- UpdateRaftVoter, kraft.version

    def update(self, request_id: int, request: UpdateVoter) -> None:
        core, state = self._core, self._core.state
        error = ErrorCode.inconsistent_cluster_id
        if core.identity.knows_cluster(request.cluster_id):
            error = self._leading.refusal(request.epoch)
        if error is NONE and isinstance(state, Leader):
            error = self._update(state, request.voter)
        leader = core.endpoint_of(core.leader_id)
        core.reply(request_id, LeaderResponse(error, core.epoch, core.leader_id, leader))

    def _update(self, state: Leader, voter: VoterNode) -> ErrorCode:
        core, history = self._core, self._core.log.voters
        if (
            voter.key.node_id < 0
            or voter.key.directory_id == NO_DIRECTORY
            or core.identity.at_listener(voter.endpoints) is None
            or not 0 <= voter.min_version <= voter.max_version
        ):
            return ErrorCode.invalid_request
        if self._is_pending(state) or state.committed < 0 or core.log_changes:
            return _TIMED_OUT
        is_written = history.version >= RECONFIGURABLE
        if is_written and (history.latest_offset is None or history.latest_offset >= state.committed):
            return _TIMED_OUT
        if not voter.min_version <= history.version <= voter.max_version:
            return ErrorCode.invalid_request
        if not core.voters.has(voter.key):
            return ErrorCode.voter_not_found
        if not is_written:
            state.updates[voter.node_id] = voter
        elif core.voters.get(voter.node_id) != voter:
            self._append(core.voters.with_voter(voter))
        if voter.node_id != core.key.node_id:
            self._leading.update_check_quorum(state, voter.key)
        return NONE

    def upgrade(self, request_id: int, request: UpgradeKRaftVersion) -> None:
        """Finalize kraft.version 1, once every voter's directory id is known (``UpdateFeatures``;
        ``LeaderState.maybeAppendUpgradedKRaftVersion``)."""
        core, state, level = self._core, self._core.state, self._core.log.voters.version
        if not isinstance(state, Leader) or state.committed < 0:
            answer = VoterChangeResponse(ErrorCode.not_leader_or_follower, "This node does not lead yet.")
        elif request.version == level:
            answer = VoterChangeResponse(NONE)
        elif not level < request.version <= MAX_KRAFT_VERSION:
            reason = f"kraft.version {level} does not become {request.version}."
            answer = VoterChangeResponse(ErrorCode.invalid_update_version, reason)
        else:
            answer = self._upgrade(state, request)
        core.reply(request_id, answer)

    def _upgrade(self, state: Leader, request: UpgradeKRaftVersion) -> VoterChangeResponse:
        core, version = self._core, request.version
        voters = {**state.updates, core.key.node_id: VoterNode(core.key, core.identity.endpoints)}
        known = {
            node_id
            for node_id, one in voters.items()
            if one.key.directory_id != NO_DIRECTORY
            and one.endpoints
            and one.min_version <= version <= one.max_version
        }
        missing = [node_id for node_id in core.voters.ids if node_id not in known]
        if missing:
            reason = (
                f"Voters {missing} have not said where they are, or that they speak kraft.version {version}."
            )
            return VoterChangeResponse(ErrorCode.invalid_update_version, reason)
        if not request.validate_only:
            self._append(VoterSet(voters[node_id] for node_id in core.voters.ids), KRaftVersion(version))
        return VoterChangeResponse(NONE)

    # -- progress of a change

    def _append(self, voters: VoterSet, *before: ControlRecord) -> None:
        self._core.emit(AppendControl(self._core.epoch, (*before, KRaftVoters(voters))))

    def _is_pending(self, state: Leader) -> bool:
        """Return whether a change is in progress; a change that timed out is ended first."""
        self._expire(state)
        return state.change is not None

    def _expire(self, state: Leader) -> None:
        change = state.change
        if change is not None and self._core.is_due(change.deadline_ms):
            self._finish(state, VoterChangeResponse(_TIMED_OUT, "The change was not committed in time."))

    def _finish(self, state: Leader, answer: VoterChangeResponse) -> None:
        change, state.change = state.change, None
        if change is not None and change.request_id is not None:
            self._core.reply(change.request_id, answer)

    def poll(self, state: Leader) -> None:
        """End a change that is committed or timed out; resign where this node is no longer a voter."""
        core, change = self._core, state.change
        if change is not None:
            if change.offset is not None and change.offset < state.committed:
                self._finish(state, VoterChangeResponse(NONE))
            else:
                self._expire(state)
        offset = core.log.voters.latest_offset
        if not core.is_voter and offset is not None and offset < state.committed:
            self._leading.resign(state)

    def dismiss(self, state: Leader) -> None:
        """End the change after the loss of leadership: its outcome is unknown here."""
        self._finish(
            state, VoterChangeResponse(ErrorCode.not_leader_or_follower, "This node does not lead any more.")
        )
