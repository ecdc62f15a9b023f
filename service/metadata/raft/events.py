"""What the Raft machine is told, and what it wants done. [P]

Effects are done in their order, and all of them before the next event is handled: state is on disk before a
vote is answered, a log is truncated before it is fetched on. `Flush` alone goes on beside; it is told by
`Flushed`, one at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from service.base.types import Buffer
from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.requests import Answered, Asked, NoAnswer
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterSet


class Peer(NamedTuple):
    """A node, and where it is reached. `node_id` is negative where only the address is known."""

    node_id: int
    endpoint: Endpoint


# -- events


class Start(NamedTuple):
    """The node starts. `state` is what ``quorum-state`` says; the log is open, and on disk to its end."""

    state: QuorumState | None


class Tick(NamedTuple):
    """The time of `next_deadline_ms` has come."""


class Request(NamedTuple):
    """Somebody asks; `Reply` bears the same id."""

    id: int
    asked: Asked


class Cancelled(NamedTuple):
    """Whoever sent the request `id` has gone: no answer is needed."""

    id: int


class Answer(NamedTuple):
    """To the `Send` of the same `call`."""

    peer: Peer
    call: int
    reply: Answered | NoAnswer


class Appended(NamedTuple):
    """Batches were written up to `end_offset`: ours, as the leader, or fetched ones. Not on disk yet."""

    end_offset: int


class NotAppended(NamedTuple):
    """What was fetched makes no sense, and was not written."""


class Flushed(NamedTuple):
    """The log is on disk up to `end_offset`."""

    end_offset: int


class SnapshotReady(NamedTuple):
    """A fetched snapshot was proved whole and is on disk; not `is_good`: it was thrown away."""

    snapshot: SnapshotId
    is_good: bool = True


class Stop(NamedTuple):
    """The node stops in good order."""


Event = Start | Tick | Request | Cancelled | Answer | Appended | NotAppended | Flushed | SnapshotReady | Stop


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
    """Write ``quorum-state`` and fsync it, before the next effect."""

    state: QuorumState


class AppendControl(NamedTuple):
    """Append one batch of control records in `epoch`; then tell `Appended`."""

    epoch: int
    records: tuple[ControlRecord, ...]


class AppendFetched(NamedTuple):
    """Append these whole batches of epochs up to `epoch`; then tell `Appended` or `NotAppended`."""

    epoch: int
    records: Buffer


class TruncateTo(NamedTuple):
    """Let a flush under way end and be forgotten; then drop what lies at or beyond `end_offset`."""

    end_offset: int


class Flush(NamedTuple):
    """Fsync the log up to `end_offset`, beside everything else; then tell `Flushed`."""

    end_offset: int


class StoreSnapshot(NamedTuple):
    """Write bytes of a snapshot that is being fetched; `position` 0 begins anew.

    With `is_last`, prove it and tell `SnapshotReady`.
    """

    snapshot: SnapshotId
    position: int
    data: Buffer
    is_last: bool


class RestartAt(NamedTuple):
    """Let a flush under way end and be forgotten; then begin the log anew at the end of `snapshot`."""

    snapshot: SnapshotId


class Send(NamedTuple):
    """Ask a peer; its answer, or that there is none, is an `Answer`."""

    peer: Peer
    call: int
    asked: Asked


class Reply(NamedTuple):
    """Answer the request `id`; what it is to read is put into the answer first."""

    id: int
    answer: Answered


class Park(NamedTuple):
    """The request `id` is answered later."""

    id: int


class Commit(NamedTuple):
    """Everything below `high_watermark` is decided for good."""

    high_watermark: int


class Lead(NamedTuple):
    """This node leads in `epoch`; its first batch is appended."""

    epoch: int


class Follow(NamedTuple):
    """Another node leads in `epoch`; -1: nobody that is known."""

    leader_id: int
    epoch: int


class StepDown(NamedTuple):
    """This node led, and leads no more."""


Effect = (
    Persist
    | AppendControl
    | AppendFetched
    | TruncateTo
    | Flush
    | StoreSnapshot
    | RestartAt
    | Send
    | Reply
    | Park
    | Commit
    | Lead
    | Follow
    | StepDown
)
