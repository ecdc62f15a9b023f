"""Responses that a fetcher's machine takes, and the effects that it asks for. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import NO_OFFSET, TopicIdPartition
from service.replication.fetch_session_handler import FIRST_EPOCH, FetchPartitionData

# -- responses


class PartitionFetchResponse(NamedTuple):
    """Response of a leader for one partition; `size` is the size of the records that came with it."""

    tip: TopicIdPartition
    error: ErrorCode = ErrorCode.none
    high_watermark: int = NO_OFFSET
    start_offset: int = NO_OFFSET
    size: int = 0
    diverging: tuple[int, int] | None = None
    """(epoch, end offset)"""


class FollowerFetchResponse(NamedTuple):
    error: ErrorCode
    session_id: int
    partitions: Sequence[PartitionFetchResponse]


class LeaderOffsets(NamedTuple):
    """Start and end offset of the leader's log."""

    start: int
    end: int


class Done(Enum):
    """Outcome of an effect."""

    DONE = "done"
    CORRUPT = "corrupt"
    """the records are damaged, or none of them can be appended: fetch again after the back-off"""
    NOT_NOW = "not now"
    """it may work later"""
    UNFLUSHED = "unflushed"
    """the log has grown but is not synced as its settings ask; a later sync may succeed"""
    OFFLINE = "offline"
    """the log's files cannot be trusted: the partition is held until it is assigned again"""


# -- effects


class Fetch(NamedTuple):
    """Send a Fetch request: `partitions` are all that are wanted if the session epoch is 0, else those that
    changed."""

    number: int
    session_id: int
    session_epoch: int
    partitions: Sequence[tuple[TopicIdPartition, FetchPartitionData]]
    forgotten: Sequence[TopicIdPartition]
    is_whole: bool = True
    """The request names all that changed. If not, the next fetch names the rest, so the leader must not delay
    this."""
    most_wait_ms: int | None = None
    """time until a partition that is delayed or throttled may be fetched again"""

    @property
    def begins_session(self) -> bool:
        """The leader knows only the partitions that this request names."""
        return self.session_epoch == FIRST_EPOCH


class Append(NamedTuple):
    """Append the valid records of partition `at`; `follower_append_check` and checksums decide."""

    number: int
    tip: TopicIdPartition
    leader_epoch: int
    at: int
    start_offset: int
    """start of the leader's log"""


class Truncate(NamedTuple):
    """Truncate the log to `offset`, with all epochs that begin there or later, and lower its high watermark
    to it."""

    number: int
    tip: TopicIdPartition
    offset: int
    is_below_high_watermark: bool
    """committed records are removed, after an unclean leader election"""


class Restart(NamedTuple):
    """Delete all of the log and restart it, empty, at `offset`, which becomes its high watermark."""

    number: int
    tip: TopicIdPartition
    offset: int


class AskOffsets(NamedTuple):
    """Ask the leader for its log's start and end (ListOffsets as a replica), and report them to `offsets`."""

    number: int
    tip: TopicIdPartition
    leader_epoch: int


class BuildLocalStart(NamedTuple):
    """Restart the log where the archive ends, with its start offset, epochs and producers: the leader's local
    log begins above our end."""

    number: int
    tip: TopicIdPartition
    leader_epoch: int
    start_offset: int
    """start of the leader's whole log"""


class FlushAppended(NamedTuple):
    """Sync appended records in `after_ms`, as the topic's settings ask, before a fetch reports them to the
    leader."""

    number: int
    tip: TopicIdPartition
    after_ms: int


class AdvanceMarks(NamedTuple):
    """Raise the log's high watermark and start to these; neither passes its end."""

    tip: TopicIdPartition
    high_watermark: int
    start_offset: int


class CaughtUp(NamedTuple):
    """The log has reached the leader's high watermark, for the first time since it fell behind."""

    tip: TopicIdPartition
    leader_epoch: int


class HoldPartition(NamedTuple):
    """The partition is not fetched until it is assigned again; `why` is worth a warning."""

    tip: TopicIdPartition
    why: str


class Warn(NamedTuple):
    """The leader breaks the protocol."""

    why: str


Effect = (
    Append
    | Truncate
    | Restart
    | AskOffsets
    | BuildLocalStart
    | FlushAppended
    | AdvanceMarks
    | CaughtUp
    | HoldPartition
    | Warn
)
