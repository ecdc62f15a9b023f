"""Requests and responses between replicas of the metadata log, as plain values. [P]

`messages.py` converts them to and from Kafka's messages. A response names the leader that its sender knows,
and the leader's `endpoint`. A `Refusal` holds only an error.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import Buffer
from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import NO_DIRECTORY, NOBODY, EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.voters import VoterEndpoints, VoterNode

NOT_BEHIND: Final = 2**63 - 1
"""High watermark of a follower whose Fetch version has none."""
ANYBODY: Final = ReplicaKey(NOBODY, NO_DIRECTORY)
"""Voter key that matches every replica."""
NONE: Final = ErrorCode.none


class VoteRequest(NamedTuple):
    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    last_offset: int
    pre_vote: bool = False
    voter: ReplicaKey = ANYBODY
    cluster_id: str | None = None


class BeginQuorumEpochRequest(NamedTuple):
    """BeginQuorumEpoch: `leader_id` leads in `epoch`."""

    epoch: int
    leader_id: int
    endpoints: VoterEndpoints = ()
    voter: ReplicaKey = ANYBODY
    cluster_id: str | None = None


class EndQuorumEpochRequest(NamedTuple):
    """EndQuorumEpoch: `leader_id` resigned; `successors` are ordered by the length of their logs, longest
    first."""

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...] = ()
    endpoints: VoterEndpoints = ()
    cluster_id: str | None = None


class RaftFetchRequest(NamedTuple):
    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int = NOT_BEHIND
    max_bytes: int = 1024 * 1024
    max_wait_ms: int = 500
    cluster_id: str | None = None


class FetchSnapshotRequest(NamedTuple):
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int
    max_bytes: int = 1024 * 1024
    cluster_id: str | None = None


class AddVoter(NamedTuple):
    voter: VoterNode
    timeout_ms: int = 60_000
    ack_when_committed: bool = True
    cluster_id: str | None = None


class RemoveVoter(NamedTuple):
    """Remove the voter with this id and directory from the voter set (KIP-853)."""

    key: ReplicaKey
    cluster_id: str | None = None


class UpdateVoter(NamedTuple):
    epoch: int
    voter: VoterNode
    cluster_id: str | None = None


VoterChangeRequest = AddVoter | RemoveVoter | UpdateVoter


class UpgradeKRaftVersion(NamedTuple):
    """Finalize a kraft.version: not a message of its own, but a part of UpdateFeatures."""

    version: int
    validate_only: bool = False
    """Only check whether the upgrade is possible."""


class DescribeQuorumRequest(NamedTuple):
    """DescribeQuorum."""


class ApiVersionsRequest(NamedTuple):
    """ApiVersions, sent to a node that is to become a voter."""


RaftRequest = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | RaftFetchRequest
    | FetchSnapshotRequest
    | AddVoter
    | RemoveVoter
    | UpdateVoter
    | UpgradeKRaftVersion
    | DescribeQuorumRequest
    | ApiVersionsRequest
)


class ReadLog(NamedTuple):
    """Placeholder for records from `offset` on, whole batches, about `max_bytes`: the shell reads them."""

    offset: int
    max_bytes: int


class ReadSnapshot(NamedTuple):
    """Placeholder for a chunk of a snapshot, and its size: the shell reads them."""

    snapshot: SnapshotId
    position: int
    max_bytes: int


class Refusal(NamedTuple):
    """Response that holds only an error."""

    error: ErrorCode


class LeaderResponse(NamedTuple):
    """Response to BeginQuorumEpoch, EndQuorumEpoch and UpdateRaftVoter."""

    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None


class VoteResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None
    granted: bool = False


class RaftFetchResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None
    high_watermark: int = -1
    log_start: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None
    records: ReadLog | Buffer = b""


class FetchSnapshotResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None
    snapshot: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: ReadSnapshot | Buffer = b""


class VoterChangeResponse(NamedTuple):
    """Response to AddRaftVoter and RemoveRaftVoter."""

    error: ErrorCode
    message: str = ""


class ApiVersionsResponse(NamedTuple):
    """Kraft.versions that a node supports."""

    error: ErrorCode
    min_version: int = 0
    max_version: int = 0


class ReplicaDescription(NamedTuple):
    """Replica in DescribeQuorum; -1 where a value is unknown."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


class DescribeQuorumResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    high_watermark: int = -1
    voters: tuple[ReplicaDescription, ...] = ()
    observers: tuple[ReplicaDescription, ...] = ()
    nodes: tuple[VoterNode, ...] = ()


ResponseWithLeader = LeaderResponse | VoteResponse | RaftFetchResponse | FetchSnapshotResponse
"""Responses that name the leader."""
RaftResponse = (
    ResponseWithLeader | VoterChangeResponse | ApiVersionsResponse | DescribeQuorumResponse | Refusal
)


class ConnectionRefused(NamedTuple):
    """No response: the connection was refused."""


class CallFailed(NamedTuple):
    """No response: the connection broke, or the call timed out. The request may have been handled."""


class VersionUnsupported(NamedTuple):
    """No response: the node does not support this version."""


NoResponse = ConnectionRefused | CallFailed | VersionUnsupported
