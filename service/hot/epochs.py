"""Which leader epoch began at which offset: Kafka's `leader-epoch-checkpoint` and `LeaderEpochFileCache`.

File: version 0, then a line ``<epoch> <start offset>`` per epoch, both ascending. It is replaced as a whole
when an epoch is added and fsynced by the flusher before the recovery point passes that offset; a truncation
may leave stale lines behind after a crash, which loading cuts again at the log's end.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Final

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.files import read_checkpoint, write_checkpoint
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET
from service.hot.names import LEADER_EPOCHS

UNDEFINED: Final = (NO_LEADER_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """Ascending (epoch, start offset) pairs of one partition. Owned by the loop.

    ``latest``: the last epoch, -1 if there is none.
    """

    __slots__ = ("_dir", "_disk", "_epochs", "_starts", "latest")

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._dir = directory
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_LEADER_EPOCH

    @classmethod
    def load(cls, disk: Disk, directory: Path) -> LeaderEpochs:
        """Read the checkpoint; `CorruptionError` if it cannot be right, `DiskError` if it cannot be read."""
        self = cls(disk, directory)
        for line in read_checkpoint(disk, directory / LEADER_EPOCHS):
            try:
                epoch, start = map(int, line.split())
            except ValueError:
                raise CorruptionError(f"{self.path}: not an epoch and an offset: {line!r}") from None
            if epoch < 0 or start < 0:
                raise CorruptionError(f"{self.path}: negative: {line!r}")
            self.note(epoch, start)
        return self

    @property
    def path(self) -> Path:
        return self._dir / LEADER_EPOCHS

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), ascending."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def moved(self, directory: Path) -> None:
        self._dir = directory

    def assign(self, epoch: int, start_offset: int) -> bool:
        """`epoch` begins at `start_offset`, unless it is the latest already.

        Says whether the file was written.
        """
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        self.note(epoch, start_offset)
        self.save()
        return True

    def note(self, epoch: int, start_offset: int) -> None:
        """As `assign`, but the file waits for `save`."""
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return
        # An entry that is not below the new one in both respects has no records left behind it.
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch

    def epoch_at(self, offset: int) -> int:
        """Epoch of the record at `offset`; -1 if that is not known."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else NO_LEADER_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(greatest known epoch not above `epoch`, where it ended), as OffsetForLeaderEpoch answers.

        (-1, -1) if nothing is known. An epoch older than all known ones ends where the first of those begins.
        """
        if epoch < 0:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return UNDEFINED
        return (self._epochs[higher - 1] if higher else epoch), self._starts[higher]

    def in_range(self, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Epochs of the records in ``[start, end)``, the first one starting at `start_offset` or later."""
        return tuple(
            (epoch, max(start, start_offset))
            for slot, (epoch, start) in enumerate(self.entries)
            if start < end_offset and (slot + 1 == len(self._starts) or self._starts[slot + 1] > start_offset)
        )

    def truncate_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after `end_offset`. Says whether the file was written."""
        if not self._starts or self._starts[-1] < end_offset:
            return False
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
        self.latest = self._epochs[-1] if self._epochs else NO_LEADER_EPOCH
        self.save()
        return True

    def truncate_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before `start_offset`; the one it lies in begins there now."""
        slot = bisect_right(self._starts, start_offset) - 1
        if slot < 0 or (slot == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:slot], self._starts[:slot]
        self._starts[0] = start_offset
        self.save()
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
        self.latest = NO_LEADER_EPOCH
        self.save()

    def save(self) -> None:
        """Replace the file; not fsynced here."""
        lines = [f"{epoch} {start}" for epoch, start in self.entries]
        write_checkpoint(self._disk, self.path, lines, fsync=False)
