"""Start offsets of leader epochs: Kafka's `leader-epoch-checkpoint` and `LeaderEpochFileCache`.

File: version 0, then a line ``<epoch> <start offset>`` per epoch, both ascending, and a checksum that Kafka
takes for white space (`records.checkpoint_lines`). It is replaced as a whole when an epoch is added, and
fsynced by the flusher before the recovery point passes that offset. A crash after a truncation may leave
stale lines, which loading cuts again at the log's end.

An epoch begins with its leader, and is in the file before its first record is in the log. An epoch without a
record has no line: the next epoch begins at the same offset, and would replace the line. So an election does
not write a file for each partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.files import read_checkpoint, write_checkpoint
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET
from service.hot.names import LEADER_EPOCHS
from service.records.checkpoint_lines import EpochEntry, decode_epochs, encode_epochs

UNDEFINED: Final = (NO_LEADER_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """Ascending (epoch, start offset) pairs of one partition. Owned by the loop.

    ``latest``: the last epoch in the file, -1 if there is none; an epoch that has begun since may be later.
    Methods that change the file raise `DiskError`, and leave the pairs unchanged then: the file is written
    first.
    """

    __slots__ = ("_dir", "_disk", "_epochs", "_starts", "latest")

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._dir = directory
        self._set([])

    @classmethod
    def load(cls, disk: Disk, directory: Path) -> LeaderEpochs:
        """Read the checkpoint; `CorruptionError` if it is invalid, `DiskError` if it cannot be read."""
        self = cls(disk, directory)
        try:
            entries = decode_epochs(read_checkpoint(disk, self.path))
        except CorruptionError as e:
            raise CorruptionError(f"{self.path}: {e}") from e
        for epoch, start in entries:
            self.note(epoch, start)
        return self

    @property
    def path(self) -> Path:
        return self._dir / LEADER_EPOCHS

    @property
    def newest(self) -> int:
        """The last known epoch, which may have no record yet; -1 for none."""
        return self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), ascending."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def moved(self, directory: Path) -> None:
        self._dir = directory

    def begin(self, epoch: int, start_offset: int) -> None:
        """Begin a later `epoch` at `start_offset`, with or without a record of it (invariant P10); `assign`
        writes the file before the first record."""
        if epoch > (self._epochs[-1] if self._epochs else NO_LEADER_EPOCH):
            self._know(self._with(epoch, start_offset))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begin `epoch` at `start_offset`, unless it is the latest already; returns whether the file was
        written."""
        if self._is_known(epoch, start_offset):
            return False
        self.replace(self._with(epoch, start_offset))
        return True

    def note(self, epoch: int, start_offset: int) -> None:
        """Begin `epoch` as `assign` does, but leave the file to `save`."""
        if not self._is_known(epoch, start_offset):
            self._set(self._with(epoch, start_offset))

    def _is_known(self, epoch: int, start_offset: int) -> bool:
        return epoch == self.latest and start_offset >= self._starts[-1]

    def _with(self, epoch: int, start_offset: int) -> list[EpochEntry]:
        """Add an entry, and drop those that are not below it in epoch and offset: they have no records
        left."""
        kept = [one for one in self.entries if one[0] < epoch and one[1] < start_offset]
        return [*kept, (epoch, start_offset)]

    def replace(self, entries: Iterable[EpochEntry], *, fsync: bool = False) -> None:
        """Replace all epochs, and the file."""
        entries = list(entries)
        write_checkpoint(self._disk, self.path, encode_epochs(entries), fsync=fsync)
        self._set(entries)

    def learn_earlier(self, earlier: Sequence[EpochEntry], start_offset: int) -> None:
        """Put `earlier` epochs, ascending, from the archive of a log that begins at `start_offset`, before
        the later ones known here. The file is durable then."""
        epoch, start = earlier[-1] if earlier else UNDEFINED
        later = [one for one in self.entries if one[0] > epoch and one[1] > start]
        self.replace([*earlier, *later], fsync=True)
        self.truncate_start(start_offset)

    def _set(self, entries: list[EpochEntry]) -> None:
        self._know(entries)
        self.latest = self._epochs[-1] if entries else NO_LEADER_EPOCH

    def _know(self, entries: list[EpochEntry]) -> None:
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`; -1 if it is unknown."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else NO_LEADER_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (greatest known epoch not above `epoch`, its end offset), as OffsetForLeaderEpoch does.

        (-1, -1) if nothing is known. An epoch older than all known ones ends where the first of those begins.
        """
        if epoch == NO_LEADER_EPOCH:
            return UNDEFINED
        if self._epochs and epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return UNDEFINED
        return (self._epochs[higher - 1] if higher else epoch), self._starts[higher]

    def end_up_to(self, epoch: int, log_end_offset: int) -> int:
        """Return the offset below which records of epochs up to `epoch` lie: where a later one begins, or the
        end of the log."""
        higher = bisect_right(self._epochs, epoch)
        return self._starts[higher] if higher < len(self._epochs) else log_end_offset

    def truncate_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after `end_offset`; returns whether the file was written."""
        if not self._starts or self._starts[-1] < end_offset:
            return False
        self.replace(one for one in self.entries if one[1] < end_offset)
        return True

    def truncate_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before `start_offset`; the one that contains it begins there now. Returns
        whether any changed.

        The file keeps them until its next write: after a crash the log may begin at its old start.
        """
        slot = bisect_right(self._starts, start_offset) - 1
        if slot < 0 or (slot == 0 and self._starts[0] == start_offset):
            return False
        self._know([(self._epochs[slot], start_offset), *self.entries[slot + 1 :]])
        return True

    def save(self) -> None:
        """Replace the file; not fsynced here."""
        self.replace(self.entries)
