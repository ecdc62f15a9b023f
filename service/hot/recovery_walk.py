"""Scan of a segment that may be torn: its sound part, and rebuilt indexes.

For a `log-io` thread. The kernel does the work for each batch, without the GIL.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.hot.files import SegmentFile
from service.hot.producers import REMEMBERED_BATCHES
from service.hot.segment import Segment
from service.records.batch import BatchHeader, read_header
from service.records.index_kernel import TABLE_FIELDS, recent_producers
from service.records.kernel_status import Status
from service.records.scan import BatchScan, scan_batches
from service.records.segment_indexes import MAX_RELATIVE_OFFSET, IndexBuilder
from service.records.walk import Read, at_position, read_verified

_PIECE_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096
_OFFSET_ZEROS: Final = 7
"""Most bytes of zeros that a batch begins with: of a base offset below 256. They look unwritten, too."""
_LEAST_ZEROS: Final = 8
"""the length of a base offset, which is zero only in the first batch"""
_SLOTS: Final = 1024


class Run(NamedTuple):
    """Contiguous sound batches in ``data``, which begins at ``start`` in the log."""

    batches: BatchScan
    data: memoryview
    start: int

    def producers(self) -> Iterator[BatchHeader]:
        """Yield headers of the batches that determine the state of their producers, with positions in the
        log.

        Those are the last ones of each producer, and all of transactions.
        """
        for header in producers_of(self.data, self.batches.positions):
            yield at_position(header, self.start + header.position)


def producers_of(data: memoryview, positions: array[int]) -> Iterator[BatchHeader]:
    """Yield headers as `Run.producers` does, of sound batches at these positions in `data`."""
    table = array("q", bytes(8 * TABLE_FIELDS * _SLOTS))
    found = array("q", bytes(8 * len(positions)))
    count = recent_producers(data, positions, REMEMBERED_BATCHES, table, found)
    for index in reversed(found[:count]):
        yield read_header(data, positions[index])


class Problem(NamedTuple):
    """Position of the first batch that is not sound, and what is wrong with it."""

    position: int
    why: str


def recover_segment(
    segment: Segment, take_over: Callable[[SegmentFile, Run], None]
) -> tuple[int, Problem | None]:
    """Verify a segment and rebuild its indexes; returns (end offset of the sound part, what ends it).

    Calls `take_over` with all sound batches, in order. Does not change the log itself.
    """
    file, size = segment.log.get(), segment.size
    builder = IndexBuilder(segment.base_offset, segment.indexes.settings.interval_bytes)
    position, next_offset = 0, segment.base_offset
    problem = None
    while position < size and problem is None:
        run = _read(file, position, size, next_offset)
        run, problem = _sound_part(run, segment)
        if run.batches.batches:
            builder.add(run.batches, position)
            take_over(file, run)
            position += run.batches.end
            next_offset = run.batches.last_offsets[-1] + 1
    segment.indexes.replace(builder)
    return next_offset, problem


def has_unwritten_page(read: Read, position: int, end: int) -> bool:
    """Return whether a page of ``[position, end)`` was never written: it is zeros from its border, or from
    `position`, on. Damage to a batch that was written leaves other bytes."""
    at = position
    while at < end:
        until = at - at % PAGE_BYTES + PAGE_BYTES
        if until - end > _OFFSET_ZEROS and at != position:
            return False  # zeros may be the last bytes of a batch
        page = read(min(until, end) - at, at)
        if len(page) >= _LEAST_ZEROS and not any(page):
            return True
        at = until
    return False


def _read(file: SegmentFile, position: int, size: int, next_offset: int) -> Run:
    """Read the batches at `position`: many, or one that is larger than a piece."""
    piece = memoryview(file.pread(min(_PIECE_BYTES, size - position), position))
    batches = scan_batches(piece, next_offset=next_offset)
    if batches.status is Status.TRUNCATED and not batches.batches and position + len(piece) < size:
        try:
            header = read_verified(file.pread, position, size, file.path)
        except CorruptionError:
            return Run(batches, piece, position)
        if header.base_offset >= next_offset:
            return Run(_one(header), piece, position)
    return Run(batches, piece, position)


def _one(header: BatchHeader) -> BatchScan:
    columns = (
        0, header.size, header.base_offset, header.last_offset, header.partition_leader_epoch,
        header.base_timestamp, header.max_timestamp, header.record_count, header.attributes,
    )  # fmt: skip
    return BatchScan(Status.OK, header.size, *(array("q", [value]) for value in columns))


def _sound_part(run: Run, segment: Segment) -> tuple[Run, Problem | None]:
    """Cut batches from the run that cannot belong to this segment; also returns what ends the segment."""
    batches, end = run.batches, run.start + run.batches.end
    path = segment.log.path
    fit = bisect_right(batches.last_offsets, segment.base_offset + MAX_RELATIVE_OFFSET)
    if fit < batches.batches:
        why = f"offset {batches.last_offsets[fit]} is too far from {segment.base_offset}"
        at = run.start + batches.positions[fit]
        columns = (column[:fit] for column in batches[2:])
        cut = BatchScan(Status.BAD_RANGE, batches.positions[fit], *columns)
        return run._replace(batches=cut), Problem(at, f"{path}: batch at position {at}: {why}")
    if not run.data:
        return run, Problem(end, f"{path} ends at {end}, not at {segment.size}")
    if batches.status is Status.OK:
        return run, None
    if batches.status is Status.TRUNCATED and batches.batches:
        return run, None  # the next piece begins with it
    if batches.status is Status.BAD_CRC:
        return run, Problem(end, f"{path}: wrong checksum of the batch at position {end}")
    return run, Problem(end, f"{path}: batch at position {end}: {batches.status.reason}")
