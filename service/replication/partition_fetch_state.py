"""Fetch state of one partition that follows a leader, and the delays before retries. [P]"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import Final, Protocol

from service.base.errors import InvariantError
from service.base.types import NO_OFFSET, TopicIdPartition
from service.replication.fetch_session_handler import FetchPartitionData

NO_MARKS: Final = (NO_OFFSET, NO_OFFSET)


class FollowerLog(Protocol):
    """Read access to the log of a follower."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int:
        """The latest known epoch, -1 if none: it may be one in which this node led and wrote no record. A
        leader that does not know this epoch makes the follower truncate at its log's end."""

    @property
    def high_watermark(self) -> int: ...

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest known epoch at or below `leader_epoch`, its end offset); (-1, -1) if there is
        none."""


class FetchState(Enum):
    READY = "ready"
    """the next fetch asks for it"""
    WORKING = "working"
    """its log is being changed; no partition is fetched meanwhile"""
    ASKING = "asking"
    BUILDING = "building"
    FLUSHING = "flushing"
    """what was appended is being synced to disk, before a fetch tells the leader of it"""
    DELAYED = "delayed"
    HELD = "held"
    """not fetched until it is assigned again"""


_REST: Final = (FetchState.READY, FetchState.DELAYED, FetchState.HELD)
MOVES: Final = {
    FetchState.READY: (
        FetchState.WORKING, FetchState.ASKING, FetchState.BUILDING, FetchState.FLUSHING, FetchState.DELAYED,
        FetchState.HELD,
    ),
    FetchState.WORKING: (FetchState.FLUSHING, *_REST),
    FetchState.ASKING: (FetchState.WORKING, *_REST),
    FetchState.BUILDING: _REST,
    FetchState.FLUSHING: (FetchState.FLUSHING, *_REST),
    FetchState.DELAYED: (FetchState.READY,),
    FetchState.HELD: (),
}  # fmt: skip
"""Legal moves. A partition that is assigned again begins as READY, whatever its state was."""


class PartitionFetchState:
    """One partition of a fetcher."""

    __slots__ = (
        "before",
        "early_errors",
        "is_clean",
        "lag",
        "leader_epoch",
        "leader_marks",
        "log",
        "number",
        "state",
        "tip",
    )  # fmt: skip

    def __init__(self, tip: TopicIdPartition, log: FollowerLog, leader_epoch: int, is_clean: bool) -> None:
        self.tip = tip
        self.log = log
        self.leader_epoch = leader_epoch
        self.is_clean = is_clean
        self.state = FetchState.READY
        self.number = 0
        """number of the effect in progress; 0 if there is none"""
        self.before = self.position
        """fetch position when that effect began"""
        self.early_errors = 0
        """how often in a row the leader has answered that it does not know of its leadership yet"""
        self.leader_marks = NO_MARKS
        """high watermark and log start offset that came with the records being appended"""
        self.lag: int | None = None
        """committed records that it lacks, as of the last records; None: not known"""

    @property
    def position(self) -> FetchPartitionData:
        log = self.log
        return FetchPartitionData(
            self.leader_epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset
        )

    def move(self, state: FetchState) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"{self.tip}: {self.state.value} becomes {state.value}")
        self.state = state


class RetryDelays:
    """Delayed partitions of one fetcher, by the time at which each is fetched again."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, PartitionFetchState]] = []

    def add(self, followed: PartitionFetchState, due_ms: int, order: int) -> None:
        """Delay the partition until `due_ms`; `order` decides between equal times, and is not used twice."""
        followed.move(FetchState.DELAYED)
        heappush(self._heap, (due_ms, order, followed))

    @property
    def due_ms(self) -> int | None:
        """The first of these times; None where nothing is delayed."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Iterator[PartitionFetchState]:
        """Remove the partitions whose delay has passed; yield those that are still delayed."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            followed = heappop(heap)[2]
            if followed.state is FetchState.DELAYED:
                yield followed
