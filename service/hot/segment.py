"""One segment: a `.log` of batches and its two sparse indexes (Kafka `LogSegment`).

Indexes are hints: an entry that cannot be written is left out and the next batch tries again; a lost or
wrong index is found by the lookup that needs it and made anew from the log. So once a batch is written
nothing that follows can refuse it.

The active segment's log is opened by its first append and stays open until it is sealed and flushed: a
process without descriptors refuses a batch before it is written, and the error of a write-back is not lost
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
from service.hot.index_check import Looked, index_problem, of_the_index
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
    """What a segment needs of a topic's configuration."""

    index_bytes: int
    index_interval_bytes: int


class Segment:
    """Files `<base offset>.log .index .timeindex` of one directory.

    ``size``: bytes of whole batches; ``max_timestamp``/``max_timestamp_offset``: the greatest timestamp and
    its batch's last offset, -1 and the base offset while there is none. ``is_torn``: a write failed and could
    not be taken back, so nobody may write here any more.
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
        """A new empty segment on disk. Whatever bears its names is replaced.

        The log comes last: what `DiskError` leaves behind are indexes without a log, which are no segment.
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
        """When the segment was sealed (ms); the time of its last write where that was before this process."""
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
        """Whether the greatest timestamp and the first batch's are known without a look at files."""
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
        """This is where batches go from now on. The segment is new."""
        self._is_active = True

    def open_for_append(self) -> None:
        """Become the active segment again: its greatest timestamp is made exact. Holds nothing open."""
        self._is_active = True
        self._is_settled = False
        if self.size and self._max is None:
            self._check_indexes()
            if self._max is None:
                last = self.offset_index.last()
                self._max = self._largest_after(last[1] if last else 0, self.time_index.last())

    def hold_open(self) -> SegmentFile:
        """What an append writes to, open. `DiskError` where that is not to be had."""
        if self._writing is None:
            self._writing = self.log.pin()
        return self._writing

    @property
    def is_written(self) -> bool:
        """Whether batches were appended since it was made or opened, and it is not sealed."""
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
            self.take_back()
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
        """Write behind what is there. Nobody knows of it until `has_run`, and `take_back` undoes what an
        error leaves. For any thread, while nobody else writes here and the file is held open."""
        self._disk.pwrite(self.hold_open().fd, data, self.size)

    def has_run(self, size: int, run: BatchScan) -> None:
        """Neighbouring batches of `size` bytes were written; others stand before them, and both indexes have
        room. As of one that is appended, nothing raises any more."""
        position = self.size
        self.size = self.hold_open().size = position + size
        state = array("q", (self._since_index, *self._maximum()))
        entries = due_entries(run, position, state, self.settings.index_interval_bytes)
        self._since_index, self._max = self._since_index + size, (state[1], state[2])
        try:
            self.offset_index.append_all(entries)
            self.time_index.append_all(entries)
        except (DiskError, CorruptionError) as e:
            self._left_out(e)
        else:
            self._since_index = state[0]

    def take_back(self) -> None:
        """Undo a failed write, of which any part may be in the file."""
        try:
            self.hold_open().truncate(self.size)
        except DiskError as e:
            self.is_torn = True
            _log.error("%s keeps a torn end after %d bytes: %s", self.log.path, self.size, e)

    def _index(self, last_offset: int, position: int, newest: tuple[int, int]) -> None:
        """Add an entry to each index. A failure is not the batch's: the next batch tries again."""
        try:
            if not self.offset_index.is_full:
                self.offset_index.append(last_offset, position)
            if not self.time_index.is_full:
                self.time_index.maybe_append(*newest)
        except (DiskError, CorruptionError) as e:
            self._left_out(e)
        else:
            self._since_index = 0

    def _left_out(self, error: DiskError | CorruptionError) -> None:
        if not self._index_failed:
            _log.warning("index entries for %s left out: %s", self.log.path, error)
        self._index_failed = True
        if isinstance(error, MissingFile):
            self.is_checked = False  # the next lookup makes it anew

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
        """How long the segment has been written to (ms).

        By record time if its first batch has one, else by the clock.
        """
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
        """No more appends: the time index gets its last entry, the greatest timestamp of all.

        Its log stays open until `flush`.
        """
        if self._max is not None:
            try:
                self.time_index.maybe_append(*self._max)
            except (DiskError, CorruptionError) as e:
                _log.warning("the time index of %s is made anew later: %s", self.log.path, e)
                self.distrust_indexes()
        self._sealed_at_ms = now_ms
        self._writing = None
        self._is_active = False

    def flush(self) -> None:
        """Make what was written to the log so far durable, and of a sealed segment the indexes, too.

        `FsyncFailed` if the device says no.
        """
        if self._is_settled:
            return
        is_sealed = not self._is_active  # it may be sealed while this goes on
        file = self.log.get()
        sync_data(self._disk, file.fd)
        if is_sealed:
            self.flush_indexes()
            self._is_settled = True
            self.log.unpin()

    def flush_indexes(self) -> None:
        """Make the indexes durable. `FsyncFailed` if the device says no."""
        for index in (self.offset_index, self.time_index):
            try:
                file = index.handle.get()
                fd = file.fd
            except MissingFile:  # a hint; the next lookup makes it anew
                continue
            fsync_file(self._disk, fd)

    # Reading

    def find(self, offset: int, read: Read | None = None) -> BatchPlace | None:
        """First batch whose last offset is at or above `offset`, None if there is none. `read`: headers."""
        limit = self.size
        if not limit:
            return None
        if not self.is_checked:
            self._check_indexes()
        why: Exception
        try:
            position, before = self.offset_index.lookup(offset)
        except (CorruptionError, DiskError) as e:
            why = of_the_index(e)
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
        self._make_anew(why)
        position = self._without_error(lambda: self.offset_index.lookup(offset)[0])
        return find_offset(self.log.get().pread, offset, position, limit, self.log.path)

    def _doubt(self, place: BatchPlace, position: int, before: int, offset: int) -> None:
        """`CorruptionError` where the entry for `position` has led past `offset`, or entries are missing.

        `place` is what was found from there on; `before` is the position of the entry in front.
        """
        if place.position == position:
            # A batch that begins behind the offset stands behind a gap: the entry in front tells.
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
        """An offset before which no record is as late as `timestamp`; the base offset if none is known."""
        if not self.is_checked:
            self._check_indexes()
        try:
            return self.time_index.lookup(timestamp)
        except (CorruptionError, DiskError) as e:
            self._make_anew(of_the_index(e))
        return self._without_error(lambda: self.time_index.lookup(timestamp)) or self.base_offset

    def _make_anew(self, why: object) -> None:
        """Rebuild the indexes; where the disk does not let us, or files are on their way to other names,
        lookups walk the log. `CorruptionError`."""
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
        """Have the next lookup make the indexes anew. Safe from any thread."""
        self._index_failed = True
        self.is_checked = False

    def _check_indexes(self) -> None:
        """Once per life, and whenever they are distrusted: rebuild the indexes unless they can be true."""
        if self.is_checked:
            return
        self.is_checked = True
        try:
            problem = "entries were left out" if self._index_failed else index_problem(self._looked())
        except (CorruptionError, DiskError) as e:
            problem = str(e)
        if problem:
            self._make_anew(problem)

    def _looked(self) -> Looked:
        return Looked(
            self.log.get().pread,
            self.log.path,
            self.size,
            self.offset_index,
            self.time_index,
            self.settings.index_interval_bytes,
        )

    def take_cleaned(self, built: IndexBuilder, sealed_at_ms: int) -> None:
        """The files were made by a cleaning, are durable, and have these indexes."""
        self._max = built.newest if self.size else None
        self._sealed_at_ms = sealed_at_ms
        self.is_checked = True
        self._is_settled = True

    def replace_indexes(self, built: IndexBuilder) -> None:
        """Take these for the indexes: they were made of the whole log."""
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
            _log.warning("the indexes of %s are made anew later: %s", self.log.path, e)
            self.distrust_indexes()

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the headers in the log, as appending its batches would have."""
        self.reset_indexes()
        for header in self._headers(0, chunk_bytes=1 << 20):
            self.index_recovered(header)
        if not self._is_active:
            self.finish_indexes()

    def reset_indexes(self) -> None:
        """Empty both indexes, whatever state their files are in; `index_recovered` fills them again."""
        for index in (self.offset_index, self.time_index):
            index.handle.create()
            index.truncate_entries(0)
        self.is_checked = True
        self._index_failed = False
        self._max = None
        self._first_timestamp = None
        self._since_index = 0

    def index_recovered(self, header: BatchHeader) -> None:
        """Account for a batch that was found in the log at ``header.position``."""
        if self._max is None or header.max_timestamp > self._max[0]:
            self._max = (header.max_timestamp, header.last_offset)
        if self._since_index > self.settings.index_interval_bytes:
            self._index(header.last_offset, header.position, self._max)
        self._since_index += header.size

    def finish_indexes(self) -> None:
        """After the last `index_recovered`: the time index gets the entry of a sealed segment."""
        if self._max is not None:
            self.time_index.maybe_append(*self._max)

    def ends_at(self, offset: int) -> bool:
        """Whether the log's last batch is the last one before `offset`, by one look behind the last entry.

        False where that does not tell. Leaves no file open: it is asked of every segment at a start.
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
        """Position of a batch near the end of the log, by the index's word; 0 where that does not hold."""
        try:
            last = self.offset_index.last()
            if last is None or not 0 < last[1] < self.size:
                return 0
            place = find_offset(self.log.get().pread, self.base_offset, last[1], self.size)
        except (CorruptionError, MissingFile):
            return 0
        return last[1] if place is not None and place.last_offset == last[0] else 0

    def cut_tail(self, size: int) -> None:
        """Cut what recovery found to be torn; the indexes know nothing of it."""
        self.log.get().truncate(size)
        self.size = size
        self.log.resize(size)

    def truncate(self, size: int, offset: int) -> None:
        """Cut the log to `size` bytes (a batch border) and the indexes to what lies below `offset`.

        `open_for_append` comes next.
        """
        self.log.get().truncate(size)
        self.size = size
        self.log.resize(size)
        try:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        except (DiskError, CorruptionError) as e:
            _log.warning("the indexes of %s are made anew later: %s", self.log.path, e)
            self.distrust_indexes()
        self._since_index = 0
        self._first_timestamp = None
        self._max = None

    def _largest_after(self, position: int, known: tuple[int, int]) -> tuple[int, int]:
        """The greatest (timestamp, offset), given what is known of the batches before `position`."""
        for header in self._headers(position):
            if header.max_timestamp > known[0]:
                known = (header.max_timestamp, header.last_offset)
        return known

    # Going

    def drop(self, mark: str = "") -> list[Path]:
        """Let go of all files, for their removal: what is to be unlinked, the log last.

        Somebody has put `mark` behind their names. Readers keep what they have open.
        """
        paths = [self.log.path.with_suffix(suffix + mark) for suffix in reversed(names.SEGMENT_SUFFIXES)]
        for handle in self.handles:
            handle.moved(handle.path.with_name(handle.path.name + mark))
        self.close()
        return paths

    def moved(self, directory: Path) -> None:
        """The directory was renamed."""
        for handle in self.handles:
            handle.moved(directory / handle.path.name)

    def let_files_go(self) -> None:
        """Leave no file open that making or opening the log has looked into."""
        for handle in self.handles:
            handle.drop()

    def close(self) -> None:
        """Let go of all files, for good."""
        self._writing = None
        self._is_active = False
        for handle in self.handles:
            handle.retire()
