"""What replicas of the metadata log ask each other, and answer: plain values. [P]

`messages.py` translates them to and from Kafka's messages. An answer says who leads, as far as the one who
answers knows; `endpoint` is where that leader is reached. `Refusal` is an answer that says nothing else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import Buffer
from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import NO_DIRECTORY, NOBODY, EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.voters import Voter, VoterEndpoints

NOT_BEHIND: Final = 2**63 - 1
"""The high watermark of a follower that tells none."""
ANYBODY: Final = ReplicaKey(NOBODY, NO_DIRECTORY)
"""In the place of a voter key: whoever gets it."""
NONE: Final = ErrorCode.none


class VoteAsked(NamedTuple):
    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    last_offset: int
    pre_vote: bool = False
    voter: ReplicaKey = ANYBODY
    cluster_id: str | None = None


class BeginAsked(NamedTuple):
    """BeginQuorumEpoch: `leader_id` leads in `epoch`."""

    epoch: int
    leader_id: int
    endpoints: VoterEndpoints = ()
    voter: ReplicaKey = ANYBODY
    cluster_id: str | None = None


class EndAsked(NamedTuple):
    """EndQuorumEpoch: `leader_id` leads no more; `successors` have the most of its log, best first."""

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...] = ()
    endpoints: VoterEndpoints = ()
    cluster_id: str | None = None


class FetchAsked(NamedTuple):
    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int = NOT_BEHIND
    max_bytes: int = 1024 * 1024
    max_wait_ms: int = 500
    cluster_id: str | None = None


class SnapshotAsked(NamedTuple):
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int
    max_bytes: int = 1024 * 1024
    cluster_id: str | None = None


class AddVoter(NamedTuple):
    voter: Voter
    timeout_ms: int = 60_000
    ack_when_committed: bool = True
    cluster_id: str | None = None


class RemoveVoter(NamedTuple):
    key: ReplicaKey
    cluster_id: str | None = None


class UpdateVoter(NamedTuple):
    epoch: int
    voter: Voter
    cluster_id: str | None = None


VoterChangeAsked = AddVoter | RemoveVoter | UpdateVoter


class UpgradeAsked(NamedTuple):
    """Finalize a kraft.version: not a message of its own, but a part of UpdateFeatures."""

    version: int
    validate_only: bool = False
    """say whether it can be, and leave it"""


class DescribeAsked(NamedTuple):
    """DescribeQuorum."""


class VersionsAsked(NamedTuple):
    """ApiVersions, asked of a node that wants to vote."""


Asked = (
    VoteAsked
    | BeginAsked
    | EndAsked
    | FetchAsked
    | SnapshotAsked
    | AddVoter
    | RemoveVoter
    | UpdateVoter
    | UpgradeAsked
    | DescribeAsked
    | VersionsAsked
)


class ReadLog(NamedTuple):
    """To be put in an answer's place: records from `offset` on, whole batches, about `max_bytes`."""

    offset: int
    max_bytes: int


class ReadSnapshot(NamedTuple):
    """To be put in an answer's place: bytes of a snapshot, and its size."""

    snapshot: SnapshotId
    position: int
    max_bytes: int


class Refusal(NamedTuple):
    """An answer of an error alone."""

    error: ErrorCode


class LeaderAnswer(NamedTuple):
    """To BeginQuorumEpoch, EndQuorumEpoch and UpdateRaftVoter."""

    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None


class VoteAnswer(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None
    granted: bool = False


class FetchAnswer(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None
    high_watermark: int = -1
    log_start: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None
    records: ReadLog | Buffer = b""


class SnapshotAnswer(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    endpoint: Endpoint | None = None
    snapshot: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: ReadSnapshot | Buffer = b""


class ChangeAnswer(NamedTuple):
    """To AddRaftVoter and RemoveRaftVoter."""

    error: ErrorCode
    message: str = ""


class VersionsAnswer(NamedTuple):
    """Which kraft.versions a node speaks."""

    error: ErrorCode
    min_version: int = 0
    max_version: int = 0


class ReplicaTold(NamedTuple):
    """A replica in DescribeQuorum; -1 where nothing is known."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


class DescribeAnswer(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    high_watermark: int = -1
    voters: tuple[ReplicaTold, ...] = ()
    observers: tuple[ReplicaTold, ...] = ()
    nodes: tuple[Voter, ...] = ()


Told = LeaderAnswer | VoteAnswer | FetchAnswer | SnapshotAnswer
"""Answers that say who leads."""
Answered = Told | ChangeAnswer | VersionsAnswer | DescribeAnswer | Refusal


class Refused(NamedTuple):
    """No answer: nobody listens there."""


class Failed(NamedTuple):
    """No answer: the connection broke, or time is up. It may have been done all the same."""


class Unsupported(NamedTuple):
    """No answer: the peer does not know this version."""


NoAnswer = Refused | Failed | Unsupported
