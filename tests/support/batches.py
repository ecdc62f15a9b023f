"""A record batch (magic 2) built field by field, each of which a test may falsify.

Independent of `service.records`, which it judges.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence

import cramjam
import crc32c
import zstandard

HEADER = struct.Struct(">qiibIhiqqqhii")
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


def varint(value: int) -> bytes:
    """Zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(
    offset_delta: int, value: bytes | None, key: bytes | None = None, timestamp_delta: int = 0
) -> bytes:
    """One record, its length in front."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _bytes(key) + _bytes(value) + varint(0)
    return varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def compress(codec: int, data: bytes) -> bytes:
    """Compress as Kafka clients do; snappy in the Java client's framing."""
    if codec == GZIP:
        return gzip.compress(data)
    if codec == SNAPPY:
        body = bytes(cramjam.snappy.compress_raw(data))
        return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(body)) + body
    if codec == LZ4:
        encoder = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        encoder.compress(data)
        return bytes(encoder.finish())
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    return data


def batch(
    values: Sequence[bytes | None] = (),
    *,
    payload: bytes | None = None,
    codec: int = NONE,
    base_offset: int = 0,
    length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
) -> bytes:
    """A batch of `values`, right unless told otherwise. A `payload` stands for the (compressed) records.

    >>> len(batch([b"x"])) - 61 == len(record(0, b"x"))
    True
    """
    number = len(values)
    if payload is None:
        payload = compress(codec, b"".join(record(delta, value) for delta, value in enumerate(values)))
    if last_offset_delta is None:
        last_offset_delta = max(number - 1, 0) if count is None or number else count - 1
    tail = struct.pack(
        ">hiqqqhii",
        codec if attributes is None else attributes,
        last_offset_delta,
        base_timestamp,
        base_timestamp if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        number if count is None else count,
    )
    tail += payload
    if crc is None:
        crc = crc32c.crc32c(tail)
    if length is None:
        length = 9 + len(tail)
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc) + tail
