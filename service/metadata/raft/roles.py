"""Roles of a replica of the metadata log, the state of each role, and the legal transitions. [P]

    Unattached --time--> Prospective --pre-votes--> Candidate --votes--> Leader --time, stop--> Resigned
         ^---- a later epoch, from any role         Follower <-- a leader is known, from any role but Leader

Apache Kafka 4.3 ``QuorumState``; KIP-595, KIP-996. Times are milliseconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.requests import RaftFetchRequest, VoterChangeRequest
from service.metadata.raft.voters import VoterEndpoints, VoterNode

NEVER: Final = 2**62


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


_FROM_ANY_ROLE: Final = frozenset({Role.UNATTACHED, Role.FOLLOWER})
LEGAL_MOVES: Final = {
    Role.UNATTACHED: _FROM_ANY_ROLE | {Role.PROSPECTIVE, Role.CANDIDATE},
    Role.PROSPECTIVE: _FROM_ANY_ROLE | {Role.CANDIDATE},
    Role.CANDIDATE: _FROM_ANY_ROLE | {Role.PROSPECTIVE, Role.LEADER},
    Role.LEADER: _FROM_ANY_ROLE | {Role.RESIGNED},
    Role.FOLLOWER: _FROM_ANY_ROLE | {Role.PROSPECTIVE},
    Role.RESIGNED: _FROM_ANY_ROLE,
}
"""A move to Unattached needs a later epoch, unless it is from Prospective. A sole voter skips Prospective.
A leader that resigned leads no more in its epoch (invariant R1)."""


@dataclass(slots=True)
class Unattached:
    """The leader is unknown. A voter starts an election at `deadline_ms`."""

    deadline_ms: int
    role = Role.UNATTACHED


@dataclass(slots=True)
class Prospective:
    """Asks for pre-votes in its current epoch, of which it may still know the leader."""

    deadline_ms: int
    granted: set[int]
    rejected: set[int] = field(default_factory=set)
    again_ms: dict[int, int] = field(default_factory=dict)
    """When each voter that rejected is asked again."""
    role = Role.PROSPECTIVE


@dataclass(slots=True)
class Candidate:
    """Asks for votes in an epoch in which it has voted for itself."""

    deadline_ms: int
    granted: set[int]
    rejected: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)
    """Voters whose endpoints refused the connection: no process is there to vote."""
    is_backing_off: bool = False
    role = Role.CANDIDATE


@dataclass(slots=True)
class SnapshotFetch:
    """Snapshot that is being fetched in chunks; it is written up to `position`."""

    snapshot: SnapshotId
    position: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; a voter starts an election without a response until `deadline_ms`."""

    deadline_ms: int
    update_due_ms: int
    has_fetched: bool = False
    refusals: list[int] = field(default_factory=list)
    fetching: SnapshotFetch | None = None
    leader_high_watermark: int = -1
    """High watermark of the leader in its last response."""
    is_appending: bool = False
    has_updated: bool = False
    """Under kraft.version 0: this leader knows our directory id."""
    role = Role.FOLLOWER


@dataclass(slots=True)
class ReplicaState:
    """Leader's view of another replica: `end_offset` is durable there. -1: unknown."""

    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end: int = -1
    """End of our log at the time of its last fetch."""


@dataclass(slots=True)
class ParkedFetch:
    """Fetch that waits for records or for a higher high watermark."""

    request: RaftFetchRequest
    deadline_ms: int


@dataclass(slots=True)
class Change:
    """Voter change in progress. `offset` is that of its record, once appended."""

    request_id: int | None
    request: VoterChangeRequest
    deadline_ms: int
    offset: int | None = None


@dataclass(slots=True)
class Leader:
    """Leads. `committed` is the high watermark that this leader has established; -1: none yet."""

    epoch_start: int
    granted: tuple[int, ...]
    quorum_deadline_ms: int
    committed: int = -1
    visible_end: int = 0
    """End of what may be flushed and fetched; records beyond it still linger."""
    visible_at_ms: int | None = None
    """When the linger ends and they become visible."""
    replicas: dict[ReplicaKey, ReplicaState] = field(default_factory=dict)
    fetched_voters: set[int] = field(default_factory=set)
    last_begin_ms: dict[int, int] = field(default_factory=dict)
    """When each voter was last sent BeginQuorumEpoch."""
    parked: dict[int, ParkedFetch] = field(default_factory=dict)
    change: Change | None = None
    updates: dict[int, VoterNode] = field(default_factory=dict)
    """Under kraft.version 0: what voters said of themselves in UpdateRaftVoter."""
    began_ms: int = 0
    role = Role.LEADER


@dataclass(slots=True)
class Resigned:
    """Led in this epoch, and does not lead in it again.

    Sends EndQuorumEpoch to the voters, with the successors in order of preference, until `deadline_ms`.
    """

    deadline_ms: int
    successors: tuple[ReplicaKey, ...] = ()
    unacknowledged: set[int] = field(default_factory=set)
    role = Role.RESIGNED


RoleState = Unattached | Prospective | Candidate | Leader | Follower | Resigned


@dataclass(frozen=True, slots=True)
class RaftTiming:
    """Timeouts and limits: Kafka's keys ``controller.quorum.*``, and Kafka's fixed values."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    append_linger_ms: int = 0
    """For so long the leader gathers appended batches before it flushes them and lets followers fetch
    them."""
    fetch_max_bytes: int = 1024 * 1024
    snapshot_max_bytes: int = 1024 * 1024
    fetch_wait_ms: int = 500
    refused_election: bool = True
    """``firn.quorum.refused.election``"""
    auto_join: bool = False


class RandomSource(Protocol):
    """Part of `random.Random` that the machine uses; the caller passes it in."""

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, items: Any, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Identity of this replica. `can_vote`: a controller, which flushes its log before a fetch claims it.

    `listener`: the controllers' listener that a replica without endpoints of its own uses, "" for any.
    """

    key: ReplicaKey
    cluster_id: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    bootstrap: tuple[Endpoint, ...] = ()
    can_vote: bool = True
    listener: str = ""

    def at_listener(self, endpoints: VoterEndpoints) -> Endpoint | None:
        """Return the endpoint of the listener that this replica uses: that of our first endpoint."""
        name = self.endpoints[0].name.upper() if self.endpoints else self.listener
        return next((one for one in endpoints if name in ("", one.name.upper())), None)

    def reached(self, endpoints: VoterEndpoints) -> Endpoint | None:
        """Return a controller's endpoint. A voter of the configuration has one address, whatever its
        listener's name."""
        return self.at_listener(endpoints) or (endpoints[0] if endpoints else None)

    def knows_cluster(self, cluster_id: str | None) -> bool:
        return cluster_id is None or self.cluster_id in (None, cluster_id)

    def is_me(self, key: ReplicaKey) -> bool:
        """Return whether a request addressed to `key` is addressed to this replica."""
        return key.node_id < 0 or key.matches(self.key)
