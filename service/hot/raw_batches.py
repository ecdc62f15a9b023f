"""Batches that bear their offsets already, looked at before they are appended. [P]"""

from __future__ import annotations

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.hot.producers import EndMarker
from service.records.batch import BatchHeader, iter_headers, verify_crc
from service.records.decode import iter_records
from service.records.walk import Read

_MAX_MARKER_BYTES = 1024


def check_raw(data: memoryview, end_offset: int, tip: TopicIdPartition) -> list[BatchHeader]:
    """The headers of whole batches that may follow on a log that ends at `end_offset`.

    `CorruptionError` for torn bytes, a wrong checksum or offsets that do not go up from there.
    """
    headers = list(iter_headers(data))
    if not headers:
        raise CorruptionError("nothing to append")
    expected = end_offset
    for header in headers:
        if header.base_offset < expected:
            raise CorruptionError(f"batch at offset {header.base_offset}, the log of {tip} is at {expected}")
        if not verify_crc(data, header):
            raise CorruptionError(f"wrong checksum of the batch at offset {header.base_offset} for {tip}")
        expected = header.next_offset
    return headers


def marker_of(data: memoryview, header: BatchHeader) -> EndMarker | None:
    """The transaction marker in a control batch of a producer, None in any other."""
    if header.producer_id < 0 or not header.is_control:
        return None
    return read_marker(lambda size, position: data[position : position + size], header)


def read_marker(read: Read, header: BatchHeader) -> EndMarker | None:
    """The transaction marker in a control batch, None if it is empty.

    Its value is i16 version, i32 coordinator epoch.
    """
    if header.size > _MAX_MARKER_BYTES:
        raise CorruptionError(f"control batch of {header.size} bytes at {header.position}")
    data = read(header.size, header.position)
    for record in iter_records(data, include_control=True):
        if record.value is None or len(record.value) < 6:
            raise CorruptionError(f"transaction marker without a value at {header.position}")
        return EndMarker(int.from_bytes(record.value[2:6], "big", signed=True), record.timestamp)
    return None
