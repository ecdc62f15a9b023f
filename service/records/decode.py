"""Decoder of batches into records, for the metadata log, the tools and the tests. [P]

The produce and fetch paths do not use it: they move batches as bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import MAX_INFLATED_BATCH_BYTES, Buffer
from service.records.batch import HEADER_SIZE, BatchHeader, CompressionType, iter_headers
from service.records.compression import decompress
from service.records.kernel import index_records
from service.records.kernel_status import MIN_RECORD_SIZE, RECORD_FIELDS, Status

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1


class Record(NamedTuple):
    """One record. ``timestamp``: ms, -1 for none; ``timestamp_type``: 0 (CreateTime) or 1 (LogAppendTime).

    Header keys are text, or bytes if they are not UTF-8.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str | bytes, bytes | None], ...]


def iter_records(
    data: Buffer, *, include_control: bool = False, max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES
) -> Iterator[Record]:
    """Yield every record of the batches that fill ``data`` exactly; control batches only on request.

    Raises `CorruptionError` at the first batch that is torn or does not parse. The caller verifies checksums
    (`verify_crc`).
    """
    for header in iter_headers(data):
        if include_control or not header.is_control:
            yield from records_of(data, header, max_inflated_bytes=max_inflated_bytes)


def records_of(
    data: Buffer, header: BatchHeader, *, max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES
) -> Iterator[Record]:
    """Yield the records of the batch that ``header`` describes in ``data``; errors as in `iter_records`."""
    payload, rows = index_batch(data, header, max_inflated_bytes=max_inflated_bytes)
    timestamp_type = LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME
    for at in range(0, len(rows), RECORD_FIELDS):
        delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, count = rows[
            at : at + RECORD_FIELDS
        ]
        yield Record(
            header.base_offset + offset_delta,
            header.max_timestamp if timestamp_type else header.base_timestamp + delta,
            timestamp_type,
            None if key_size < 0 else bytes(payload[key_at : key_at + key_size]),
            None if value_size < 0 else bytes(payload[value_at : value_at + value_size]),
            _headers(payload, headers_at, count) if count else (),
        )


def index_batch(
    data: Buffer, header: BatchHeader, *, max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES
) -> tuple[memoryview, array[int]]:
    """Return the batch's inflated records and the positions of their fields, `RECORD_FIELDS` numbers each.

    Raises `CorruptionError` if the records do not parse, do not fill the batch, or inflate beyond the bound.
    """
    start, end = header.position + HEADER_SIZE, header.end
    if end > len(data):
        raise CorruptionError(f"batch at position {header.position}: it ends after the data")
    payload = memoryview(data)[start:end]
    codec = header.codec
    if codec is not CompressionType.NONE:
        payload = memoryview(decompress(codec, payload, max_inflated_bytes))
    count = header.record_count
    if count * MIN_RECORD_SIZE > len(payload):
        raise CorruptionError(
            f"batch at position {header.position}: {count} records cannot lie in {len(payload)} bytes"
        )
    rows = array("q", bytes(8 * RECORD_FIELDS * count))
    status, index = index_records(payload, 0, len(payload), count, rows)
    if status != Status.OK:
        raise CorruptionError(f"batch at position {header.position}, record {index}: {Status(status).reason}")
    return payload, rows


def _headers(payload: memoryview, position: int, count: int) -> tuple[tuple[str | bytes, bytes | None], ...]:
    """Return the headers at ``position``, which the kernel has checked."""
    headers = []
    for _ in range(count):
        size, position = _varint(payload, position)
        key = bytes(payload[position : position + size])
        position += size
        size, position = _varint(payload, position)
        value = None
        if size >= 0:
            value = bytes(payload[position : position + size])
            position += size
        headers.append((_text(key), value))
    return tuple(headers)


def _varint(payload: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFF
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _text(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
