"""One segment: a `.log` of batches and its two sparse indexes (Kafka `LogSegment`).

An index entry is written for the batch before which more than ``index_interval_bytes`` have gone into the log
since the last entry, so the first batch of a segment has none. Indexes are hints: an entry that cannot be
written is left out and the next batch tries again; a wrong one is found by the lookup that follows it, and
the index is rebuilt from the log.

Owned by the loop; `flush` may run on another thread.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import NamedTuple

from service.base.disk import DiskError, MissingFile
from service.base.errors import CorruptionError
from service.base.files import exists
from service.base.types import Buffer
from service.hot import names
from service.hot.files import FileCache, FileHandle, FileSlice, SegmentFile
from service.hot.indexes import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from service.hot.walk import BatchPlace, find_offset, iter_batches
from service.records.batch import BatchHeader

__all__ = ["FileSlice", "Segment", "SegmentFile", "SegmentSettings"]

_log = logging.getLogger(__name__)


class SegmentSettings(NamedTuple):
    """What a segment needs of a topic's configuration."""

    index_bytes: int
    index_interval_bytes: int


class Segment:
    """Files `<base offset>.log .index .timeindex` of one directory.

    ``size``: bytes of whole batches; ``max_timestamp``/``max_timestamp_offset``: the greatest timestamp and
    its batch's last offset, -1 and the base offset while there is none.
    """

    __slots__ = (
        "_checked",
        "_disk",
        "_first_timestamp",
        "_max",
        "_sealed_at_ms",
        "_since_index",
        "_writing",
        "base_offset",
        "created_ms",
        "log",
        "offset_index",
        "settings",
        "size",
        "time_index",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        sizes: tuple[int, int, int],
        settings: SegmentSettings,
        cache: FileCache,
        created_ms: int,
    ) -> None:
        """`sizes`: bytes of log, offset index and time index that exist already."""
        log_size, offset_size, time_size = sizes
        path = directory / names.offset_file(base_offset, names.LOG)
        self._disk = cache.disk
        self.base_offset = base_offset
        self.settings = settings
        self.size = log_size
        self.created_ms = created_ms
        self.log = FileHandle(path, log_size, cache)
        index = FileHandle(path.with_suffix(names.OFFSET_INDEX), offset_size, cache)
        time = FileHandle(path.with_suffix(names.TIME_INDEX), time_size, cache)
        self.offset_index = OffsetIndex(index, base_offset, settings.index_bytes)
        self.time_index = TimeIndex(time, base_offset, settings.index_bytes)
        self._writing: SegmentFile | None = None
        self._max: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        self._sealed_at_ms: int | None = None
        self._since_index = 0
        self._checked = False

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, settings: SegmentSettings, cache: FileCache, now_ms: int
    ) -> Segment:
        """A new empty segment on disk. Whatever bears its names is replaced."""
        segment = cls(directory, base_offset, (0, 0, 0), settings, cache, now_ms)
        for handle in segment.handles:
            handle.create()
        segment._checked = True
        return segment

    @property
    def handles(self) -> tuple[FileHandle, FileHandle, FileHandle]:
        return self.log, self.offset_index.handle, self.time_index.handle

    @property
    def txn_index_path(self) -> Path | None:
        """The index of aborted transactions, if there are any (Kafka makes it for the first abort only)."""
        path = self.log.path.with_suffix(names.TXN_INDEX)
        return path if exists(self._disk, path) else None

    @property
    def max_timestamp(self) -> int:
        return self._maximum()[0]

    @property
    def max_timestamp_offset(self) -> int:
        return self._maximum()[1]

    @property
    def sealed_at_ms(self) -> int:
        """When the segment was sealed (ms); the time of its last write where that was before this process."""
        if self._sealed_at_ms is None:
            self._sealed_at_ms = self._written_at_ms()
        return self._sealed_at_ms

    def _written_at_ms(self) -> int:
        return self._disk.stat(self.log.path).modified_ms

    @property
    def largest_timestamp(self) -> int:
        """Greatest record timestamp, else the time of the last write (ms)."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._written_at_ms()

    def _maximum(self) -> tuple[int, int]:
        if self._max is None:
            self._check_indexes()
            if self._max is None:
                self._max = self.time_index.last()
        return self._max

    # Writing

    def open_for_append(self) -> None:
        """Become the active segment: its file stays open and its greatest timestamp is exact again."""
        self._writing = self.log.pin()
        if self.size and self._max is None:
            self._check_indexes()
            last = self.offset_index.last()
            self._max = self._largest_after(last[1] if last else 0, self.time_index.last())

    def append(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Write one batch. `DiskError` leaves the segment as it was."""
        file = self._writing
        assert file is not None
        position, size = self.size, len(data)
        try:
            self._disk.pwrite(file.fd, data, position)
        except DiskError:
            _cut(file, position)
            raise
        self.size = file.size = position + size
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._max is None or max_timestamp > self._max[0]:
            self._max = (max_timestamp, last_offset)
        if self._since_index > self.settings.index_interval_bytes:
            self._index(last_offset, position)
        self._since_index += size

    def _index(self, last_offset: int, position: int) -> None:
        """Add an entry to each index. A failure is not the batch's: the next batch tries again."""
        assert self._max is not None
        try:
            if not self.offset_index.is_full:
                self.offset_index.append(last_offset, position)
            if not self.time_index.is_full:
                self.time_index.maybe_append(*self._max)
        except DiskError as e:
            _log.warning("index entry for %s left out: %s", self.log.path, e)
        else:
            self._since_index = 0

    def must_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, limits: tuple[int, int]
    ) -> bool:
        """Whether a batch belongs into a new segment; `limits`: (bytes, ms with the jitter taken off)."""
        if self.size > limits[0] - size or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        return self._waited(max_timestamp, now_ms) > limits[1]

    def _waited(self, max_timestamp: int, now_ms: int) -> int:
        """How long the segment has been written to:

        by record time if its first batch has one, else by the clock (ms).
        """
        if self._first_timestamp is None:
            self._first_timestamp = next(iter_batches(self.log.get(), 0, self.size)).max_timestamp
        if self._first_timestamp >= 0:
            return max_timestamp - self._first_timestamp
        return now_ms - self.created_ms

    def seal(self, now_ms: int) -> None:
        """No more appends: the time index gets its last entry, the greatest timestamp of all."""
        if self._max is not None:
            # A time index that lacks this entry ends lower than the truth; keeping _max covers this process's
            # life.
            with contextlib.suppress(DiskError):
                self.time_index.maybe_append(*self._max)
        self._sealed_at_ms = now_ms
        self._writing = None
        self.log.unpin()

    def flush(self) -> None:
        """Make everything written so far durable. `DiskError` if the device says no."""
        for handle in self.handles:
            handle.get().fsync()

    # Reading

    def find(self, offset: int, end: int | None = None) -> BatchPlace | None:
        """First batch whose last offset is at or above `offset`, None if there is none."""
        if not self._checked:
            self._check_indexes()
        limit = self.size if end is None else end
        try:
            position = self.offset_index.lookup(offset)
            place = find_offset(self.log.get(), offset, position, limit) if position < limit else None
        except CorruptionError as e:
            _log.warning("rebuilding the indexes of %s: %s", self.log.path, e)
            self.rebuild_indexes()
            position = self.offset_index.lookup(offset)
            place = find_offset(self.log.get(), offset, position, limit)
        return place

    def batches(self, position: int = 0) -> list[BatchHeader]:
        """Headers from `position` to the end; for small segments and for tests."""
        return list(iter_batches(self.log.get(), position, self.size))

    def indexes_hold(self) -> bool:
        """Whether the indexes can be true of the log as it is (looks at their last entries only)."""
        try:
            return not self._index_problem()
        except (CorruptionError, DiskError):
            return False

    def _check_indexes(self) -> None:
        """Once per life: the indexes are of whole entries and their last ones are true of the log;
        else rebuild.
        """
        if self._checked:
            return
        self._checked = True
        try:
            problem = self._index_problem()
        except (CorruptionError, DiskError) as e:
            problem = str(e)
        if problem:
            _log.warning("rebuilding the indexes of %s: %s", self.log.path, problem)
            self.rebuild_indexes()

    def _index_problem(self) -> str:
        for index in (self.offset_index, self.time_index):
            if index.handle.size % index.ENTRY.size:
                return f"{index.handle.path.name} has {index.handle.size} bytes"
        return self._offset_index_problem() or self._time_index_problem()

    def _offset_index_problem(self) -> str:
        last = self.offset_index.last()
        if last is None:
            return ""
        name = self.offset_index.handle.path.name
        if not 0 < last[1] < self.size:
            return f"{name} points beyond the log"
        place = find_offset(self.log.get(), self.base_offset, last[1], self.size)
        true = place is not None and place.last_offset == last[0]
        return "" if true else f"{name} points to no batch that ends with offset {last[0]}"

    def _time_index_problem(self) -> str:
        """Closing and sealing leave an entry: an empty index is a loss, unless records have no timestamps."""
        name = self.time_index.handle.path.name
        if not self.size:
            return f"{name} is not empty" if self.time_index.entries else ""
        if not self.time_index.entries:
            first = next(iter_batches(self.log.get(), 0, self.size))
            return f"{name} is empty" if first.max_timestamp >= 0 else ""
        timestamp, offset = self.time_index.last()
        position = self.offset_index.lookup(offset)
        place = find_offset(self.log.get(), offset, position, self.size)
        if place is not None and place.last_offset == offset:
            header = next(iter_batches(self.log.get(), place.position, self.size))
            if header.max_timestamp == timestamp:
                return ""
        return f"{name} ends with time {timestamp} at offset {offset}, where the log has another"

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the headers in the log, as appending its batches would have."""
        self.reset_indexes()
        for header in iter_batches(self.log.get(), 0, self.size, chunk_bytes=1 << 20):
            self.index_recovered(header)
        if self._writing is None:
            self.finish_indexes()

    def reset_indexes(self) -> None:
        """Empty both indexes, whatever state their files are in; `index_recovered` fills them again."""
        for index in (self.offset_index, self.time_index):
            index.handle.create()
            index.truncate_entries(0)
        self._checked = True
        self._max = None
        self._first_timestamp = None
        self._since_index = 0

    def index_recovered(self, header: BatchHeader) -> None:
        """Account for a batch that was found in the log at ``header.position``."""
        if self._max is None or header.max_timestamp > self._max[0]:
            self._max = (header.max_timestamp, header.last_offset)
        if self._since_index > self.settings.index_interval_bytes:
            self._index(header.last_offset, header.position)
        self._since_index += header.size

    def finish_indexes(self) -> None:
        """After the last `index_recovered`: the time index gets the entry of a sealed segment."""
        if self._max is not None:
            self.time_index.maybe_append(*self._max)

    def truncate(self, size: int, offset: int) -> None:
        """Cut the log to `size` bytes (a batch border) and the indexes to what lies below `offset`."""
        self.log.get().truncate(size)
        self.size = size
        self.log.resize(size)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self._since_index = 0
        self._first_timestamp = None
        last = self.offset_index.last()
        self._max = self._largest_after(last[1] if last else 0, self.time_index.last()) if size else None

    def _largest_after(self, position: int, known: tuple[int, int]) -> tuple[int, int]:
        """The greatest (timestamp, offset), given what is known of the batches before `position`."""
        for header in iter_batches(self.log.get(), position, self.size):
            if header.max_timestamp > known[0]:
                known = (header.max_timestamp, header.last_offset)
        return known

    # Going

    def mark_deleted(self) -> list[Path]:
        """Rename all files to ``*.deleted``;
        returns what is to be removed later. Readers keep what they have open.
        """
        paths = []
        for handle in self.handles:
            target = handle.path.with_name(handle.path.name + names.DELETED)
            with contextlib.suppress(MissingFile):
                handle.rename(target)
                paths.append(target)
        txn = self.log.path.with_name(names.offset_file(self.base_offset, names.TXN_INDEX))
        if exists(self._disk, txn):
            target = txn.with_name(txn.name + names.DELETED)
            self._disk.rename(txn, target)
            paths.append(target)
        self._writing = None
        for handle in self.handles:
            handle.drop()
        return paths

    def moved(self, directory: Path) -> None:
        """The directory was renamed."""
        for handle in self.handles:
            handle.moved(directory / handle.path.name)

    def close(self) -> None:
        """Let go of all files."""
        self._writing = None
        for handle in self.handles:
            handle.drop()


def _cut(file: SegmentFile, size: int) -> None:
    """Take back a failed write. Where even that fails the next append writes over it, and recovery drops what
    is left:

    its offsets do not go on from the batch before.
    """
    try:
        file.truncate(size)
    except DiskError as e:
        _log.error("%s keeps a torn end after %d bytes: %s", file.path, size, e)
