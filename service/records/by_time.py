"""Search for records by timestamp, without an object for each batch or record. [P]"""

from __future__ import annotations

from service.base.errors import CorruptionError
from service.base.types import MAX_INFLATED_BATCH_BYTES, Buffer, TimestampedOffset
from service.records.batch import HEADER_SIZE, BatchHeader, CompressionType, read_header
from service.records.compression import decompress
from service.records.kernel_status import Status
from service.records.time_kernel import find_batch, find_record

__all__ = ["batch_from", "first_in_batch", "first_in_batches"]


def batch_from(data: Buffer, position: int, end: int, timestamp: int, offset: int) -> tuple[bool, int]:
    """Find the first batch in ``data[position:end]`` that reaches both `timestamp` and `offset`.

    Returns (True, its position), or (False, the position of the first incomplete header). `CorruptionError`,
    with the position, for malformed headers.
    """
    status, found, at = find_batch(data, position, end, timestamp, offset)
    if status != Status.OK:
        raise CorruptionError(f"no batch at position {at}: {Status(status).reason}")
    return bool(found), at


def first_in_batch(
    data: Buffer,
    header: BatchHeader,
    timestamp: int,
    offset: int,
    *,
    max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES,
) -> TimestampedOffset | None:
    """Return the first record of the batch at or after both `timestamp` and `offset`, or None.

    `header` describes the batch in `data`. `CorruptionError` if the records do not parse or inflate beyond
    the bound.
    """
    end = header.end
    if end > len(data):
        raise CorruptionError(f"batch at position {header.position}: it ends after the data")
    payload: Buffer = memoryview(data)[header.position + HEADER_SIZE : end]
    if header.codec is not CompressionType.NONE:
        payload = decompress(header.codec, payload, max_inflated_bytes)
    by_log = header.is_log_append_time
    status, delta, at = find_record(
        payload,
        0,
        len(payload),
        header.record_count,
        header.max_timestamp if by_log else header.base_timestamp,
        0 if by_log else 1,
        timestamp,
        max(offset - header.base_offset, 0),
    )
    if status != Status.OK:
        raise CorruptionError(f"batch at position {header.position}, record {delta}: {Status(status).reason}")
    if delta < 0:
        return None
    return TimestampedOffset(header.base_offset + delta, at, header.partition_leader_epoch)


def first_in_batches(
    data: Buffer, position: int, end: int, timestamp: int, offset: int
) -> TimestampedOffset | None:
    """Return the first such record of the whole batches in ``data[position:end]``; see `first_in_batch`."""
    while True:
        found, position = batch_from(data, position, end, timestamp, offset)
        if not found:
            if position != end:
                raise CorruptionError(f"no whole batch at position {position}")
            return None
        header = read_header(data, position)
        record = first_in_batch(data, header, timestamp, offset)
        if record is not None:
            return record
        position = header.end
