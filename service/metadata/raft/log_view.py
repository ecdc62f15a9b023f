"""Read-only view of the metadata log for the Raft machine: offsets, epochs, snapshots and voters. [P]

Everything is in memory. Changes of the log are effects, which are applied before the machine handles the next
event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from service.metadata.raft.keys import EpochEnd, SnapshotId
from service.metadata.raft.voters import VoterHistory


class LogView(Protocol):
    """Offsets, epochs, voters and snapshots of the metadata log. Ends are exclusive."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epochs(self) -> EpochIndex: ...

    @property
    def voters(self) -> VoterHistory: ...

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Snapshots, oldest first; with the bootstrap snapshot, which ends at 0."""
        ...


class EpochIndex:
    """Start offset of each epoch; `base` is the epoch of the last record below the log's start.

    >>> index = EpochIndex([(1, 0), (4, 10)])
    >>> index.end_of(2, 30), index.end_of(4, 30), index.epoch_below(10)
    (EpochEnd(epoch=1, end_offset=10), EpochEnd(epoch=4, end_offset=30), 1)
    """

    def __init__(
        self, entries: Iterable[tuple[int, int]] = (), *, base: int = 0, start_offset: int = 0
    ) -> None:
        self._base = base
        self._start = start_offset
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, offset in entries:
            self.note(epoch, offset)

    @property
    def latest(self) -> int:
        """Epoch of the last record; 0 for an empty log."""
        return self._epochs[-1] if self._epochs else self._base

    def note(self, epoch: int, offset: int) -> None:
        """Add the start of `epoch`, where it is a new one."""
        if epoch != self.latest or (not self._epochs and epoch != self._base):
            self._epochs.append(epoch)
            self._starts.append(offset)

    def epoch_below(self, offset: int) -> int:
        """Return the epoch of the last record below `offset`."""
        slot = bisect_right(self._starts, offset - 1)
        return self._epochs[slot - 1] if slot else self._base

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the end offset of `epoch`, or of the greatest epoch before it that has records."""
        slot = bisect_right(self._epochs, epoch)
        end = self._starts[slot] if slot < len(self._starts) else log_end
        if slot:
            return EpochEnd(self._epochs[slot - 1], end)
        return EpochEnd(min(self._base, epoch), end if epoch >= self._base else self._start)

    def truncate(self, end_offset: int) -> None:
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def forget_before(self, offset: int) -> None:
        """Drop what lies below `offset`, the log's new start."""
        self._base = self.epoch_below(offset)
        self._start = max(self._start, offset)
        slot = bisect_right(self._starts, offset - 1)
        del self._starts[:slot], self._epochs[:slot]

    def restart(self, snapshot: SnapshotId) -> None:
        """Replace the index by that of an empty log that starts at the end of `snapshot`."""
        self._starts.clear()
        self._epochs.clear()
        self._base, self._start = snapshot.epoch, snapshot.end_offset


class ValidationKind(Enum):
    VALID = "valid"
    DIVERGING = "diverging"
    SNAPSHOT = "snapshot"


class ValidOffsetAndEpoch(NamedTuple):
    """Result of a check of a follower's log: it continues in ours, it diverges, or it needs a snapshot."""

    fit: ValidationKind
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None


def real_snapshots(log: LogView) -> tuple[SnapshotId, ...]:
    """Return the snapshots without the bootstrap snapshot."""
    return tuple(one for one in log.snapshots if one.end_offset > 0)


def validate_offset_and_epoch(log: LogView, offset: int, epoch: int) -> ValidOffsetAndEpoch:
    """Check whether a follower's log that ends at `offset`, with a last record of `epoch`, continues in
    `log` (invariant R4).

    Apache Kafka ``KafkaRaftClient.tryCompleteFetchRequest``, ``ReplicatedLog.validateOffsetAndEpoch``.
    """
    snapshots = real_snapshots(log)
    if snapshots:
        oldest, newest = snapshots[0], snapshots[-1]
        start = log.start_offset
        if (
            offset == 0
            or offset < start
            or (offset == start == oldest.end_offset and epoch != oldest.epoch)
            or epoch < oldest.epoch
        ):
            return ValidOffsetAndEpoch(ValidationKind.SNAPSHOT, snapshot=newest)
    if offset == 0 and epoch == 0 and log.start_offset == 0:
        return ValidOffsetAndEpoch(ValidationKind.VALID)
    end = log.epochs.end_of(epoch, log.end_offset)
    if end.epoch != epoch or end.end_offset < offset:
        return ValidOffsetAndEpoch(ValidationKind.DIVERGING, diverging=end)
    return ValidOffsetAndEpoch(ValidationKind.VALID)
