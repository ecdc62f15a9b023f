"""Steps of one compaction, for a `log-cleaner` thread: each yields the bytes that it has read or written.

Two passes: the keys of the dirty part are put into a map, then segments are copied, group by group, without
the records that a later record replaces. Output is verified like input, with checksums, before it is used. A
generator that is closed early leaves no files.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from service.base.disk import Disk, MissingFile, Open
from service.base.errors import CorruptionError, StorageError
from service.base.files import fsync_dir, fsync_file
from service.base.types import Buffer
from service.hot import names
from service.hot.cleaning.interrupted import clear, marked
from service.hot.cleaning.plan import MAX_POSITION
from service.hot.cleaning.swap import discard
from service.hot.cleaning.transactions import CleanedTransactions, aborted_between
from service.hot.files import FileSlice
from service.hot.segment import Segment
from service.hot.state import LogState
from service.hot.txn_index import TxnIndex
from service.records import txn_rows
from service.records.compaction import CompactionCopier, CopyRules, LastBatches, filling_batch
from service.records.kernel_status import Status
from service.records.key_map import KeyMap
from service.records.scan import BatchScan, scan_batches, scan_pieces
from service.records.segment_indexes import MAX_RELATIVE_OFFSET, IndexBuilder
from service.records.txn_rows import AbortedEntry

Steps = Generator[int, None, None]


class BufferSizes(NamedTuple):
    """Sizes of buffers, in bytes."""

    piece: int
    out: int


class CleaningCounts:
    """Counters of one compaction."""

    __slots__ = ("bytes_read", "bytes_written", "records_kept", "records_read")

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0


def map_keys(
    segments: Sequence[Segment], following: Sequence[Segment], first_dirty: int, end_offset: int,
    keys: KeyMap, sizes: BufferSizes,
) -> Steps:  # fmt: skip
    """Put the keys of `segments`, from `first_dirty` on, into `keys`, up to `end_offset` or until it is full.

    `following`: later segments, whose transaction indexes may list transactions aborted in these.
    """
    fates = CleanedTransactions()
    fates.add(aborted_between(_indexes([*segments, *following]), first_dirty, end_offset))
    for number, segment in enumerate(segments):
        for batches, _, piece in _pieces(segment, sizes):
            if not keys.add(piece, batches, first_dirty, fates):
                return
            yield len(piece)
        after = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        keys.reached(after)


def _pieces(segment: Segment, sizes: BufferSizes) -> Iterator[tuple[BatchScan, int, memoryview]]:
    file = segment.log.peek()

    def read(position: int, size: int) -> bytes:
        return FileSlice(file, position, size).read()

    return scan_pieces(
        read, 0, segment.size, first_offset=segment.base_offset, name=str(file.path), piece_bytes=sizes.piece
    )


def _indexes(segments: Iterable[Segment]) -> Iterator[list[AbortedEntry]]:
    """Read the transaction indexes of these segments, one after the other; most have none."""
    for segment in segments:
        if segment.txn_index is not None:
            try:
                yield segment.txn_index.rows()
            except MissingFile:
                continue


class GroupCopy:
    """Merges segments. ``new``: the copy, once `run` has ended; its files are durable, and open."""

    def __init__(
        self,
        state: LogState,
        old: Sequence[Segment],
        following: Sequence[Segment],
        rules: CopyRules,
        keys: KeyMap,
        fates: CleanedTransactions,
        last_batches: LastBatches,
        sizes: BufferSizes,
        counts: CleaningCounts,
    ) -> None:
        """`following`: see `map_keys`. `fates` and `counts` are shared by all groups."""
        self.old = tuple(old)
        self.new: Segment | None = None
        self._state = state
        self._following = tuple(following)
        self._rules = rules
        self._fates = fates
        self._copier = CompactionCopier(keys, fates, rules, last_batches, sizes.out)
        self._sizes = sizes
        self._counts = counts
        self._position = 0
        self._next_offset = old[0].base_offset
        self._index = IndexBuilder(old[0].base_offset, old[0].indexes.settings.interval_bytes)
        self._log = state.dir / names.offset_file(old[0].base_offset, names.LOG)

    def run(self) -> Steps:
        """Copy the segments; `CorruptionError` if they are damaged, `DiskError`."""
        disk = self._state.disk
        try:
            clear(disk, self._log)  # files that an earlier compaction could not delete
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

    def _write(self, disk: Disk, fd: int) -> Steps:
        kept = len(self._fates.kept)
        epoch = -1
        for number, segment in enumerate(self.old):
            end = self.old[number + 1].base_offset if number + 1 < len(self.old) else self._rules.end_offset
            behind = [*self.old[number:], *self._following]
            self._fates.add(aborted_between(_indexes(behind), segment.base_offset, end))
            for batches, _, piece in _pieces(segment, self._sizes):
                before = self._position
                for part in self._copier.copy(piece, batches):
                    self._append(disk, fd, part)
                epoch = max(epoch, batches.leader_epochs[-1])
                self._counts.bytes_read += len(piece)
                yield len(piece) + self._position - before
        for part in self._copier.rest():
            self._append(disk, fd, part)
        # A segment written by Apache Kafka may precede a gap that is wider than a segment can span.
        last_offset = min(self._rules.end_offset - 1, self.old[0].base_offset + MAX_RELATIVE_OFFSET)
        if self._next_offset <= last_offset:
            self._append(disk, fd, filling_batch(self._next_offset, last_offset, epoch))
        self._counts.records_read += self._copier.records_read
        self._counts.records_kept += self._copier.records_kept
        self._aborted = self._fates.kept[kept:]
        yield 0

    def _append(self, disk: Disk, fd: int, data: Buffer) -> None:
        """Write batches, once they are verified."""
        batches = scan_batches(data, next_offset=self._next_offset)
        if batches.status is not Status.OK or batches.last_offsets[-1] >= self._rules.end_offset:
            raise CorruptionError(
                f"{self._log}: compaction produced an invalid batch: {batches.status.reason}"
            )
        if self._position + len(data) > MAX_POSITION:
            raise StorageError(f"{self._log} would be larger than a segment can be after compaction")
        disk.pwrite(fd, data, self._position)
        self._index.add(batches, self._position)
        self._position += len(data)
        self._next_offset = batches.last_offsets[-1] + 1
        self._counts.bytes_written += len(data)

    def _write_sides(self, disk: Disk) -> None:
        index = self._index.finish()
        rows = self._rows = b"".join(map(txn_rows.encode_row, self._aborted))
        sides = {names.OFFSET_INDEX: index.offset_index, names.TIME_INDEX: index.time_index}
        if rows:
            sides[names.TXN_INDEX] = rows
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
