"""Events that the Raft machine handles, and effects that it returns. [P]

The shell applies effects in order, all of them before the machine handles the next event: state is on disk
before a vote is answered, and a log is truncated before it is fetched further. Only `FlushLog` runs in the
background, one at a time; `Flushed` reports its end.
"""

from __future__ import annotations

from typing import NamedTuple

from service.base.types import Buffer
from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.requests import NoResponse, RaftRequest, RaftResponse
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterSet


class Peer(NamedTuple):
    """Node and its endpoint. `node_id` is negative where only the address is known."""

    node_id: int
    endpoint: Endpoint


# -- events


class Initialize(NamedTuple):
    """The node starts. `state` is the content of ``quorum-state``; the open log is durable to its end."""

    state: QuorumState | None


class Tick(NamedTuple):
    """The time of `next_deadline_ms` has come."""


class InboundRequest(NamedTuple):
    """Request to this replica; `OutboundResponse` carries the same id."""

    id: int
    request: RaftRequest


class Cancelled(NamedTuple):
    """The client of request `id` is gone: no response is needed."""

    id: int


class InboundResponse(NamedTuple):
    """Response to the `Send` of the same `call`, or the reason that there is none."""

    peer: Peer
    call: int
    reply: RaftResponse | NoResponse


class Appended(NamedTuple):
    """Batches up to `end_offset` are written, not yet flushed: the leader's own, or fetched ones."""

    end_offset: int


class NotAppended(NamedTuple):
    """Fetched records were malformed and not written."""


class Flushed(NamedTuple):
    """The log is durable up to `end_offset`."""

    end_offset: int


class SnapshotReady(NamedTuple):
    """A fetched snapshot is valid and durable; not `is_good`: it was invalid and is discarded."""

    snapshot: SnapshotId
    is_good: bool = True


class Stop(NamedTuple):
    """The node shuts down cleanly."""


Event = (
    Initialize
    | Tick
    | InboundRequest
    | Cancelled
    | InboundResponse
    | Appended
    | NotAppended
    | Flushed
    | SnapshotReady
    | Stop
)


# -- control records


class LeaderChange(NamedTuple):
    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class KRaftVersion(NamedTuple):
    version: int


class KRaftVoters(NamedTuple):
    voters: VoterSet


ControlRecord = LeaderChange | KRaftVersion | KRaftVoters


# -- effects


class Persist(NamedTuple):
    """Write ``quorum-state`` and fsync it, before the next effect tells anybody of it (invariant R2)."""

    state: QuorumState


class AppendControl(NamedTuple):
    """Append one batch of control records in `epoch`, then handle `Appended`."""

    epoch: int
    records: tuple[ControlRecord, ...]


class AppendFetched(NamedTuple):
    """Append these whole batches of epochs up to `epoch`, then handle `Appended` or `NotAppended`."""

    epoch: int
    records: Buffer


class TruncateTo(NamedTuple):
    """Await a running flush and drop its result, then truncate the log to `end_offset`."""

    end_offset: int


class FlushLog(NamedTuple):
    """Fsync the log up to `end_offset` in the background, then handle `Flushed`."""

    end_offset: int


class StoreSnapshot(NamedTuple):
    """Write a chunk of a snapshot that is being fetched; `position` 0 starts the file again.

    With `is_last`, validate the file, then handle `SnapshotReady`.
    """

    snapshot: SnapshotId
    position: int
    data: Buffer
    is_last: bool


class RestartAt(NamedTuple):
    """Await a running flush and drop its result, then replace the log by `snapshot`."""

    snapshot: SnapshotId


class Send(NamedTuple):
    """Send a request to a peer; `InboundResponse` carries its response or its failure."""

    peer: Peer
    call: int
    request: RaftRequest


class OutboundResponse(NamedTuple):
    """Answer the request `id`; the shell first fills in a `ReadLog` or `ReadSnapshot`."""

    id: int
    answer: RaftResponse


class Park(NamedTuple):
    """The request `id` is answered later."""

    id: int


class AdvanceHighWatermark(NamedTuple):
    """The high watermark advances: everything below it is committed."""

    high_watermark: int


class Lead(NamedTuple):
    """Leadership of this node in `epoch`; the first batch of the epoch is appended."""

    epoch: int


class FollowLeader(NamedTuple):
    """Leadership of another node in `epoch`; `leader_id` -1: the leader is unknown."""

    leader_id: int
    epoch: int


class StepDown(NamedTuple):
    """End of this node's leadership."""


Effect = (
    Persist
    | AppendControl
    | AppendFetched
    | TruncateTo
    | FlushLog
    | StoreSnapshot
    | RestartAt
    | Send
    | OutboundResponse
    | Park
    | AdvanceHighWatermark
    | Lead
    | FollowLeader
    | StepDown
)
