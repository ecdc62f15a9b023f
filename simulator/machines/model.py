"""A metadata log and a state file of the model: what is on disk is known apart from what is written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from service.metadata.raft.events import ControlRecord, KRaftVersion, KRaftVoters
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.log_view import EpochIndex
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterHistory, VoterSet

Value = int | ControlRecord


class Batch(NamedTuple):
    base: int
    epoch: int
    values: tuple[Value, ...]

    @property
    def end(self) -> int:
        return self.base + len(self.values)


class Snapshot(NamedTuple):
    """`digest` stands for what is in it; `source` wrote these very bytes."""

    id: SnapshotId
    voters: VoterSet | None
    version: int
    digest: int
    source: int
    size: int


class Piece(NamedTuple):
    """A byte of a snapshot, as it were."""

    snapshot: Snapshot
    position: int


@dataclass
class ModelLog:
    """A `LogView`, and what the shell does to it."""

    static: VoterSet
    snapshots_held: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    start_offset: int = 0
    durable_end: int = 0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Learn from what is there, as a start does."""
        self.snapshots = tuple(sorted(self.snapshots_held))
        self.voters = VoterHistory(self.static)
        self.epochs = EpochIndex()
        first = self.snapshots_held[self.snapshots[0]] if self.snapshots else None
        if first is not None:
            self._begin_at(first)
        self._bases = [batch.base for batch in self.batches]
        for batch in self.batches:
            self._learn(batch)

    def _begin_at(self, snapshot: Snapshot) -> None:
        self.voters.restart(snapshot.id.end_offset, snapshot.voters, snapshot.version)
        if snapshot.id.end_offset == self.start_offset:
            self.epochs.restart(snapshot.id)

    def _learn(self, batch: Batch) -> None:
        self.epochs.note(batch.epoch, batch.base)
        for i, value in enumerate(batch.values):
            if isinstance(value, KRaftVoters):
                self.voters.add(batch.base + i, value.voters)
            elif isinstance(value, KRaftVersion):
                self.voters.add_version(batch.base + i, value.version)

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end if self.batches else self.start_offset

    def at(self, offset: int) -> Batch | None:
        slot = bisect_right(self._bases, offset) - 1
        if slot < 0 or offset >= self.batches[slot].end:
            return None
        return self.batches[slot]

    def read(self, offset: int, count: int) -> tuple[Batch, ...]:
        """Whole batches from the one that holds `offset` on."""
        slot = max(bisect_right(self._bases, offset) - 1, 0)
        return tuple(self.batches[slot : slot + count])

    def append(self, batch: Batch) -> None:
        assert batch.base == self.end_offset
        self.batches.append(batch)
        self._bases.append(batch.base)
        self._learn(batch)

    def truncate(self, end_offset: int) -> None:
        while self.batches and self.batches[-1].base >= end_offset:
            self.batches.pop()
            self._bases.pop()
        assert self.end_offset == end_offset, "a cut within a batch"
        self.epochs.truncate(end_offset)
        self.voters.truncate(end_offset)
        self.durable_end = min(self.durable_end, end_offset)

    def restart(self, snapshot: Snapshot) -> None:
        self.snapshots_held = {one: held for one, held in self.snapshots_held.items() if one == snapshot.id}
        self.snapshots_held[snapshot.id] = snapshot
        self.batches = []
        self.start_offset = self.durable_end = snapshot.id.end_offset
        self.open()

    def take_snapshot(self, snapshot: Snapshot, keep: int) -> None:
        """Add a snapshot; delete the oldest ones, and the log below those that stay."""
        self.durable_end = max(self.durable_end, snapshot.id.end_offset)  # flushed first
        self.snapshots_held[snapshot.id] = snapshot
        ids = sorted(self.snapshots_held)
        for old in ids[:-keep]:
            del self.snapshots_held[old]
        self.snapshots = tuple(ids[-keep:])
        start = self.snapshots[0].end_offset
        if start > self.start_offset:
            self.epochs.forget_before(start)
            slot = bisect_right(self._bases, start - 1)
            del self.batches[:slot], self._bases[:slot]
            self.start_offset = start
            self.voters.forget_before(start)

    def lose_power(self, random: Random) -> None:
        """Lose a random part of the batches that were not flushed."""
        kept = random.choice(
            (self.durable_end, self.end_offset, random.randint(self.durable_end, self.end_offset))
        )
        while self.batches and self.batches[-1].end > max(kept, self.durable_end):
            self.batches.pop()
        self.durable_end = self.end_offset  # a start flushes
        self.open()


@dataclass
class ModelDisk:
    """All that a crash leaves."""

    key: ReplicaKey
    log: ModelLog
    state: QuorumState | None = None


def digest_of(values: Iterable[tuple[int, Value]], before: int) -> int:
    """Return a digest of the content of a log."""
    result = before
    for epoch, value in values:
        number = value if isinstance(value, int) else hash_of(value)
        result = (result * 1_000_003 + epoch * 31 + number) % (1 << 61)
    return result


def hash_of(record: ControlRecord) -> int:
    """Return a hash that is the same in every process."""
    return sum(map(ord, repr(record)))
