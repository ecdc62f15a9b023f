"""Which leader epoch began at which offset: Kafka's `leader-epoch-checkpoint` and `LeaderEpochFileCache`.

File: version 0, then a line ``<epoch> <start offset>`` per epoch, both ascending, and a checksum that Kafka
takes for white space (`records.checkpoint_lines`). It is replaced as a whole
when an epoch is added and fsynced by the flusher before the recovery point passes that offset; a truncation
may leave stale lines behind after a crash, which loading cuts again at the log's end.

An epoch begins with its leader, and is in the file before its first record is in the log. One that never had
a record leaves no line: the epoch after it begins at the same offset, and would have taken the line's place.
So a start does not write a file for each partition.
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

    ``latest``: the last epoch that the file has, -1 if there is none; one that has begun since may be later.
    What changes the file raises `DiskError`, and the pairs are then as they were: the file is written first.
    """

    __slots__ = ("_dir", "_disk", "_epochs", "_starts", "latest")

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._dir = directory
        self._set([])

    @classmethod
    def load(cls, disk: Disk, directory: Path) -> LeaderEpochs:
        """Read the checkpoint; `CorruptionError` if it cannot be right, `DiskError` if it cannot be read."""
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
        """The last epoch that is known, one that has begun and has no record yet among them; -1: none."""
        return self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), ascending."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def moved(self, directory: Path) -> None:
        self._dir = directory

    def begin(self, epoch: int, start_offset: int) -> None:
        """A later `epoch` begins at `start_offset`; the file waits for its first record, and `assign`."""
        if epoch > (self._epochs[-1] if self._epochs else NO_LEADER_EPOCH):
            self._know(self._with(epoch, start_offset))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """`epoch` begins at `start_offset`, unless it is the latest already.

        Says whether the file was written.
        """
        if self._is_known(epoch, start_offset):
            return False
        self.replace(self._with(epoch, start_offset))
        return True

    def note(self, epoch: int, start_offset: int) -> None:
        """As `assign`, but the file waits for `save`."""
        if not self._is_known(epoch, start_offset):
            self._set(self._with(epoch, start_offset))

    def _is_known(self, epoch: int, start_offset: int) -> bool:
        return epoch == self.latest and start_offset >= self._starts[-1]

    def _with(self, epoch: int, start_offset: int) -> list[EpochEntry]:
        """An entry that is not below the new one in both respects has no records left behind it."""
        kept = [one for one in self.entries if one[0] < epoch and one[1] < start_offset]
        return [*kept, (epoch, start_offset)]

    def replace(self, entries: Iterable[EpochEntry], *, fsync: bool = False) -> None:
        """These are the epochs from now on."""
        entries = list(entries)
        write_checkpoint(self._disk, self.path, encode_epochs(entries), fsync=fsync)
        self._set(entries)

    def learn_earlier(self, earlier: Sequence[EpochEntry], start_offset: int) -> None:
        """Take `earlier` ones, ascending, from the archive of a log that begins at `start_offset`; what is
        known here goes on behind them. The file is durable then."""
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
        """Epoch of the record at `offset`; -1 if that is not known."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else NO_LEADER_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(greatest known epoch not above `epoch`, where it ended), as OffsetForLeaderEpoch answers.

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

    def truncate_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after `end_offset`. Says whether the file was written."""
        if not self._starts or self._starts[-1] < end_offset:
            return False
        self.replace(one for one in self.entries if one[1] < end_offset)
        return True

    def truncate_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before `start_offset`; the one it lies in begins there now.

        The file keeps them until it is written next: after a crash the log may begin where it did. Says
        whether any changed.
        """
        slot = bisect_right(self._starts, start_offset) - 1
        if slot < 0 or (slot == 0 and self._starts[0] == start_offset):
            return False
        self._know([(self._epochs[slot], start_offset), *self.entries[slot + 1 :]])
        return True

    def save(self) -> None:
        """Replace the file; not fsynced here."""
        self.replace(self.entries)
