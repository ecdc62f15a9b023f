"""The header of a record batch, format v2, read and patched in place. [P]

Layout (big-endian; Kafka `DefaultRecordBatch`):

    offset size field                         offset size field
         0    8 base offset                       27    8 base timestamp (ms)
         8    4 batch length (bytes after it)     35    8 max timestamp (ms)
        12    4 partition leader epoch            43    8 producer id
        16    1 magic = 2                         51    2 producer epoch
        17    4 crc32c of bytes 21 to the end     53    4 base sequence
        21    2 attributes                        57    4 record count
        23    4 last offset delta                 61      records

Attributes: bits 0-2 codec, 3 timestamp type (1 = LogAppendTime), 4 transactional, 5 control, 6 delete
horizon (the base timestamp is then the horizon). Base offset and leader epoch lie before the checksummed
part, so a broker can set them without a new checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes that `batch_length` does not count: the base offset and the length itself."""
MAGIC: Final = 2
CRC_START: Final = 21
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_OFFSET_LENGTH: Final = struct.Struct(">qi")
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class CompressionType(IntEnum):
    """Compression of a batch, as in attributes bits 0-2."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS: Final = tuple(CompressionType)


class BatchHeader(NamedTuple):
    """A batch's header; ``position`` is the batch's position in its buffer."""

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes, header included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def end(self) -> int:
        """Position of the first byte after the batch."""
        return self.position + self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps from 2^31-1 to 0, and is -1 without sequences."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK

    @property
    def codec(self) -> CompressionType:
        """Compression codec; raises `CorruptionError` for the unassigned ids 5 to 7."""
        codec_id = self.attributes & CODEC_MASK
        if codec_id >= len(CODECS):
            raise CorruptionError(f"batch at position {self.position}: unknown compression codec {codec_id}")
        return CODECS[codec_id]

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time after which the batch's tombstones may be removed; None if not set (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


def is_zstd(buf: Buffer) -> bool:
    """Return whether `buf` begins with a batch compressed by zstd, by magic and attributes alone. Messages of
    magic 0 and 1 have no attributes there, so the magic must be 2."""
    return (
        len(buf) > ATTRIBUTES_AT + 1
        and buf[MAGIC_AT] == MAGIC
        and buf[ATTRIBUTES_AT + 1] & CODEC_MASK == CompressionType.ZSTD
    )


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at ``position``; the records need not be in ``buf``.

    Raises `CorruptionError` if fewer than 61 bytes are left or a field cannot be right (magic, length,
    negative count or delta). The checksum is not checked: see `verify_crc`.

    >>> read_header(bytes(8) + b"\\0\\0\\0\\x31" + bytes(4) + b"\\2" + bytes(44)).size
    61
    """
    try:
        fields = HEADER.unpack_from(buf, position)
    except struct.error:
        raise CorruptionError(
            f"batch at position {position}: {len(buf) - position} bytes left, a header takes {HEADER_SIZE}"
        ) from None
    header = tuple.__new__(BatchHeader, (position, *fields))
    if header[4] != MAGIC or header[2] < MIN_BATCH_LENGTH or header[7] < 0 or header[13] < 0:
        raise CorruptionError(f"batch at position {position}: {_what_is_wrong(header)}")
    return header


def _what_is_wrong(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"magic is {header.magic}, not {MAGIC}"
    if header.batch_length < MIN_BATCH_LENGTH:
        return f"length {header.batch_length} is less than the minimum {MIN_BATCH_LENGTH}"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta} is negative"
    return f"record count {header.record_count} is negative"


def iter_headers(buf: Buffer, position: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
    """Yield the headers of the batches that fill ``buf[position:end]`` exactly.

    Raises `CorruptionError` for a torn or foreign tail.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    while position < limit:
        header = read_header(buf, position)
        position = header.end
        if position > limit:
            raise CorruptionError(
                f"batch at position {header.position}: its {header.size} bytes end after the data ({limit})"
            )
        yield header


def complete_headers(buf: Buffer, position: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
    """Yield the headers of the complete batches in a slice that may end within a batch.

    Raises `CorruptionError` for malformed headers.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    while position + HEADER_SIZE <= limit:
        header = read_header(buf, position)
        position = header.end
        if position > limit:
            return
        yield header


def size_at(buf: Buffer, position: int = 0) -> int:
    """Return the size of the batch at ``position``, from its first 12 bytes. Raises `CorruptionError`."""
    if len(buf) - position < LOG_OVERHEAD:
        raise CorruptionError(
            f"batch at position {position}: {len(buf) - position} bytes left, its length takes 12"
        )
    length: int = _OFFSET_LENGTH.unpack_from(buf, position)[1]
    if length < MIN_BATCH_LENGTH:
        raise CorruptionError(f"batch at position {position}: length {length} is less than the minimum")
    return length + LOG_OVERHEAD


def compute_crc(buf: Buffer, position: int, size: int) -> int:
    """Return the CRC32C of a batch of ``size`` bytes at ``position``, from its attributes to its end."""
    return crc32c(memoryview(buf)[position + CRC_START : position + size])


def verify_crc(buf: Buffer, header: BatchHeader) -> bool:
    """Return whether the batch is complete in ``buf`` and matches the checksum in its header."""
    end = header.end
    return end <= len(buf) and crc32c(memoryview(buf)[header.position + CRC_START : end]) == header.crc


def stamp(buf: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place. The checksum covers neither."""
    _BASE_OFFSET.pack_into(buf, position, base_offset)
    _LEADER_EPOCH.pack_into(buf, position + LEADER_EPOCH_AT, leader_epoch)


def set_log_append_time(buf: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Set LogAppendTime with ``timestamp_ms`` as max timestamp, and a new checksum, in place.

    The records keep their deltas: readers of such a batch use the max timestamp for every record
    (Kafka `DefaultRecordBatch.setMaxTimestamp`).
    """
    attributes = _ATTRIBUTES.unpack_from(buf, position + ATTRIBUTES_AT)[0] | LOG_APPEND_TIME_FLAG
    _ATTRIBUTES.pack_into(buf, position + ATTRIBUTES_AT, attributes)
    set_max_timestamp(buf, position, timestamp_ms)


def set_max_timestamp(buf: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Write the batch's max timestamp and a new checksum, in place."""
    _MAX_TIMESTAMP.pack_into(buf, position + MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(buf, position + CRC_AT, compute_crc(buf, position, size_at(buf, position)))
