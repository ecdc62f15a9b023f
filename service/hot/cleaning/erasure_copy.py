"""Steps of one erasure in one segment, for a `log-cleaner` thread: find a record that goes, copy the rest.

A batch of which nothing stays keeps its header: no offset is missing, each producer's sequence and each
transaction's first batch are where they were. So recovery, followers and tiering meet the log that they know,
and the rows of aborted transactions stay as they are.
"""

from __future__ import annotations

from array import array

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.hot.cleaning.segment_copy import BufferSizes, CleaningCounts, SegmentCopy, Steps, pieces_of
from service.hot.segment import Segment
from service.hot.state import LogState
from service.records import txn_rows
from service.records.erasure import ErasureCopier, ErasureKeys, count_hits
from service.records.scan import BatchScan


class HitSearch:
    """Looks for a record that goes. ``is_hit``: whether there is one, once `run` has ended."""

    def __init__(
        self,
        segment: Segment,
        keys: ErasureKeys,
        end_offset: int,
        sizes: BufferSizes,
        counts: CleaningCounts,
    ) -> None:
        """`end_offset`: records at or beyond it stay."""
        self.is_hit = False
        self._segment = segment
        self._keys = keys
        self._end_offset = end_offset
        self._sizes = sizes
        self._counts = counts

    def run(self) -> Steps:
        """Read the segment up to the first hit. `CorruptionError` if it is damaged, `DiskError`."""
        for batches, _, piece in pieces_of(self._segment, self._sizes):
            if batches.base_offsets[0] >= self._end_offset:
                return
            self._counts.bytes_read += len(piece)
            if count_hits(self._keys, piece, batches, self._end_offset):
                self.is_hit = True
                return
            yield len(piece)


class ErasureCopy(SegmentCopy):
    """Copies a segment without the records that go."""

    def __init__(
        self,
        state: LogState,
        old: Segment,
        segment_end: int,
        keys: ErasureKeys,
        end_offset: int,
        sizes: BufferSizes,
        counts: CleaningCounts,
    ) -> None:
        """`segment_end`: where the segment ends; `end_offset`: records at or beyond it stay."""
        super().__init__(state, [old], segment_end, sizes, counts)
        self._copier = ErasureCopier(keys, end_offset, None, segment_end, sizes.out)
        self._headers = array("q"), array("q"), array("q")
        """first and last offsets and leader epochs of the batches read"""
        self._copied = 0

    def _write(self, disk: Disk, fd: int) -> Steps:
        (segment,) = self.old
        for batches, _, piece in pieces_of(segment, self._sizes):
            before = self._position
            for column, read in zip(self._headers, _headers_of(batches), strict=True):
                column.extend(read)
            for part in self._copier.copy(piece, batches):
                self._append(disk, fd, part)
            self._counts.bytes_read += len(piece)
            yield len(piece) + self._position - before
        for part in self._copier.rest():
            self._append(disk, fd, part)
        if self._copied != len(self._headers[0]):
            raise CorruptionError(f"{self._log}: of {len(self._headers[0])} batches {self._copied} are left")
        if segment.txn_index is not None:
            self._rows = b"".join(map(txn_rows.encode_row, segment.txn_index.rows()))
        self._counts.records_read += self._copier.records_read
        self._counts.records_kept += self._copier.records_kept
        yield 0

    def _check(self, batches: BatchScan, data: Buffer) -> None:
        """Raise `CorruptionError` unless these are the next batches that were read, whatever is left of
        them."""
        end = self._copied + batches.batches
        for column, written in zip(self._headers, _headers_of(batches), strict=True):
            if column[self._copied : end] != written:
                raise CorruptionError(f"{self._log}: an erasure has changed offsets or epochs of batches")
        self._copied = end


def _headers_of(batches: BatchScan) -> tuple[array[int], array[int], array[int]]:
    return batches.base_offsets, batches.last_offsets, batches.leader_epochs
