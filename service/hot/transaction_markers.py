"""The transaction markers in control batches."""

from __future__ import annotations

from typing import Final

from service.base.errors import CorruptionError
from service.hot.producers import EndMarker
from service.records.batch import BatchHeader
from service.records.decode import iter_records
from service.records.walk import Read

_MAX_MARKER_BYTES: Final = 1024


def marker_of(data: memoryview, header: BatchHeader) -> EndMarker | None:
    """Return the transaction marker of a producer's control batch, None for any other batch."""
    if header.producer_id < 0 or not header.is_control:
        return None
    return read_marker(lambda size, position: data[position : position + size], header)


def read_marker(read: Read, header: BatchHeader) -> EndMarker | None:
    """Read the transaction marker of a control batch, None if the batch is empty.

    The record's value is i16 version, i32 coordinator epoch.
    """
    if header.size > _MAX_MARKER_BYTES:
        raise CorruptionError(f"control batch of {header.size} bytes at {header.position}")
    data = read(header.size, header.position)
    for record in iter_records(data, include_control=True):
        if record.value is None or len(record.value) < 6:
            raise CorruptionError(f"transaction marker without a value at {header.position}")
        return EndMarker(int.from_bytes(record.value[2:6], "big", signed=True), record.timestamp)
    return None
