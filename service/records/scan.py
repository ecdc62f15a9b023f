"""Verification of whole batches in bulk, before a segment is uploaded and when a log recovers. [P]

The kernel walks, without the GIL when compiled, and verifies checksums of small batches. A larger batch costs
a library call each.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records import kernel
from service.records.batch import CODEC_MASK, CODECS, CRC_START, HEADER_SIZE, LOG_OVERHEAD, size_at
from service.records.compression import decompress, first_bytes
from service.records.kernel_status import BATCH_FIELDS, Status

SMALL_BATCH_BYTES: Final = 16 * 1024
"""Largest batch that the compiled kernel checksums, by table and without the GIL (2.6 GB/s). A library call
is as fast from 700 bytes on and four times as fast at this size, but many calls in a thread delay the event
loop."""
_BATCHES_PER_STEP: Final = 1024
"""With more, the rows of a step would get a memory mapping of their own, faulted in by every call."""
MAX_BATCH_BYTES: Final = 512 << 20
"""A greater length is taken for a malformed one."""

ReadPiece = Callable[[int, int], Buffer]
"""(position, length) -> exactly that many bytes, or an error."""


class BatchScan(NamedTuple):
    """Result of a walk: one entry per sound batch in each array, in order, and how the walk ended.

    ``end`` is the position after the last sound batch. ``status`` is `Status.OK` if the walk reached its
    limit, `Status.TRUNCATED` if the batch at ``end`` is incomplete (more data may complete it), anything else
    if the batch at ``end`` is bad.
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
    buf: Buffer,
    position: int = 0,
    end: int | None = None,
    *,
    next_offset: int = 0,
    small_bytes: int = SMALL_BATCH_BYTES,
    with_checksums: bool = True,
) -> BatchScan:
    """Walk and verify the batches in ``buf[position:end]``: magic, length, checksum, order of offsets, and
    no more records than offsets.

    The first base offset must be ``next_offset`` or more, each later one above the last offset before it.
    Never raises for bad data: the result says where and why the walk stopped. `small_bytes`: the largest
    batch that the kernel checksums; the event loop passes less, because other threads need the GIL.
    `with_checksums`: False where a checksum over all of the bytes was compared already.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    crc_limit = small_bytes if kernel.COMPILED and with_checksums else 0
    most = min(_BATCHES_PER_STEP, 1 + max(limit - position, 0) // HEADER_SIZE)
    step = array("q", bytes(8 * BATCH_FIELDS * most))
    rows = array("q")
    while True:
        status, count, position = kernel.scan_batches(buf, position, limit, next_offset, crc_limit, step)
        found = step[: count * BATCH_FIELDS]
        bad = _first_bad_crc(buf, found, crc_limit) if with_checksums else -1
        if bad >= 0:
            position = found[bad]
            return _result(Status.BAD_CRC, position, rows + found[:bad])
        rows += found
        if status != Status.OK or position >= limit:
            return _result(Status(status), position, rows)
        next_offset = found[-BATCH_FIELDS + 3] + 1


def scan_pieces(
    read: ReadPiece, start: int, end: int, *, first_offset: int, name: str, piece_bytes: int = 1 << 20
) -> Iterator[tuple[BatchScan, int, memoryview]]:
    """Yield the verified batches in ``[start, end)`` of a log, a piece at a time.

    Each item is (scan, position of the piece counted from `start`, the piece cut to whole batches). Memory:
    one piece, or one batch if it is larger. `CorruptionError` unless whole batches fill the range, every
    checksum matches and offsets ascend from `first_offset`.
    """
    position, next_offset, wanted, length = 0, first_offset, piece_bytes, end - start
    while position < length:
        piece = memoryview(read(start + position, min(wanted, length - position)))
        batches = scan_batches(piece, next_offset=next_offset)
        if batches.status not in (Status.OK, Status.TRUNCATED):
            raise CorruptionError(f"{name}: batch at {position + batches.end}: {batches.status.reason}")
        if not batches.batches:
            wanted = _larger(piece, position, length, name)
            continue
        yield batches, position, piece[: batches.end]
        position += batches.end
        next_offset = batches.last_offsets[-1] + 1
        wanted = piece_bytes


def _larger(piece: memoryview, position: int, length: int, name: str) -> int:
    """Return the size to read for the batch at `position`, of which `piece` has only a part."""
    if len(piece) >= length - position:
        raise CorruptionError(f"{name}: the batch at {position} is cut at {length}")
    size = size_at(piece) if len(piece) >= LOG_OVERHEAD else LOG_OVERHEAD
    if not len(piece) < size <= MAX_BATCH_BYTES:
        raise CorruptionError(f"{name}: the batch at {position} claims {size} bytes")
    return size


def inflated_records(scan: BatchScan, index: int, buf: Buffer, max_inflated_bytes: int) -> Buffer | None:
    """Return the records of the compressed batch number ``index``.

    None if it does not decode within ``max_inflated_bytes``: producers write such batches, and brokers that
    do not check records keep them.
    """
    codec_id = scan.attributes[index] & CODEC_MASK
    if codec_id >= len(CODECS):
        return None
    start, end = scan.positions[index] + HEADER_SIZE, scan.positions[index] + scan.sizes[index]
    try:
        return decompress(CODECS[codec_id], memoryview(buf)[start:end], max_inflated_bytes)
    except CorruptionError:
        return None


def first_inflated(scan: BatchScan, index: int, buf: Buffer, size: int) -> Buffer | None:
    """Return the first bytes of the records of the compressed batch number ``index``, as
    `compression.first_bytes` does."""
    codec_id = scan.attributes[index] & CODEC_MASK
    if codec_id >= len(CODECS):
        return None
    start, end = scan.positions[index] + HEADER_SIZE, scan.positions[index] + scan.sizes[index]
    return first_bytes(CODECS[codec_id], memoryview(buf)[start:end], size)


def _first_bad_crc(buf: Buffer, rows: array[int], crc_limit: int) -> int:
    """Return the index in ``rows`` of the first batch above ``crc_limit`` bytes with a wrong checksum, or
    -1."""
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
