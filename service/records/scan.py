"""Whole batches verified in bulk: before a segment goes to the bucket, and when a log recovers. [P]

The walk is the kernel's and holds no GIL when compiled. Checksums of small batches are part of it; larger
ones get a library call each.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.types import Buffer
from service.records import kernel
from service.records.batch import CRC_START
from service.records.kernel_status import BATCH_FIELDS, Status

SMALL_BATCH_BYTES: Final = 16 * 1024
"""Up to this size the compiled kernel checksums with its table and no GIL (2.6 GB/s). A library call is as
fast from 700 bytes on, four times as fast here, but a thread that makes many holds up the event loop."""
_BATCHES_PER_STEP: Final = 4096


class BatchScan(NamedTuple):
    """What a walk found: one entry per sound batch in each array, in order, and how it ended.

    ``end`` is the position after the last sound batch. ``status`` is `Status.OK` when everything up to the
    limit was walked, `Status.TRUNCATED` when a batch begins at ``end`` and is not wholly there (more data may
    make it whole), anything else when the batch at ``end`` is bad.
    """

    status: Status
    end: int
    positions: array[int]
    sizes: array[int]
    base_offsets: array[int]
    last_offsets: array[int]
    leader_epochs: array[int]
    base_timestamps: array[int]
    max_timestamps: array[int]
    record_counts: array[int]
    attributes: array[int]

    @property
    def batches(self) -> int:
        return len(self.positions)


def scan_batches(
    buf: Buffer, position: int = 0, end: int | None = None, *, next_offset: int = 0
) -> BatchScan:
    """Walk and verify the batches in ``buf[position:end]``: magic, length, checksum, order of offsets, and
    that none claims more records than it has offsets.

    The first base offset must be ``next_offset`` or more, each later one more than the last offset before it.
    Never raises for bad data: the answer says where and why it stopped.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    crc_limit = SMALL_BATCH_BYTES if kernel.COMPILED else 0
    step = array("q", bytes(8 * BATCH_FIELDS * _BATCHES_PER_STEP))
    rows = array("q")
    while True:
        status, count, position = kernel.scan_batches(buf, position, limit, next_offset, crc_limit, step)
        found = step[: count * BATCH_FIELDS]
        bad = _first_bad_crc(buf, found, crc_limit)
        if bad >= 0:
            position = found[bad]
            return _result(Status.BAD_CRC, position, rows + found[:bad])
        rows += found
        if status != Status.OK or position >= limit:
            return _result(Status(status), position, rows)
        next_offset = found[-BATCH_FIELDS + 3] + 1


def _first_bad_crc(buf: Buffer, rows: array[int], crc_limit: int) -> int:
    """Index in ``rows`` of the first batch above ``crc_limit`` bytes with a wrong checksum, or -1."""
    if not rows or max(rows[1::BATCH_FIELDS]) <= crc_limit:
        return -1
    view = memoryview(buf)
    for at in range(0, len(rows), BATCH_FIELDS):
        size = rows[at + 1]
        if size > crc_limit:
            position = rows[at]
            if crc32c(view[position + CRC_START : position + size]) != rows[at + 9]:
                return at
    return -1


def _result(status: Status, end: int, rows: array[int]) -> BatchScan:
    columns = (rows[field::BATCH_FIELDS] for field in range(BATCH_FIELDS - 1))
    return BatchScan(status, end, *columns)
