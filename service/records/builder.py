"""Builder of record batches, for the metadata log, the tools and the tests. [P]

The bytes equal those of Kafka's `MemoryRecordsBuilder`: the base timestamp is the first record's, deltas are
against it, and the codec's output (with Kafka's default level) follows the header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from service.base.types import NO_EPOCH, NO_LEADER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, Buffer
from service.records.batch import (
    CONTROL_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    CompressionType,
    compute_crc,
)
from service.records.compression import compress

HeaderPair = tuple[str | bytes, Buffer | None]
"""A record header: key (text is encoded as UTF-8) and value."""
_CRC: Final = struct.Struct(">I")


def encode_varint(value: int) -> bytes:
    """Return ``value`` (signed, up to 64 bits) as a zigzag varint of 1 to 10 bytes.

    >>> encode_varint(-1), encode_varint(150)
    (b'\\x01', b'\\xac\\x02')
    """
    if 0 <= value < _FEW:
        return _SMALL[value]
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return bytes((zigzag,))
    return _long_varint(zigzag)


def _long_varint(zigzag: int) -> bytes:
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_FEW: Final = 256
_SMALL: Final = tuple(bytes((2 * n,)) if n < 0x40 else _long_varint(2 * n) for n in range(_FEW))
"""Varints of the values 0 to 255, which are most lengths and offsets."""


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[HeaderPair] = (),
) -> bytes:
    """Return one record, preceded by its length (Kafka `DefaultRecord.writeTo`)."""
    parts: list[Buffer] = [
        b"\x00",
        encode_varint(timestamp_delta),
        encode_varint(offset_delta),
        *((b"\x01",) if key is None else (encode_varint(len(key)), key)),
        *((b"\x01",) if value is None else (encode_varint(len(value)), value)),
        encode_varint(len(headers)),
    ]
    for name, content in headers:
        _add_bytes(parts, name.encode() if isinstance(name, str) else name)
        _add_bytes(parts, content)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _add_bytes(parts: list[Buffer], data: Buffer | None) -> None:
    if data is None:
        parts.append(b"\x01")
    else:
        parts.append(encode_varint(len(data)))
        parts.append(data)


class BatchBuilder:
    """Builder of one batch from records. For one thread.

    >>> builder = BatchBuilder(base_offset=7)
    >>> builder.add(1_600_000_000_000, b"k", b"v")
    7
    >>> len(builder.build())
    70
    """

    def __init__(
        self,
        base_offset: int = 0,
        codec: CompressionType = CompressionType.NONE,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        *,
        is_transactional: bool = False,
        is_control: bool = False,
        log_append_time: int | None = None,
        level: int | None = None,
    ) -> None:
        self._base_offset = base_offset
        self._codec = codec
        self._level = level
        self._leader_epoch = leader_epoch
        self._producer = (producer_id, producer_epoch, base_sequence)
        self._log_append_time = log_append_time
        self._flags = (
            (TRANSACTIONAL_FLAG if is_transactional else 0)
            | (CONTROL_FLAG if is_control else 0)
            | (LOG_APPEND_TIME_FLAG if log_append_time is not None else 0)
        )
        self._records: list[Buffer] = []
        self._count = 0
        self._size = HEADER_SIZE
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Size of the batch so far in bytes, uncompressed."""
        return self._size

    def add(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[HeaderPair] = (),
    ) -> int:
        """Append a record; return its offset."""
        delta = self._count
        if not delta:
            self._base_timestamp = timestamp
        self._max_timestamp = max(self._max_timestamp, timestamp)
        record = encode_record(delta, timestamp - self._base_timestamp, key, value, headers)
        self._records.append(record)
        self._count += 1
        self._size += len(record)
        return self._base_offset + delta

    def add_all(self, timestamp: int, records: Iterable[tuple[Buffer, Buffer | None]]) -> None:
        """Append many (key, value) records without headers, with the same bytes as calls of `add`."""
        varint, append, delta = encode_varint, self._records.append, self._count
        if not delta:
            self._base_timestamp = timestamp
        self._max_timestamp = max(self._max_timestamp, timestamp)
        head = b"\x00" + varint(timestamp - self._base_timestamp)
        size, small = 0, _SMALL
        for key, value in records:
            key_size = len(key)
            at = small[delta] if delta < _FEW else varint(delta)
            key_head = small[key_size] if key_size < _FEW else varint(key_size)
            if value is None:
                body = b"".join((head, at, key_head, key, b"\x01\x00"))
            else:
                value_size = len(value)
                value_head = small[value_size] if value_size < _FEW else varint(value_size)
                body = b"".join((head, at, key_head, key, value_head, value, b"\x00"))
            body_size = len(body)
            record = (small[body_size] if body_size < _FEW else varint(body_size)) + body
            append(record)
            size += len(record)
            delta += 1
        self._count = delta
        self._size += size

    def add_encoded(self, timestamp: int, count: int, records: Buffer) -> None:
        """Append `count` encoded records, with deltas that match their position in this batch."""
        if not self._count:
            self._base_timestamp = timestamp
        self._max_timestamp = max(self._max_timestamp, timestamp)
        self._records.append(records)
        self._count += count
        self._size += len(records)

    def build(self) -> bytearray:
        """Return the batch. `ValueError` without records, or if the size exceeds the length field."""
        if not self._records:
            raise ValueError("a batch has at least one record")
        batch = bytearray(HEADER_SIZE)
        batch += compress(self._codec, b"".join(self._records), self._level)
        if len(batch) > 0x7FFFFFFF:
            raise ValueError(f"a batch of {len(batch)} bytes does not fit its length field")
        max_timestamp = self._max_timestamp if self._log_append_time is None else self._log_append_time
        HEADER.pack_into(
            batch,
            0,
            self._base_offset,
            len(batch) - LOG_OVERHEAD,
            self._leader_epoch,
            MAGIC,
            0,
            self._flags | self._codec,
            self._count - 1,
            self._base_timestamp,
            max_timestamp,
            *self._producer,
            self._count,
        )
        _CRC.pack_into(batch, 17, compute_crc(batch, 0, len(batch)))
        return batch
