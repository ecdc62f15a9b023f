"""A copy of sealed segments that is to replace them, on a `log-cleaner` thread; each batch is verified.

Subclasses say what goes into it (`copying`, `erasure_copy`). Output is verified like input, with checksums,
before it is used. A generator that is closed early leaves no files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from service.base.disk import Disk, Open
from service.base.errors import CorruptionError, StorageError
from service.base.files import fsync_dir, fsync_file
from service.base.types import Buffer
from service.hot import names
from service.hot.cleaning.interrupted import clear, marked
from service.hot.cleaning.plan import MAX_POSITION
from service.hot.cleaning.swap import discard
from service.hot.files import FileSlice
from service.hot.segment import Segment
from service.hot.state import LogState
from service.hot.txn_index import TxnIndex
from service.records.kernel_status import Status
from service.records.scan import BatchScan, scan_batches, scan_pieces
from service.records.segment_indexes import IndexBuilder

Steps = Generator[int, None, None]
"""Work in steps; each yields the bytes that it has read or written."""


class BufferSizes(NamedTuple):
    """Sizes of buffers, in bytes."""

    piece: int
    out: int


class CleaningCounts:
    """Counters of one compaction, or of one erasure."""

    __slots__ = ("bytes_read", "bytes_written", "records_kept", "records_read")

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0


def pieces_of(segment: Segment, sizes: BufferSizes) -> Iterator[tuple[BatchScan, int, memoryview]]:
    """Read a segment in pieces of whole batches, which are verified. `CorruptionError`, `DiskError`."""
    file = segment.log.peek()

    def read(position: int, size: int) -> bytes:
        return FileSlice(file, position, size).read()

    return scan_pieces(
        read, 0, segment.size, first_offset=segment.base_offset, name=str(file.path), piece_bytes=sizes.piece
    )


class SegmentCopy(ABC):
    """Copies segments. ``new``: the copy, once `run` has ended; its files are durable, and open."""

    def __init__(
        self,
        state: LogState,
        old: Sequence[Segment],
        end_offset: int,
        sizes: BufferSizes,
        counts: CleaningCounts,
    ) -> None:
        """`end_offset`: where the last of `old` ends."""
        self.old = tuple(old)
        self.new: Segment | None = None
        self._state = state
        self._end_offset = end_offset
        self._sizes = sizes
        self._counts = counts
        self._position = 0
        self._next_offset = old[0].base_offset
        self._index = IndexBuilder(old[0].base_offset, old[0].indexes.settings.interval_bytes)
        self._rows = b""
        """rows of the copy's transaction index"""
        self._log = state.dir / names.offset_file(old[0].base_offset, names.LOG)

    def run(self) -> Steps:
        """Copy the segments; `CorruptionError` if they are damaged, `DiskError`."""
        disk = self._state.disk
        try:
            clear(disk, self._log)  # files that an earlier copy could not delete
            fd = disk.open(marked(self._log, names.CLEANED), Open.TRUNCATE)
            try:
                yield from self._write(disk, fd)
                fsync_file(disk, fd)
            finally:
                disk.close(fd)
            self._write_sides(disk)
            self.new = self._made()
        finally:
            if self.new is None:
                discard(disk, self._log)

    @abstractmethod
    def _write(self, disk: Disk, fd: int) -> Steps:
        """Append what stays of the segments, and set `_rows`."""

    def _append(self, disk: Disk, fd: int, data: Buffer) -> None:
        """Write batches, once they are verified."""
        batches = scan_batches(data, next_offset=self._next_offset)
        if batches.status is not Status.OK or batches.last_offsets[-1] >= self._end_offset:
            raise CorruptionError(
                f"{self._log}: a copy has produced an invalid batch: {batches.status.reason}"
            )
        self._check(batches, data)
        if self._position + len(data) > MAX_POSITION:
            raise StorageError(f"{self._log} would be larger than a segment can be")
        disk.pwrite(fd, data, self._position)
        self._index.add(batches, self._position)
        self._position += len(data)
        self._next_offset = batches.last_offsets[-1] + 1
        self._counts.bytes_written += len(data)

    def _check(self, batches: BatchScan, data: Buffer) -> None:
        """Raise `CorruptionError` where the copy must not have these batches, of `data`, next."""
        del batches, data

    def _write_sides(self, disk: Disk) -> None:
        index = self._index.finish()
        sides = {names.OFFSET_INDEX: index.offset_index, names.TIME_INDEX: index.time_index}
        if self._rows:
            sides[names.TXN_INDEX] = self._rows
        for suffix, data in sides.items():
            fd = disk.open(marked(self._log.with_suffix(suffix), names.CLEANED), Open.TRUNCATE)
            try:
                disk.pwrite(fd, data, 0)
                fsync_file(disk, fd)
            finally:
                disk.close(fd)
        fsync_dir(disk, self._state.dir)
        self._index_sizes = len(index.offset_index), len(index.time_index)

    def _made(self) -> Segment:
        first, last = self.old[0], self.old[-1]
        new = Segment(
            self._state.dir, first.base_offset, (self._position, *self._index_sizes), first.indexes.settings,
            self._state.files, last.created_ms,
        )  # fmt: skip
        new.set_cleaned(self._index, last.sealed_at_ms)
        if self._rows:
            handle = self._state.txn_index_of(new, len(self._rows))
            new.txn_index = TxnIndex(handle, self._state.world.threads.lock())
            new.txn_index.take(self._rows)
        try:
            for handle in new.handles:
                handle.moved(marked(handle.path, names.CLEANED))
                handle.pin()
        except BaseException:
            new.close()
            raise
        return new
