"""The roles of a replica of the metadata log, what each of them knows, and the legal moves. [P]

    Unattached --time--> Prospective --pre-votes--> Candidate --votes--> Leader --time, stop--> Resigned
         ^---- a later epoch, from anywhere         Follower <-- a leader is known, from anywhere but Leader

Apache Kafka 4.3 ``QuorumState``; KIP-595, KIP-996. Times are milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.requests import FetchAsked, VoterChangeAsked
from service.metadata.raft.voters import Voter

NEVER: Final = 2**62


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


_ANEW: Final = frozenset({Role.UNATTACHED, Role.FOLLOWER})
LEGAL_MOVES: Final = {
    Role.UNATTACHED: _ANEW | {Role.PROSPECTIVE, Role.CANDIDATE},
    Role.PROSPECTIVE: _ANEW | {Role.CANDIDATE},
    Role.CANDIDATE: _ANEW | {Role.PROSPECTIVE, Role.LEADER},
    Role.LEADER: _ANEW | {Role.RESIGNED},
    Role.FOLLOWER: _ANEW | {Role.PROSPECTIVE},
    Role.RESIGNED: _ANEW,
}
"""To Unattached only with a later epoch, or from Prospective. A sole voter is never Prospective."""


@dataclass(slots=True)
class Unattached:
    """No leader is known. A voter stands when `deadline_ms` has come."""

    deadline_ms: int
    role = Role.UNATTACHED


@dataclass(slots=True)
class Prospective:
    """Asks whether it would be elected, in its present epoch. It may still know the leader of that."""

    deadline_ms: int
    granted: set[int]
    rejected: set[int] = field(default_factory=set)
    again_ms: dict[int, int] = field(default_factory=dict)
    """when those are asked again"""
    role = Role.PROSPECTIVE


@dataclass(slots=True)
class Candidate:
    """Asks for votes, in an epoch in which it has voted for itself."""

    deadline_ms: int
    granted: set[int]
    rejected: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)
    """who refused the connection: nobody is there to vote"""
    is_backing_off: bool = False
    role = Role.CANDIDATE


@dataclass(slots=True)
class Fetching:
    """A snapshot that comes in pieces; it is written up to `position`."""

    snapshot: SnapshotId
    position: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; a voter stands when it has not got an answer until `deadline_ms`."""

    deadline_ms: int
    update_due_ms: int
    has_fetched: bool = False
    refusals: list[int] = field(default_factory=list)
    fetching: Fetching | None = None
    leader_mark: int = -1
    """high watermark of the leader, as it told last"""
    is_appending: bool = False
    has_updated: bool = False
    """under kraft.version 0: this leader was told of our directory"""
    role = Role.FOLLOWER


@dataclass(slots=True)
class Replica:
    """What the leader knows of another replica: `end_offset` is on its disk. -1: nothing yet."""

    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end: int = -1
    """where our log ended at its last fetch"""


@dataclass(slots=True)
class Parked:
    asked: FetchAsked
    deadline_ms: int


@dataclass(slots=True)
class Change:
    """A voter change under way. `offset` is that of the record, once it is appended."""

    request: int | None
    asked: VoterChangeAsked
    deadline_ms: int
    offset: int | None = None


@dataclass(slots=True)
class Leader:
    """`committed` is the high watermark that this leader has established; -1: none yet."""

    epoch_start: int
    granted: tuple[int, ...]
    quorum_deadline_ms: int
    committed: int = -1
    shown_end: int = 0
    """followers that have all below it wait for more, and a flush for something behind it"""
    show_ms: int | None = None
    """when what has been gathered since is to be shown"""
    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    begun_ms: dict[int, int] = field(default_factory=dict)
    """when each voter was told last that we lead"""
    parked: dict[int, Parked] = field(default_factory=dict)
    change: Change | None = None
    updates: dict[int, Voter] = field(default_factory=dict)
    """under kraft.version 0: what voters said of themselves"""
    role = Role.LEADER


@dataclass(slots=True)
class Resigned:
    """Led in this epoch, and will not again. Tells the voters, best log first, until `deadline_ms`."""

    deadline_ms: int
    successors: tuple[ReplicaKey, ...] = ()
    unacknowledged: set[int] = field(default_factory=set)
    role = Role.RESIGNED


RoleState = Unattached | Prospective | Candidate | Leader | Follower | Resigned


@dataclass(frozen=True, slots=True)
class Timing:
    """Kafka's keys ``controller.quorum.*``, and what is fixed there."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    append_linger_ms: int = 0
    """for so long a leader gathers what is appended before it flushes and shows it"""
    fetch_max_bytes: int = 1024 * 1024
    snapshot_max_bytes: int = 1024 * 1024
    fetch_wait_ms: int = 500
    refused_election: bool = True
    """``firn.quorum.refused.election``"""
    auto_join: bool = False


class Chance(Protocol):
    """The part of `random.Random` that is used here; it is given by whoever makes the machine."""

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, items: Any, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this replica is. `can_vote`: it is a controller; its log is flushed before a fetch claims it."""

    key: ReplicaKey
    cluster_id: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    bootstrap: tuple[Endpoint, ...] = ()
    can_vote: bool = True
