"""Transaction markers: the control batches that end a producer's transaction. [P]

A marker is a batch with one record (Kafka `EndTransactionMarker`, `ControlRecordType`):

    key     i16 version 0   i16 0 abort | 1 commit
    value   i16 version 0   i32 coordinator epoch

Control records of other types are kept in a log and mean nothing to the state of its producers; a batch of
which compaction left no record says nothing either.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.records.batch import HEADER_SIZE, BatchHeader
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.walk import Read

ABORT: Final = 0
COMMIT: Final = 1
MARKER_SIZE: Final = 78
"""Bytes of every marker that Firn or Kafka writes."""
_MAX_CONTROL_BYTES: Final = 1024
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_USUAL: Final = struct.Struct(">5shhbhib")
"""The record of a usual marker: what precedes its key, the key, the length of its value, the value, no
header."""
_BEFORE_KEY: Final = bytes.fromhex("2000000008")
_VALUE_LENGTH: Final = 2 * _VALUE.size


class EndMarker(NamedTuple):
    """Fields of a marker besides its header; ``timestamp`` in ms."""

    coordinator_epoch: int
    timestamp: int
    is_commit: bool


def encode_marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_commit: bool, timestamp: int
) -> bytearray:
    """Return the batch of a marker; its offset and its leader epoch are still to be stamped.

    >>> len(encode_marker(7, 0, 2, is_commit=True, timestamp=1_600_000_000_000)) == MARKER_SIZE
    True
    """
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    key = _KEY.pack(0, COMMIT if is_commit else ABORT)
    builder.add(timestamp, key, _VALUE.pack(0, coordinator_epoch))
    return builder.build()


def marker_of(data: memoryview, header: BatchHeader) -> EndMarker | None:
    """Return the marker that a batch in `data` is, None for any other batch. `CorruptionError` as in
    `read_marker`."""
    if header.producer_id < 0 or not header.is_control:
        return None
    return read_marker(lambda size, position: data[position : position + size], header)


def read_marker(read: Read, header: BatchHeader) -> EndMarker | None:
    """Read the marker that a producer's control batch has; None if it is empty or has another type.

    `CorruptionError` if the batch is larger than any marker, does not parse, or lacks a value.
    """
    if header.size > _MAX_CONTROL_BYTES:
        raise CorruptionError(f"control batch of {header.size} bytes at {header.position}")
    data = read(header.size, header.position)
    if len(data) == MARKER_SIZE:
        before, _, kind, length, _, epoch, _ = _USUAL.unpack_from(data, HEADER_SIZE)
        if before == _BEFORE_KEY and length == _VALUE_LENGTH:
            timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp
            return EndMarker(epoch, timestamp, kind == COMMIT) if kind in (ABORT, COMMIT) else None
    for record in iter_records(data, include_control=True):
        key = record.key
        if key is None or len(key) < _KEY.size:
            raise CorruptionError(f"control record without a type at {header.position}")
        kind = _KEY.unpack_from(key)[1]
        if kind not in (ABORT, COMMIT):
            return None
        if record.value is None or len(record.value) < _VALUE.size:
            raise CorruptionError(f"transaction marker without a value at {header.position}")
        return EndMarker(_VALUE.unpack_from(record.value)[1], record.timestamp, kind == COMMIT)
    return None
