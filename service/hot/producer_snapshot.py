"""Producer state in files `<offset>.snapshot`.

A snapshot has only the last batch of each producer: after a restart only a repetition of that batch is known
as a duplicate.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from service.base.disk import Disk, Entry, MissingFile
from service.base.errors import CorruptionError
from service.base.files import read_file, remove_file, write_atomically
from service.base.threads import Threads
from service.base.types import NO_OFFSET, Buffer
from service.hot import names
from service.hot.producers import BatchMemory, ProducerEntry, ProducerStates
from service.records.producer_snapshot import ProducerRow, decode_rows, encode_rows

_log = logging.getLogger(__name__)

MAX_SNAPSHOT_BYTES: Final = 256 << 20
_SEQUENCE_MASK: Final = 0x7FFFFFFF


def encode_snapshot(states: Iterable[tuple[int, ProducerEntry]]) -> bytes:
    """Encode a snapshot file."""
    return encode_rows(
        ProducerRow(
            producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for producer_id, entry in states
    )


def decode_snapshot(data: Buffer) -> list[tuple[int, ProducerEntry]]:
    """Decode (producer id, entry) pairs; `CorruptionError` if version, length or checksum is wrong."""
    return [(row.producer_id, _entry(row)) for row in decode_rows(data)]


def _entry(row: ProducerRow) -> ProducerEntry:
    batches = []
    if row.last_offset >= 0:
        sequence = row.last_sequence
        first_sequence = (sequence - row.last_offset_delta) & _SEQUENCE_MASK if sequence >= 0 else sequence
        first_offset = row.last_offset - row.last_offset_delta
        batches.append(
            BatchMemory(first_sequence, sequence, first_offset, row.last_offset, row.last_timestamp)
        )
    return ProducerEntry(
        row.epoch,
        row.last_timestamp,
        coordinator_epoch=row.coordinator_epoch,
        txn_first_offset=max(row.txn_first_offset, NO_OFFSET),
        batches=batches,
    )


def write_snapshot(disk: Disk, path: Path, states: Iterable[tuple[int, ProducerEntry]]) -> None:
    """Write a snapshot atomically; a later flush fsyncs it."""
    write_atomically(disk, path, encode_snapshot(states), fsync=False)


def read_snapshot(disk: Disk, path: Path) -> list[tuple[int, ProducerEntry]]:
    """Read and decode a snapshot; a file larger than any real one is refused unread."""
    return decode_snapshot(read_file(disk, path, MAX_SNAPSHOT_BYTES))


class LateSnapshot:
    """A snapshot of many producers, written by the next flush: 100,000 producers take a fifth of a second."""

    def __init__(
        self, disk: Disk, path: Path, entries: Mapping[int, ProducerEntry], threads: Threads
    ) -> None:
        self.path = path
        self.is_written = False
        self._disk = disk
        self._entries = entries
        self._lock = threads.lock()

    def write(self) -> None:
        """Write the file once. From any thread, any number of times."""
        with self._lock:
            if not self.is_written:
                write_snapshot(self._disk, self.path, self._entries.items())
                self.is_written = True

    def cancel(self) -> None:
        """Never write the file."""
        self.is_written = True


class SnapshotFiles:
    """The snapshot files of one partition's directory.

    Owned by the loop (by recovery's thread while it runs). Methods that touch the disk raise `DiskError`.
    """

    def __init__(self, disk: Disk, directory: Path, entries: Iterable[Entry]) -> None:
        """`entries`: of the directory."""
        self._disk = disk
        self._dir = directory
        self._offsets: list[int] = sorted(
            parsed[0]
            for entry in entries
            if (parsed := names.parse_offset_file(entry.name)) is not None and parsed[1] == names.SNAPSHOT
        )

        self._late: dict[int, LateSnapshot] = {}

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(self._offsets)

    def files(self) -> list[tuple[int, Path]]:
        """Return offset and path of each, ascending; a late one may not be written yet."""
        return [(offset, self._path(offset)) for offset in self._offsets]

    def path(self, offset: int) -> Path | None:
        """The file with the state before `offset`, if there is one."""
        slot = bisect_left(self._offsets, offset)
        known = slot < len(self._offsets) and self._offsets[slot] == offset
        return self._path(offset) if known else None

    def _path(self, offset: int) -> Path:
        return self._dir / names.offset_file(offset, names.SNAPSHOT)

    def moved(self, directory: Path) -> None:
        self._dir = directory

    def is_late(self, offset: int) -> bool:
        """Return whether the snapshot at `offset` is not written yet."""
        late = self._late.get(offset)
        if late is not None and late.is_written:
            del self._late[offset]
            late = None
        return late is not None

    def take_late(self, states: ProducerStates, threads: Threads) -> LateSnapshot | None:
        """Take a snapshot as `take` does, but leave the write to the caller."""
        offset = states.end_offset
        if offset <= (self._offsets[-1] if self._offsets else 0):
            return None
        late = self._late[offset] = LateSnapshot(self._disk, self._path(offset), states.freeze(), threads)
        insort(self._offsets, offset)
        return late

    def write_late(self) -> None:
        """Write all late snapshots now."""
        for late in self._late.values():
            late.write()
        self._late.clear()

    def _cancel(self, offset: int) -> None:
        late = self._late.pop(offset, None)
        if late is not None:
            late.cancel()

    def take(self, states: ProducerStates) -> Path | None:
        """Write the current state and return the path; None if a snapshot at that offset or later exists, or
        the log is empty.
        """
        offset = states.end_offset
        if offset <= (self._offsets[-1] if self._offsets else 0):
            return None
        path = self._path(offset)
        write_snapshot(self._disk, path, states)
        insort(self._offsets, offset)
        return path

    def restore(self, states: ProducerStates, max_offset: int, start_offset: int, now_ms: int) -> None:
        """Load the latest readable snapshot at or below `max_offset`; unreadable ones are removed.

        Without any, the state is empty and begins at `start_offset`.
        """
        for offset in reversed([o for o in self._offsets if o <= max_offset]):
            try:
                states.load(read_snapshot(self._disk, self._path(offset)), offset, now_ms)
                return
            except (CorruptionError, MissingFile) as e:
                _log.warning("deleting unreadable producer snapshot %s: %s", self._path(offset), e)
                self.remove(offset)
        states.clear(start_offset)

    def remove(self, offset: int) -> None:
        self._cancel(offset)
        if self.path(offset) is not None:
            remove_file(self._disk, self._path(offset))
            self._offsets.remove(offset)

    def forget(self, offsets: Iterable[int]) -> dict[int, Path]:
        """Forget snapshots; returns their files by offset, for the caller to delete."""
        gone = set(self._offsets).intersection(offsets)
        if gone:
            for offset in gone:
                self._cancel(offset)
            self._offsets = [offset for offset in self._offsets if offset not in gone]
        return {offset: self._path(offset) for offset in gone}

    def prepare(self, states: ProducerStates) -> None:
        """Write the state with which a log is to begin anew, durably, and beside the snapshots: until that is
        announced, those of the old log count."""
        write_atomically(self._disk, self._dir / names.RESTART_SNAPSHOT, encode_snapshot(states))

    def adopt(self, offset: int) -> None:
        """Make the state that was prepared, if it was not done yet, the snapshot at `offset`."""
        try:
            self._disk.rename(self._dir / names.RESTART_SNAPSHOT, self._path(offset))
        except MissingFile:
            return
        if self.path(offset) is None:
            insort(self._offsets, offset)

    def remove_but(self, offset: int) -> None:
        for one in [o for o in self._offsets if o != offset]:
            self.remove(one)

    def remove_above(self, offset: int) -> None:
        for one in [o for o in self._offsets if o > offset]:
            self.remove(one)

    def remove_strays(self, base_offsets: Collection[int]) -> None:
        """Keep the snapshots of segments, and the latest beyond the last segment (a clean shutdown's)."""
        last = max(base_offsets)
        latest = self._offsets[-1] if self._offsets else last
        for one in self.offsets:
            if one not in base_offsets and not (one == latest and one > last):
                self.remove(one)
