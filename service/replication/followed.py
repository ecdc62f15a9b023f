"""One partition that follows: in which state it is, and what is asked for it. [P]"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from service.base.errors import InvariantError
from service.base.types import NO_OFFSET, TopicIdPartition
from service.replication.asking import Asked

NOTHING_TOLD: Final = (NO_OFFSET, NO_OFFSET)


class FollowerLog(Protocol):
    """What is looked at of a log that follows."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int:
        """The latest that is known, -1 where there is none: also one in which this node led and wrote no
        record. A leader that does not know it has it cut off at the log's end."""

    @property
    def high_watermark(self) -> int: ...

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(largest known epoch at or below `leader_epoch`, its end offset); (-1, -1) if none is known."""


class State(Enum):
    READY = "ready"
    """it is asked for"""
    WORKING = "working"
    """its log is being changed; nothing is fetched meanwhile"""
    ASKING = "asking"
    BUILDING = "building"
    FLUSHING = "flushing"
    """what was appended is not on the device, as it is to be before the leader is told of it"""
    DELAYED = "delayed"
    HELD = "held"
    """until it is assigned anew"""


_REST: Final = (State.READY, State.DELAYED, State.HELD)
MOVES: Final = {
    State.READY: (
        State.WORKING, State.ASKING, State.BUILDING, State.FLUSHING, State.DELAYED, State.HELD,
    ),
    State.WORKING: (State.FLUSHING, *_REST),
    State.ASKING: (State.WORKING, *_REST),
    State.BUILDING: _REST,
    State.FLUSHING: (State.FLUSHING, *_REST),
    State.DELAYED: (State.READY,),
    State.HELD: (),
}  # fmt: skip
"""A partition that is assigned anew begins as READY, whatever it was."""


class Followed:
    """One partition of the fetcher."""

    __slots__ = (
        "before", "due_ms", "early", "is_clean", "lag", "leader_epoch", "log", "number", "state",
        "tip", "told",
    )  # fmt: skip

    def __init__(self, tip: TopicIdPartition, log: FollowerLog, leader_epoch: int, is_clean: bool) -> None:
        self.tip = tip
        self.log = log
        self.leader_epoch = leader_epoch
        self.is_clean = is_clean
        self.state = State.READY
        self.number = 0
        """of the effect that is under way; 0 where none is"""
        self.before = self.asked
        """as it was when that was begun"""
        self.due_ms = 0
        self.early = 0
        """how often its leader has said that it does not know of its office yet"""
        self.told = NOTHING_TOLD
        """high watermark and start that came with the records that are being appended"""
        self.lag: int | None = None
        """what it lacks of what is committed, as of the last records; None: that is not known"""

    @property
    def asked(self) -> Asked:
        log = self.log
        return Asked(self.leader_epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset)

    def move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"{self.tip}: {self.state.value} becomes {state.value}")
        self.state = state
