"""Elections: votes are requested and granted, a leader is announced, and a resigned one succeeded. [P]

Apache Kafka 4.3 ``KafkaRaftClient`` (handleVoteRequest, handleBeginQuorumEpochRequest,
handleEndQuorumEpochRequest), ``EpochState.canGrantVote``; KIP-595, KIP-996.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.metadata.endpoint import Endpoint
from service.metadata.raft.core import RaftCore, endpoint_of_voter
from service.metadata.raft.events import Peer
from service.metadata.raft.keys import NOBODY, ReplicaKey
from service.metadata.raft.requests import (
    NONE,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    LeaderResponse,
    Refusal,
    ResponseWithLeader,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from service.metadata.raft.state import MAX_EPOCH
from service.metadata.raft.voters import VoterNode

Address = tuple[str, int]
PRE_VOTE_AGAIN_MS: Final = 100
MAX_PEER_EPOCH: Final = MAX_EPOCH - 1
"""Greatest epoch accepted from another node: one more is left for an election."""


class ElectionRoles:
    """Roles Unattached, Prospective, Candidate and Resigned; and how any role answers candidates and
    leaders."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._failed: dict[int, set[Address]] = {}
        """By voter: addresses at which it was not found, since it was found last."""
        self._found: dict[int, Endpoint] = {}
        """By voter: the endpoint that last answered."""

    # -- requests

    def vote(self, request_id: int, request: VoteRequest) -> None:
        core = self._core
        if not core.identity.knows_cluster(request.cluster_id):
            core.reply(request_id, Refusal(ErrorCode.inconsistent_cluster_id))
            return
        error = self._judge_vote(request)
        granted = error is NONE and self._can_grant(request)
        if granted and not request.pre_vote:
            core.vote_for(request.candidate)
        core.reply(
            request_id,
            VoteResponse(error, core.epoch, core.leader_id, core.endpoint_of(core.leader_id), granted),
        )

    def _judge_vote(self, request: VoteRequest) -> ErrorCode:
        core = self._core
        last, epoch = request.last_epoch, request.epoch
        if request.last_offset < 0 or last < 0 or last > epoch or (last == epoch and not request.pre_vote):
            return ErrorCode.invalid_request
        error = self._check_epoch(request.candidate.node_id, epoch)
        if error is NONE and request.candidate.node_id == core.key.node_id:
            error = ErrorCode.invalid_request  # we never send ourselves a request
        if error is not NONE:
            return error
        if epoch > core.epoch:
            core.become_unattached(epoch)
        return NONE if core.identity.is_me(request.voter) else ErrorCode.invalid_voter_key

    def _check_epoch(self, node_id: int, epoch: int) -> ErrorCode:
        if epoch < self._core.epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.invalid_request if node_id < 0 or epoch > MAX_PEER_EPOCH else NONE

    def _check_leader(self, leader_id: int, epoch: int) -> ErrorCode:
        """Reject claims that no correct node makes: that we lead where we do not, or that a node that is no
        voter leads beside a known leader.

        The same claim for a voter ends this node (`learn`): there are two leaders in one epoch.
        """
        core = self._core
        error = self._check_epoch(leader_id, epoch)
        if error is not NONE:
            return error
        is_known = epoch == core.epoch and core.leader_id != NOBODY
        if is_known and core.leader_id == leader_id:
            return NONE
        if leader_id == core.key.node_id or (is_known and core.voters.get(leader_id) is None):
            return ErrorCode.invalid_request
        return NONE

    def _can_grant(self, request: VoteRequest) -> bool:
        core, state = self._core, self._core.state
        is_up_to_date = (request.last_epoch, request.last_offset) >= (
            core.log.epochs.latest,
            core.log.end_offset,
        )
        if request.pre_vote:
            if isinstance(state, Follower) and state.has_fetched:
                # Grant once the deadline has passed: an observer, which the candidate may count as a voter,
                # never starts an election, and would defend a dead leader for ever. (Kafka's does.)
                return is_up_to_date and core.now_ms >= state.deadline_ms
            return is_up_to_date and not isinstance(state, Leader)
        if not isinstance(state, Unattached | Prospective):
            return False
        if core.voted is not None:
            return core.voted.matches(request.candidate)
        return core.leader_id == NOBODY and is_up_to_date

    def begin(self, request_id: int, request: BeginQuorumEpochRequest) -> None:
        core = self._core
        if not core.identity.knows_cluster(request.cluster_id):
            core.reply(request_id, Refusal(ErrorCode.inconsistent_cluster_id))
            return
        error = self._check_leader(request.leader_id, request.epoch)
        if error is NONE:
            endpoint = core.identity.reached(request.endpoints) or core.endpoint_of(request.leader_id)
            self.learn(request.leader_id, request.epoch, endpoint)
            error = NONE if core.identity.is_me(request.voter) else ErrorCode.invalid_voter_key
        core.reply(request_id, self._leader_answer(error))

    def end(self, request_id: int, request: EndQuorumEpochRequest) -> None:
        core = self._core
        if not core.identity.knows_cluster(request.cluster_id):
            core.reply(request_id, Refusal(ErrorCode.inconsistent_cluster_id))
            return
        error = self._check_leader(request.leader_id, request.epoch)
        if error is NONE:
            endpoint = core.identity.reached(request.endpoints) or core.endpoint_of(request.leader_id)
            self.learn(request.leader_id, request.epoch, endpoint)
            state = core.state
            if isinstance(state, Follower) and core.leader_id == request.leader_id:
                # The leader is gone: grant pre-votes at once. (Kafka refuses them until the deadline that is
                # set below.)
                state.has_fetched = False
                state.deadline_ms = core.now_ms + self._succession_ms(request.successors)
        core.reply(request_id, self._leader_answer(error))

    def _leader_answer(self, error: ErrorCode) -> LeaderResponse:
        core = self._core
        return LeaderResponse(error, core.epoch, core.leader_id, core.endpoint_of(core.leader_id))

    def _succession_ms(self, successors: tuple[ReplicaKey, ...]) -> int:
        """Return our delay before an election: none for the first successor, growing for the others
        (``strictExponentialElectionBackoffMs``)."""
        core = self._core
        most = core.timing.election_backoff_max_ms
        place = next((i for i, key in enumerate(successors) if key.matches(core.key)), len(successors))
        if not successors:
            return core.election_timeouts.backoff_ms()  # a restarted leader knows no successors
        if place == 0:
            return 0
        if place >= len(successors):
            return most
        return min(most, (most >> (len(successors) - 1)) << (place - 1))

    # -- epoch and leader in requests and responses

    def learn(self, leader_id: int, epoch: int, endpoint: object) -> None:
        """Update epoch and leader from a message whose epoch is not before ours."""
        core = self._core
        if leader_id == core.key.node_id and not (epoch == core.epoch and core.leader_id == leader_id):
            if core.is_voter:
                # Our vote is on disk before we request others: the sender is wrong, or our disk lost state.
                raise InvariantError(
                    f"raft: another node says that this node leads in epoch {epoch}; it does not, and is in "
                    f"epoch {core.epoch}"
                )
            leader_id = NOBODY  # a replica with another disk led under our id
        if leader_id == core.key.node_id:
            return  # true, or true until we resigned
        known = endpoint or endpoint_of_voter(core, leader_id)
        if epoch > core.epoch:
            if leader_id >= 0:
                core.become_follower(epoch, leader_id, known)  # type: ignore[arg-type]
            else:
                core.become_unattached(epoch)
        elif leader_id >= 0:
            if core.leader_id not in (NOBODY, leader_id):
                core.become_follower(epoch, leader_id, None)  # raises: two leaders in one epoch
            if core.leader_id == NOBODY or (known is not None and isinstance(core.state, Unattached)):
                core.become_follower(epoch, leader_id, known)  # type: ignore[arg-type]

    def is_settled(self, answer: ResponseWithLeader) -> bool:
        """Take epoch and leader from a response; return whether the response holds nothing else for us.

        ``KafkaRaftClient.maybeHandleCommonResponse``
        """
        core = self._core
        error = answer.error
        if answer.epoch < core.epoch or error is ErrorCode.unknown_leader_epoch:
            return True
        is_news = error in (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower)
        is_unknown = core.leader_id == NOBODY
        if isinstance(core.state, Unattached) and answer.endpoint is not None:
            is_unknown = True  # or only its id is known, after a start
        if answer.epoch > core.epoch or is_news or (answer.leader_id >= 0 and is_unknown):
            self.learn(answer.leader_id, answer.epoch, answer.endpoint)
            self._moved(answer)
            return True
        self._moved(answer)
        return error is not NONE and error is not ErrorCode.snapshot_not_found

    def _moved(self, answer: ResponseWithLeader) -> None:
        """Update the leader's endpoint where it differs and the leader did not answer at the old one."""
        core, state = self._core, self._core.state
        if answer.endpoint is None or answer.leader_id != core.leader_id or answer.epoch != core.epoch:
            return
        if isinstance(state, Follower) and (state.has_fetched and core.now_ms < state.deadline_ms):
            return
        if core.leader_id == core.key.node_id or answer.endpoint == core.leader_endpoint:
            return
        if isinstance(state, Follower):
            state.refusals.clear()
            state.deadline_ms = core.now_ms + core.timing.fetch_timeout_ms
        if isinstance(state, Follower | Prospective):
            core.leader_endpoint = answer.endpoint

    def voted(self, peer: Peer, request: VoteRequest, answer: VoteResponse) -> None:
        core = self._core
        if answer.error is ErrorCode.invalid_voter_key:
            self.not_found(peer, request, refused=True)
        else:
            self._failed.pop(peer.node_id, None)
            self._found[peer.node_id] = peer.endpoint
        if self.is_settled(answer):
            return
        state = core.state
        if request.epoch != core.epoch or not isinstance(state, Prospective | Candidate):
            return
        if request.pre_vote != isinstance(state, Prospective):
            return
        if answer.granted:
            state.granted.add(peer.node_id)
            state.rejected.discard(peer.node_id)
            return
        state.rejected.add(peer.node_id)
        if isinstance(state, Prospective):
            state.again_ms[peer.node_id] = core.now_ms + PRE_VOTE_AGAIN_MS

    def not_found(self, peer: Peer, request: VoteRequest, *, refused: bool) -> None:
        """Record that a voter is not at the address asked: no process listens there, or another node does.

        The voter may have moved: the next address of the configuration is tried (`_place`). Where every
        address `refused` and the other voters do not suffice, the election is lost now, not at its timeout:
        two of three voters would wait for the timeout whenever both start an election at once.
        """
        state = self._core.state
        if self._found.get(peer.node_id) == peer.endpoint:
            del self._found[peer.node_id]
        self._failed.setdefault(peer.node_id, set()).add((peer.endpoint.host, peer.endpoint.port))
        voter = self._core.voters.get(peer.node_id)
        if voter is not None and self._place(voter) is not None:
            return
        self._failed.pop(peer.node_id)
        if (
            refused
            and isinstance(state, Candidate)
            and request.epoch == self._core.epoch
            and not request.pre_vote
        ):
            state.absent.add(peer.node_id)

    def _place(self, voter: VoterNode) -> Peer | None:
        """Return the address at which to ask a voter for its vote; None: none is left.

        The order is: where it last answered, its endpoint in the voters' record, and each of
        ``controller.quorum.bootstrap.servers``.

        A vote request names a node id and a directory id, and a replica with others refuses it: asking is
        safe at any address. Addresses of other voters are left out, except those at which that voter was not
        found.
        """
        core = self._core
        failed = self._failed.get(voter.node_id, set())
        for known in (self._found.get(voter.node_id), core.identity.reached(voter.endpoints)):
            if known is not None and (known.host, known.port) not in failed:
                return Peer(voter.node_id, known)
        taken = {(one.host, one.port) for one in core.identity.endpoints}
        for other in core.other_voters():
            endpoint = self._found.get(other.node_id) or core.identity.reached(other.endpoints)
            if endpoint is not None and (other.node_id in self._found or other.node_id not in self._failed):
                taken.add((endpoint.host, endpoint.port))
        for one in core.identity.bootstrap:
            if (one.host, one.port) not in failed | taken:
                return Peer(voter.node_id, one)
        return None

    def unsupported(self, request: VoteRequest) -> None:
        """Become a candidate without pre-votes: a voter does not support them."""
        core = self._core
        if request.pre_vote and request.epoch == core.epoch and isinstance(core.state, Prospective):
            core.become_candidate()

    def acknowledged(self, peer: Peer, answer: LeaderResponse) -> None:
        """Handle the response to EndQuorumEpoch."""
        if self.is_settled(answer):
            return
        if isinstance(self._core.state, Resigned):
            self._core.state.unacknowledged.discard(peer.node_id)

    # -- time

    def poll_unattached(self, state: Unattached) -> None:
        core = self._core
        if core.stopping or not core.may_start_election:
            return
        if core.is_sole_voter:
            core.become_candidate()
        elif core.is_due(state.deadline_ms):
            core.become_prospective()

    def poll_candidacy(self, state: Prospective | Candidate) -> None:
        """Ask the voters that have not answered; see whether the election is won or lost."""
        core = self._core
        if not core.may_start_election:
            self._give_up(state, is_lost=True)
            return
        ids = core.voters.ids
        if sum(node_id in state.granted for node_id in ids) >= core.voters.majority:
            self._won(state)
            return
        against = state.rejected | state.absent if isinstance(state, Candidate) else state.rejected
        is_lost = len(ids) - sum(node_id in against for node_id in ids) < core.voters.majority
        if isinstance(state, Candidate) and is_lost and not state.is_backing_off:
            state.is_backing_off = True
            # Kafka waits for the election timeout; with pre-votes an early end is harmless.
            state.deadline_ms = min(state.deadline_ms, core.now_ms + core.election_timeouts.backoff_ms())
        if core.is_due(state.deadline_ms) or (is_lost and isinstance(state, Prospective)):
            self._lost(state, is_lost=is_lost)
            return
        if is_lost:
            return
        for voter in core.other_voters():
            if voter.node_id not in state.granted and self._may_ask(state, voter.node_id):
                core.ask(self._place(voter), self._vote_request(voter.key, isinstance(state, Prospective)))

    def _may_ask(self, state: Prospective | Candidate, node_id: int) -> bool:
        """Return whether to ask a voter now; one that rejected a pre-vote is asked again after a while.

        It may notice the leader's death a moment later than we did. If its log is behind ours it cannot win
        either, so both nodes would wait until their timeouts.
        """
        if node_id not in state.rejected:
            return True
        return isinstance(state, Prospective) and self._core.is_due(state.again_ms[node_id])

    def _vote_request(self, voter: ReplicaKey, pre_vote: bool) -> VoteRequest:
        """Build the vote request. It claims only what is durable: a crash may shorten the rest of the log."""
        core = self._core
        end = min(core.flushed, core.log.end_offset)
        last_epoch = core.log.epochs.epoch_below(end)
        return VoteRequest(core.epoch, core.key, last_epoch, end, pre_vote, voter, core.identity.cluster_id)

    def _won(self, state: Prospective | Candidate) -> None:
        if isinstance(state, Prospective):
            self._core.become_candidate()
        else:
            self._core.become_leader(tuple(sorted(state.granted)))

    def _lost(self, state: Prospective | Candidate, *, is_lost: bool) -> None:
        if isinstance(state, Candidate):
            self._core.become_prospective()
        else:
            self._give_up(state, is_lost=is_lost)

    def _give_up(self, state: Prospective | Candidate, *, is_lost: bool) -> None:
        """Return to the leader that may still live, or wait for one.

        A node that was rejected waits for a new timeout; one that just got no answer asks again at once.
        """
        core = self._core
        if isinstance(state, Prospective) and core.leader_id >= 0 and core.leader_endpoint is not None:
            core.become_follower(core.epoch, core.leader_id, core.leader_endpoint)
        else:
            core.become_unattached(core.epoch, restart_timeout=is_lost)

    def poll_resigned(self, state: Resigned) -> None:
        core = self._core
        for voter in core.other_voters():
            if voter.node_id in state.unacknowledged:
                core.ask(
                    core.peer(voter),
                    EndQuorumEpochRequest(
                        core.epoch,
                        core.key.node_id,
                        state.successors,
                        core.identity.endpoints,
                        core.identity.cluster_id,
                    ),
                )
        if core.stopping:
            return
        if core.is_sole_voter or core.is_due(state.deadline_ms):
            # Not in the epoch that it resigned from: others may have voted for it there.
            core.become_unattached(core.epoch + 1)
