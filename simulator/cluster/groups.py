"""Groups of a cluster: committed offsets, where their coordinator is, and what it may say. [P]

Committed offsets are numbers that only rise, each sent once, so that an offset that is read names its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from service.base.java_hash import partition_of
from simulator.cluster.transaction_model import Transaction
from simulator.groups import NOTHING
from simulator.model import Violation

OFFSETS: Final = "__consumer_offsets"
OFFSETS_PARTITIONS: Final = 2


@dataclass
class Committed:
    """One partition's commits by one group.

    A commit without a response may be written as long as the process lives that it was sent to; one that is
    written already, by a process that is dead, comes before all later ones."""

    there: int = NOTHING
    """acknowledged or read: this one or a later one is committed"""
    sent: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    """commits without a response, each with the process that may write it"""
    undecided: dict[int, Transaction] = field(default_factory=dict)
    """commits in transactions of which it is not known yet how they end"""
    unsure: set[int] = field(default_factory=set)
    """those of `undecided` that may be lost, however their transactions ended"""

    def judge(self, value: int, where: str, is_alive: Iterator[str]) -> None:
        """Check that `value` may be the committed offset. Raises `Violation`."""
        if value in self.refused:
            raise Violation(f"G1: {where}: {value} is committed, and was refused ({self.refused[value]})")
        if value != NOTHING and value not in self.sent:
            raise Violation(f"G1: {where}: {value} is committed, and was never sent")
        if value < self.there and value not in self.late and value not in self.undecided:
            raise Violation(f"G2: {where}: {value} is committed, and {self.there} was before")
        alive = set(is_alive)
        self.there = value
        self.late = {late: run for late, run in self.late.items() if run in alive}

    def settle(self, partition: tuple[str, int], decided: Callable[[Transaction], bool | None]) -> None:
        """Note how transactions have ended that are complete; `decided` returns None where none knows."""
        for value, one in list(self.undecided.items()):
            decision = decided(one)
            if decision is None:
                continue
            del self.undecided[value]
            if decision and partition in one.answered_offsets and value not in self.unsure:
                self.there = max(self.there, value)
            elif not decision:
                self.refused[value] = f"in {one}, which is aborted"

    def may_be_lost(self) -> None:
        """Note that the log may have lost any commit."""
        self.there = NOTHING
        self.unsure = set(self.undecided)


@dataclass
class ClusterGroup:
    """Group without members; who commits is a client."""

    group_id: str
    topic: str
    committed: dict[int, Committed] = field(default_factory=dict)
    """by partition of `topic`"""
    is_transactional: bool = False
    """whether its offsets are committed in transactions alone, of one transactional id"""
    is_busy: bool = False

    def __str__(self) -> str:
        return f"group {self.group_id}"

    @property
    def partition(self) -> int:
        """Partition of `__consumer_offsets` that has the group."""
        return partition_of(self.group_id, OFFSETS_PARTITIONS)

    def of(self, partition: int) -> Committed:
        """Return the commits of a partition."""
        return self.committed.setdefault(partition, Committed())
