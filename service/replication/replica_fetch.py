"""Fetch of a replica from a partition's leader, and the checks before it gets records. [P]

The order is that of Apache Kafka 4.3 (``ReplicaManager.readFromLog``, ``Partition.fetchRecords``): topic id,
leader epoch, leader, replica, then the log: last fetched epoch, start, divergence, local start.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.types import NO_LEADER_EPOCH, NO_OFFSET

NO_BROKER_EPOCH = -1
"""of a fetch without one, or of an ISR member whose epoch is not known"""


class LeaderLog(Protocol):
    """Read access to the leader's log; `hot.log.LocalLog` is one."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def local_log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest known epoch at or below `leader_epoch`, its end offset); (-1, -1) if there is
        none."""


class ReplicaFetch(NamedTuple):
    """Request of a replica for one partition; -1 in a field that the request leaves out."""

    replica_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    start_offset: int = NO_OFFSET


class FetchVerdict(NamedTuple):
    """Result of the checks. Neither error nor divergence: the replica gets records from its offset up to the
    log's end."""

    error: ErrorCode = ErrorCode.none
    why: str = ""
    diverging: tuple[int, int] | None = None
    """(epoch, end offset): the logs agree only up to the end of this epoch of ours"""


GRANTED = FetchVerdict()


def judge_topic(asked: UUID, in_image: UUID | None, of_log: UUID | None) -> ErrorCode:
    """Check the topic id. `in_image`: the same id if the metadata image knows it; `of_log`: the partition's
    id here."""
    if in_image is None:
        return ErrorCode.unknown_topic_id
    if asked != in_image or (of_log is not None and asked != of_log):
        return ErrorCode.inconsistent_topic_id
    return ErrorCode.none


def judge_epoch(asked: int, ours: int) -> ErrorCode:
    """Return the error of a leader epoch that is not `ours`."""
    if asked in (NO_LEADER_EPOCH, ours):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if asked < ours else ErrorCode.unknown_leader_epoch


def judge_log(asked: ReplicaFetch, log: LeaderLog) -> FetchVerdict:
    """Check that the replica's log agrees with `log` up to its offset (invariant P3), and that `log` has what
    follows."""
    offset, start, end = asked.offset, log.log_start_offset, log.log_end_offset
    if asked.last_epoch >= 0:
        epoch, epoch_end = log.end_offset_of_epoch(asked.last_epoch)
        if epoch == NO_LEADER_EPOCH or epoch_end == NO_OFFSET:
            return _out_of_range(f"where epoch {asked.last_epoch} ends is not known here")
        if offset < start:
            return _out_of_range(f"{offset} lies below the start, {start}")
        if epoch < asked.last_epoch or epoch_end < offset:
            return FetchVerdict(diverging=(epoch, epoch_end))
    if not start <= offset <= end:
        return _out_of_range(f"{offset} is not from {start} to {end}")
    if offset < log.local_log_start_offset:
        return FetchVerdict(
            ErrorCode.offset_moved_to_tiered_storage,
            f"{offset} lies below the local start, {log.local_log_start_offset}",
        )
    return GRANTED


def _out_of_range(why: str) -> FetchVerdict:
    return FetchVerdict(ErrorCode.offset_out_of_range, why)
