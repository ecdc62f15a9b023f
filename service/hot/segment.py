"""One segment: a `.log` of batches and its two sparse indexes (Kafka `LogSegment`).

Indexes are hints: an entry that cannot be written is skipped and the next batch retries; the lookup that
needs a lost or wrong index rebuilds it from the log. So once a batch is written, nothing can refuse it.

The active segment's log is opened by its first append and stays open until the segment is sealed and flushed:
a process that runs out of descriptors refuses a batch before the write, and a write-back error is not lost
with the last descriptor. Owned by the loop; `flush` and `distrust_indexes` may run on other threads.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import DiskError, MissingFile
from service.base.errors import CorruptionError
from service.base.files import fsync_file, sync_data
from service.base.types import NO_TIMESTAMP, Buffer
from service.hot import names
from service.hot.files import FileCache, FileHandle, FileSlice, SegmentFile
from service.hot.index_check import IndexedSegment, index_error, index_problem
from service.hot.indexes import OffsetIndex, TimeIndex
from service.records.batch import BatchHeader
from service.records.scan import BatchScan
from service.records.segment_indexes import (
    MAX_RELATIVE_OFFSET,
    IndexBuilder,
    due_entries,
)
from service.records.walk import LOOKUP_BYTES, BatchPlace, Read, find_offset, iter_batches, last_place

__all__ = ["FileSlice", "Segment", "SegmentFile", "SegmentSettings"]

_log = logging.getLogger(__name__)

_MOST_DOUBTS: Final = 4


class SegmentSettings(NamedTuple):
    """The topic settings that a segment uses."""

    index_bytes: int
    index_interval_bytes: int


class Segment:
    """Files `<base offset>.log .index .timeindex` of one directory.

    ``size``: bytes of whole batches; ``max_timestamp``/``max_timestamp_offset``: the greatest timestamp and
    its batch's last offset, -1 and the base offset if there is none. ``is_torn``: a failed write could not
    be undone, so no write may follow.
    """

    __slots__ = (
        "_disk", "_doubts", "_first_timestamp", "_index_failed", "_is_active", "_is_settled", "_max",
        "_sealed_at_ms", "_since_index", "_writing", "base_offset", "created_ms", "is_checked", "is_torn",
        "log", "offset_index", "settings", "size", "time_index",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        sizes: tuple[int, int, int],
        settings: SegmentSettings,
        cache: FileCache,
        created_ms: int,
    ) -> None:
        """`sizes`: current bytes of log, offset index and time index."""
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
        self._is_active = False
        self._is_settled = False
        self._max: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        self._sealed_at_ms: int | None = None
        self._since_index = 0
        self.is_checked = False
        self._index_failed = False
        self._doubts = _MOST_DOUBTS
        self.is_torn = False

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, settings: SegmentSettings, cache: FileCache, now_ms: int
    ) -> Segment:
        """Create a new empty segment on disk; replaces files of the same names.

        The log is created last: a `DiskError` leaves indexes without a log, which are no segment.
        """
        segment = cls(directory, base_offset, (0, 0, 0), settings, cache, now_ms)
        for handle in reversed(segment.handles):
            handle.create()
        segment.is_checked = True
        return segment

    @property
    def handles(self) -> tuple[FileHandle, FileHandle, FileHandle]:
        return self.log, self.offset_index.handle, self.time_index.handle

    @property
    def max_timestamp(self) -> int:
        return self._maximum()[0]

    @property
    def max_timestamp_offset(self) -> int:
        return self._maximum()[1]

    @property
    def sealed_at_ms(self) -> int:
        """Time at which the segment was sealed (ms); of its last write if an earlier process sealed it."""
        if self._sealed_at_ms is None:
            self._sealed_at_ms = self._written_at_ms()
        return self._sealed_at_ms

    def _written_at_ms(self) -> int:
        return self._disk.stat(self.log.path).modified_ms

    @property
    def index_bytes(self) -> int:
        """Bytes of the offset index."""
        return self.offset_index.size

    @property
    def time_index_bytes(self) -> int:
        return self.time_index.size

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch; the segment is not empty."""
        if self._first_timestamp is None:
            self._first_timestamp = self._first().max_timestamp
        return self._first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """Greatest record timestamp, else the time of the last write (ms)."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._written_at_ms()

    @property
    def knows_times(self) -> bool:
        """Return whether the greatest timestamp and the first batch's are in memory."""
        return not self.size or (self._max is not None and self._first_timestamp is not None)

    def _maximum(self) -> tuple[int, int]:
        if self._max is None:
            self._check_indexes()
        if self._max is None:
            try:
                self._max = self.time_index.last()
            except (CorruptionError, DiskError):
                self._max = self._largest_after(0, (NO_TIMESTAMP, self.base_offset))
        return self._max

    # Writing

    def become_active(self) -> None:
        """Become the active segment; it is new and empty."""
        self._is_active = True

    def open_for_append(self) -> None:
        """Become the active segment again: compute its exact greatest timestamp. Leaves no file open."""
        self._is_active = True
        self._is_settled = False
        if self.size and self._max is None:
            self._check_indexes()
            if self._max is None:
                last = self.offset_index.last()
                self._max = self._largest_after(last[1] if last else 0, self.time_index.last())

    def hold_open(self) -> SegmentFile:
        """Open the log for writes, until the segment is sealed and flushed. `DiskError`."""
        if self._writing is None:
            self._writing = self.log.pin()
        return self._writing

    @property
    def is_written(self) -> bool:
        """Return whether batches were appended since the segment was made or opened, and it is not sealed."""
        return self._writing is not None

    def append(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Write one batch. `DiskError` leaves the segment as it was, or torn."""
        file = self._writing
        if file is None:
            file = self.hold_open()
        position, size = self.size, len(data)
        try:
            self._disk.pwrite(file.fd, data, position)
        except DiskError:
            self.undo_write()
            raise
        # The batch is in the log: from here on nothing raises.
        self.size = file.size = position + size
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._max is None or max_timestamp > self._max[0]:
            self._max = (max_timestamp, last_offset)
        if self._since_index > self.settings.index_interval_bytes:
            self._index(last_offset, position, self._max)
        self._since_index += size

    def write(self, data: Buffer) -> None:
        """Write a run behind the last batch: `account_run` then makes it part of the segment, or, after an
        error, `undo_write` removes it. For any thread, while no other writes and the file is held open."""
        self._disk.pwrite(self.hold_open().fd, data, self.size)

    def account_run(self, size: int, run: BatchScan) -> None:
        """Account for a written run of `size` bytes. The segment is not empty, and both indexes have room.
        Raises nothing, as the run is in the log."""
        position = self.size
        self.size = self.hold_open().size = position + size
        state = array("q", (self._since_index, *self._maximum()))
        entries = due_entries(run, position, state, self.settings.index_interval_bytes)
        self._since_index, self._max = self._since_index + size, (state[1], state[2])
        try:
            self.offset_index.append_all(entries)
            self.time_index.append_all(entries)
        except (DiskError, CorruptionError) as e:
            self._skip_entries(e)
        else:
            self._since_index = state[0]

    def undo_write(self) -> None:
        """Undo a failed write, of which any part may be in the file."""
        try:
            self.hold_open().truncate(self.size)
        except DiskError as e:
            self.is_torn = True
            _log.error("%s keeps a torn end after %d bytes: %s", self.log.path, self.size, e)

    def _index(self, last_offset: int, position: int, newest: tuple[int, int]) -> None:
        """Add an entry to each index. An error does not fail the batch: the next batch retries."""
        try:
            if not self.offset_index.is_full:
                self.offset_index.append(last_offset, position)
            if not self.time_index.is_full:
                self.time_index.maybe_append(*newest)
        except (DiskError, CorruptionError) as e:
            self._skip_entries(e)
        else:
            self._since_index = 0

    def _skip_entries(self, error: DiskError | CorruptionError) -> None:
        if not self._index_failed:
            _log.warning("skipping index entries of %s: %s", self.log.path, error)
        self._index_failed = True
        if isinstance(error, MissingFile):
            self.is_checked = False  # the next lookup rebuilds it

    def must_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, limits: tuple[int, int]
    ) -> bool:
        """Return whether a batch needs a new segment; `limits`: (bytes, ms without the jitter)."""
        if self.size > limits[0] - size or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        return self._waited(max_timestamp, now_ms) > limits[1]

    def _waited(self, max_timestamp: int, now_ms: int) -> int:
        """Return the segment's age (ms): by record time if its first batch has one, else by the clock."""
        first_timestamp = self.first_timestamp
        if first_timestamp >= 0:
            return max_timestamp - first_timestamp
        return now_ms - self.created_ms

    def _first(self) -> BatchHeader:
        return next(self._headers(0))

    def _headers(self, position: int, **options: int) -> Iterator[BatchHeader]:
        read = self.log.get().pread
        return iter_batches(read, position, self.size, name=self.log.path, **options)

    def seal(self, now_ms: int) -> None:
        """End appends: the greatest timestamp of all becomes the last entry of the time index.

        The log stays open until `flush`.
        """
        if self._max is not None:
            try:
                self.time_index.maybe_append(*self._max)
            except (DiskError, CorruptionError) as e:
                _log.warning("the next lookup rebuilds the indexes of %s: %s", self.log.path, e)
                self.distrust_indexes()
        self._sealed_at_ms = now_ms
        self._writing = None
        self._is_active = False

    def flush(self) -> None:
        """Make the log durable as written so far, and a sealed segment's indexes, too. `FsyncFailed`."""
        if self._is_settled:
            return
        is_sealed = not self._is_active  # it may be sealed during the flush
        file = self.log.get()
        sync_data(self._disk, file.fd)
        if is_sealed:
            self.flush_indexes()
            self._is_settled = True
            self.log.unpin()

    def flush_indexes(self) -> None:
        """Make the indexes durable. `FsyncFailed`."""
        for index in (self.offset_index, self.time_index):
            try:
                file = index.handle.get()
                fd = file.fd
            except MissingFile:  # a hint; the next lookup rebuilds it
                continue
            fsync_file(self._disk, fd)

    # Reading

    def find(self, offset: int, read: Read | None = None) -> BatchPlace | None:
        """Find the first batch whose last offset is at or above `offset`; None if there is none. `read` reads
        headers."""
        limit = self.size
        if not limit:
            return None
        if not self.is_checked:
            self._check_indexes()
        why: Exception
        try:
            position, before = self.offset_index.lookup(offset)
        except (CorruptionError, DiskError) as e:
            why = index_error(e)
        else:
            try:
                if position >= limit:
                    raise CorruptionError(f"an entry points beyond the log, at {position}")
                place = find_offset(read or self.log.get().pread, offset, position, limit, self.log.path)
                if place is not None:
                    self._doubt(place, position, before, offset)
                return place
            except CorruptionError as e:
                why = e
        self._rebuild(why)
        position = self._without_error(lambda: self.offset_index.lookup(offset)[0])
        return find_offset(self.log.get().pread, offset, position, limit, self.log.path)

    def _doubt(self, place: BatchPlace, position: int, before: int, offset: int) -> None:
        """Raise `CorruptionError` if the entry for `position` points behind `offset`, or entries are missing.

        `place`: the batch found from there on; `before`: the position of the previous entry.
        """
        if place.position == position:
            # A batch that begins behind the offset follows a gap, or the entry is wrong.
            if position and place.base_offset > offset:
                read, path = self.log.get().pread, self.log.path
                if find_offset(read, offset, before, self.size, path) != place:
                    raise CorruptionError(f"the entry for {offset} points behind it, at {position}")
            return
        far = 16 * self.settings.index_interval_bytes
        if place.position - position <= far or self.offset_index.is_full or not self._doubts:
            return
        self._doubts -= 1
        *_, last = iter_batches(self.log.get().pread, position, place.position, name=self.log.path)
        if last.position - position > far:  # a batch in front of it may be large
            raise CorruptionError(f"entries between {position} and {place.position} are missing")

    def least_offset_for(self, timestamp: int) -> int:
        """Return an offset before which no record is as late as `timestamp`; at least the base offset."""
        if not self.is_checked:
            self._check_indexes()
        try:
            return self.time_index.lookup(timestamp)
        except (CorruptionError, DiskError) as e:
            self._rebuild(index_error(e))
        return self._without_error(lambda: self.time_index.lookup(timestamp)) or self.base_offset

    def _rebuild(self, why: object) -> None:
        """Rebuild the indexes. If the disk refuses, or the files are being renamed, lookups scan the log.
        `CorruptionError`."""
        try:
            if self.log.path.suffix == names.LOG:
                _log.warning("rebuilding the indexes of %s: %s", self.log.path, why)
                self.rebuild_indexes()
                return
        except DiskError as e:
            _log.warning("%s has no indexes for now: %s", self.log.path, e)
        for index in (self.offset_index, self.time_index):
            index.forget()
        self.is_checked = False

    @staticmethod
    def _without_error(lookup: Callable[[], int]) -> int:
        try:
            return lookup()
        except (CorruptionError, DiskError):
            return 0

    def distrust_indexes(self) -> None:
        """Have the next lookup rebuild the indexes. Safe from any thread."""
        self._index_failed = True
        self.is_checked = False

    def _check_indexes(self) -> None:
        """Check the indexes once, and after `distrust_indexes`: rebuild them unless they are plausible."""
        if self.is_checked:
            return
        self.is_checked = True
        try:
            problem = "entries were skipped" if self._index_failed else index_problem(self._indexed())
        except (CorruptionError, DiskError) as e:
            problem = str(e)
        if problem:
            self._rebuild(problem)

    def _indexed(self) -> IndexedSegment:
        return IndexedSegment(
            self.log.get().pread,
            self.log.path,
            self.size,
            self.offset_index,
            self.time_index,
            self.settings.index_interval_bytes,
        )

    def set_cleaned(self, built: IndexBuilder, sealed_at_ms: int) -> None:
        """Note that compaction wrote the files, durably, with these indexes."""
        self._max = built.newest if self.size else None
        self._sealed_at_ms = sealed_at_ms
        self.is_checked = True
        self._is_settled = True

    def replace_indexes(self, built: IndexBuilder) -> None:
        """Replace the indexes by `built`, which was made from the whole log."""
        self._max = built.newest if self.size else None
        self._first_timestamp = None
        self._since_index = built.since
        data = built.finish()
        self.is_checked = True
        self._index_failed = False
        try:
            self.offset_index.replace(data.offset_index)
            self.time_index.replace(data.time_index)
        except DiskError as e:
            _log.warning("the next lookup rebuilds the indexes of %s: %s", self.log.path, e)
            self.distrust_indexes()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the headers in the log, with the entries that appends would have made."""
        self.reset_indexes()
        for header in self._headers(0, chunk_bytes=1 << 20):
            self.index_recovered(header)
        if not self._is_active:
            self.finish_indexes()

    def reset_indexes(self) -> None:
        """Replace both indexes by empty ones; `index_recovered` fills them again."""
        for index in (self.offset_index, self.time_index):
            index.handle.create()
            index.truncate_entries(0)
        self.is_checked = True
        self._index_failed = False
        self._max = None
        self._first_timestamp = None
        self._since_index = 0

    def index_recovered(self, header: BatchHeader) -> None:
        """Account for a batch that is in the log at ``header.position``."""
        if self._max is None or header.max_timestamp > self._max[0]:
            self._max = (header.max_timestamp, header.last_offset)
        if self._since_index > self.settings.index_interval_bytes:
            self._index(header.last_offset, header.position, self._max)
        self._since_index += header.size

    def finish_indexes(self) -> None:
        """Add the time index entry of a sealed segment, after the last `index_recovered`."""
        if self._max is not None:
            self.time_index.maybe_append(*self._max)

    def ends_at(self, offset: int) -> bool:
        """Return whether the log's last batch ends just before `offset`, by one read behind the last index
        entry.

        False if that read does not show it. Leaves no file open, as a start checks every segment.
        """
        index, size = self.offset_index, self.size
        try:
            position = index.peek_last_position()
            if not position < size <= position + LOOKUP_BYTES:
                return False
            fd = self._disk.open(self.log.path)
            try:
                tail = self._disk.pread(fd, size - position, position)
            finally:
                self._disk.close(fd)
            place = last_place(tail)
        except (CorruptionError, MissingFile):
            return False
        return place.position + place.size == len(tail) and place.last_offset + 1 == offset

    def near_end(self) -> int:
        """Return the position of a batch near the log's end, by the last index entry; 0 if that is wrong."""
        try:
            last = self.offset_index.last()
            if last is None or not 0 < last[1] < self.size:
                return 0
            place = find_offset(self.log.get().pread, self.base_offset, last[1], self.size)
        except (CorruptionError, MissingFile):
            return 0
        return last[1] if place is not None and place.last_offset == last[0] else 0

    def cut_tail(self, size: int) -> None:
        """Cut a tail that recovery found torn; the indexes have no entries for it."""
        self.log.get().truncate(size)
        self.size = size
        self.log.resize(size)

    def truncate(self, size: int, offset: int) -> None:
        """Truncate the log to `size` bytes (a batch border) and the indexes to entries below `offset`.

        The caller calls `open_for_append` next.
        """
        self.log.get().truncate(size)
        self.size = size
        self.log.resize(size)
        try:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        except (DiskError, CorruptionError) as e:
            _log.warning("the next lookup rebuilds the indexes of %s: %s", self.log.path, e)
            self.distrust_indexes()
        self._since_index = 0
        self._first_timestamp = None
        self._max = None

    def _largest_after(self, position: int, known: tuple[int, int]) -> tuple[int, int]:
        """Return the greatest (timestamp, offset); `known`: that of the batches before `position`."""
        for header in self._headers(position):
            if header.max_timestamp > known[0]:
                known = (header.max_timestamp, header.last_offset)
        return known

    # Deletion

    def drop(self, mark: str = "") -> list[Path]:
        """Close all files before their deletion; returns the paths to unlink, the log last.

        `mark`: suffix that their names have now. Readers keep open files.
        """
        paths = [self.log.path.with_suffix(suffix + mark) for suffix in reversed(names.SEGMENT_SUFFIXES)]
        for handle in self.handles:
            handle.moved(handle.path.with_name(handle.path.name + mark))
        self.close()
        return paths

    def moved(self, directory: Path) -> None:
        """Note that the directory was renamed."""
        for handle in self.handles:
            handle.moved(directory / handle.path.name)

    def let_files_go(self) -> None:
        """Close the files that making or opening the log has opened."""
        for handle in self.handles:
            handle.drop()

    def close(self) -> None:
        """Close all files for good."""
        self._writing = None
        self._is_active = False
        for handle in self.handles:
            handle.retire()
