"""One segment: a `.log` of batches and its three indexes (Kafka `LogSegment`).

The active segment's log is opened by its first append and stays open until the segment is sealed and flushed:
a process that runs out of descriptors refuses a batch before the write, and a write-back error is not lost
with the last descriptor. Owned by the loop; `flush` and `SegmentIndexes.distrust` may run on other threads.
"""

from __future__ import annotations

import logging
from pathlib import Path

from service.base.disk import DiskError
from service.base.files import sync_data
from service.base.types import Buffer
from service.hot import names
from service.hot.files import FileCache, FileHandle, SegmentFile
from service.hot.segment_indexes import IndexSettings, SegmentIndexes
from service.hot.txn_index import MOST_ROWS, TxnIndex
from service.records.produced_run import ProducedRun
from service.records.scan import BatchScan
from service.records.segment_indexes import MAX_RELATIVE_OFFSET, IndexBuilder
from service.records.walk import iter_batches

_log = logging.getLogger(__name__)


class Segment:
    """Files `<base offset>.log .index .timeindex` of one directory.

    ``size``: bytes of whole batches. ``is_torn``: a failed write could not be undone, so no write may follow.
    ``txn_index``: `.txnindex`, None until there is a row.
    """

    __slots__ = (
        "_disk", "_first_timestamp", "_is_settled", "_sealed_at_ms", "_writing", "base_offset", "created_ms",
        "indexes", "is_torn", "log", "size", "txn_index",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        sizes: tuple[int, int, int],
        settings: IndexSettings,
        cache: FileCache,
        created_ms: int,
    ) -> None:
        """`sizes`: current bytes of log, offset index and time index."""
        self._disk = cache.disk
        self.base_offset = base_offset
        self.size = sizes[0]
        self.created_ms = created_ms
        self.log = FileHandle(directory / names.offset_file(base_offset, names.LOG), sizes[0], cache)
        self.indexes = SegmentIndexes(self.log, base_offset, sizes[1:], settings, cache)
        self._writing: SegmentFile | None = None
        self._is_settled = False
        self._first_timestamp: int | None = None
        self._sealed_at_ms: int | None = None
        self.is_torn = False
        self.txn_index: TxnIndex | None = None

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, settings: IndexSettings, cache: FileCache, now_ms: int
    ) -> Segment:
        """Create a new empty segment on disk; replaces files of the same names.

        The log is created last: a `DiskError` leaves indexes without a log, which are no segment.
        """
        segment = cls(directory, base_offset, (0, 0, 0), settings, cache, now_ms)
        for handle in reversed(segment.handles):
            handle.create()
        segment.indexes.is_checked = True
        return segment

    @property
    def handles(self) -> tuple[FileHandle, ...]:
        """The files, the log first."""
        files = (self.log, self.indexes.offset.handle, self.indexes.time.handle)
        return files if self.txn_index is None else (*files, self.txn_index.handle)

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp, -1 if there is none."""
        return self.indexes.newest[0]

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the batch with the greatest timestamp; the base offset if there is none."""
        return self.indexes.newest[1]

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
        return self.indexes.offset.size

    @property
    def time_index_bytes(self) -> int:
        return self.indexes.time.size

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch; the segment is not empty."""
        if self._first_timestamp is None:
            first = next(iter_batches(self.log.get().pread, 0, self.size, name=self.log.path))
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """Greatest record timestamp, else the time of the last write (ms)."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._written_at_ms()

    @property
    def knows_times(self) -> bool:
        """Return whether the greatest timestamp and the first batch's are in memory."""
        return not self.size or (self.indexes.knows_newest and self._first_timestamp is not None)

    # Writing

    def become_active(self) -> None:
        """Become the active segment; it is new and empty."""
        self.indexes.is_growing = True

    def open_for_append(self) -> None:
        """Become the active segment again: compute its exact greatest timestamp. Leaves no file open."""
        self._is_settled = False
        self.indexes.resume()

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
        self.size = self.log.size = position + size
        if position == 0:
            self._first_timestamp = max_timestamp
        self.indexes.add(last_offset, max_timestamp, position, size)

    def append_produced(self, run: ProducedRun) -> None:
        """Write a produced run; the segment is not empty. `DiskError` leaves the segment as it was, or
        torn."""
        file, position = self.hold_open(), self.size
        try:
            self._disk.pwrite(file.fd, run.data, position)
        except DiskError:
            self.undo_write()
            raise
        self.size = self.log.size = position + len(run.data)  # as in `append`
        self.indexes.add_produced(run, position)

    def write(self, data: Buffer) -> None:
        """Write a run behind the last batch: `account_run` then makes it part of the segment, or, after an
        error, `undo_write` removes it. For any thread, while no other writes and the file is held open."""
        self._disk.pwrite(self.hold_open().fd, data, self.size)

    def account_run(self, size: int, run: BatchScan) -> None:
        """Account for a written run of `size` bytes. The segment is not empty, and both indexes have room.
        Raises nothing, as the run is in the log."""
        position = self.size
        self.size = self.log.size = position + size
        self.indexes.add_run(run, position, size)

    def undo_write(self) -> None:
        """Undo a failed write, of which any part may be in the file."""
        try:
            self.hold_open().truncate(self.size)
        except DiskError as e:
            self.is_torn = True
            _log.error("%s keeps a torn end after %d bytes: %s", self.log.path, self.size, e)

    def must_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, limits: tuple[int, int]
    ) -> bool:
        """Return whether a batch needs a new segment; `limits`: (bytes, ms without the jitter)."""
        if self.size > limits[0] - size or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        if self.indexes.is_full_after(0) or (self.txn_index is not None and len(self.txn_index) >= MOST_ROWS):
            return True
        # Age by record time if the first batch has one, else by the clock.
        first_timestamp = self._first_timestamp
        if first_timestamp is None:
            first_timestamp = self.first_timestamp
        age_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms
        return age_ms > limits[1]

    def seal(self, now_ms: int) -> None:
        """End appends: the greatest timestamp of all becomes the last entry of the time index.

        The log stays open until `flush`.
        """
        self.indexes.seal()
        self._sealed_at_ms = now_ms
        self._writing = None

    def flush(self) -> None:
        """Make log and transaction index durable as written so far, and a sealed segment's other indexes.
        `FsyncFailed`, `DiskError`."""
        if self._is_settled:
            return
        is_sealed = not self.indexes.is_growing  # it may be sealed during the flush
        file = self.log.get()
        sync_data(self._disk, file.fd)
        if self.txn_index is not None:
            self.txn_index.sync()
        if is_sealed:
            self.indexes.flush()
            self._is_settled = True
            self.log.unpin()

    def set_cleaned(self, built: IndexBuilder, sealed_at_ms: int) -> None:
        """Note that compaction wrote the files, durably, with these indexes."""
        self.indexes.note_built(built)
        self._sealed_at_ms = sealed_at_ms
        self._is_settled = True

    def cut_tail(self, size: int) -> None:
        """Cut a tail that recovery found torn; the indexes have no entries for it."""
        self.log.get().truncate(size)
        self.size = self.log.size = size

    def truncate(self, size: int, offset: int) -> None:
        """Truncate the log to `size` bytes (a batch border) and all indexes to entries below `offset`.

        The caller calls `open_for_append` next.
        """
        self.log.get().truncate(size)
        self.size = self.log.size = size
        self.indexes.truncate(offset)
        if self.txn_index is not None:
            self.txn_index.truncate(offset)
        self._first_timestamp = None

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
        self.indexes.is_growing = False
        for handle in self.handles:
            handle.retire()
