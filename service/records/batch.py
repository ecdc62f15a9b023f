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
horizon (the base timestamp then is the horizon). Base offset and leader epoch lie before the checksummed
part, so a broker stamps them without touching the checksum.
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
"""Bytes before the part that `batch_length` counts: base offset and the length itself."""
MAGIC: Final = 2
CRC_START: Final = 21
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
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


class Codec(IntEnum):
    """Compression of a batch, as in attributes bits 0-2."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS: Final = tuple(Codec)


class BatchHeader(NamedTuple):
    """One header as it stands in a buffer; ``position`` is where in that buffer the batch begins (bytes)."""

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
        """Bytes of the whole batch, header included."""
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
        """Sequence of the last record; wraps from 2^31-1 to 0, and is -1 where there is none."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK

    @property
    def codec(self) -> Codec:
        """The codec; `CorruptionError` for the unassigned ids 5 to 7."""
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
        """From when on its tombstones may go, None while that is not set (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


def says_zstd(buf: Buffer) -> bool:
    """Whether `buf` begins with a batch compressed by zstd, as far as two of its bytes tell. In a message
    of magic 0 or 1 a timestamp or a key may stand where a batch says its codec."""
    return (
        len(buf) > ATTRIBUTES_AT + 1
        and buf[MAGIC_AT] == MAGIC
        and buf[ATTRIBUTES_AT + 1] & CODEC_MASK == Codec.ZSTD
    )


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Read the header that starts at ``position``; the records need not be in ``buf``.

    Raises `CorruptionError` when fewer than 61 bytes are left or a field cannot be right (magic, length,
    negative count or delta). The checksum is not looked at: that is `verify_crc`.

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
    """Headers of the batches that fill ``buf[position:end]`` exactly.

    Raises `CorruptionError` on a torn or foreign tail.
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
    """As `iter_headers`, for a slice cut at any byte: stops before a batch that is not wholly there.

    Bytes that are there and wrong still raise `CorruptionError`.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    while position + HEADER_SIZE <= limit:
        header = read_header(buf, position)
        position = header.end
        if position > limit:
            return
        yield header


def size_at(buf: Buffer, position: int = 0) -> int:
    """Bytes of the batch at ``position`` from its first 12 bytes alone; `CorruptionError` if it cannot be."""
    if len(buf) - position < LOG_OVERHEAD:
        raise CorruptionError(
            f"batch at position {position}: {len(buf) - position} bytes left, its length takes 12"
        )
    length: int = _OFFSET_LENGTH.unpack_from(buf, position)[1]
    if length < MIN_BATCH_LENGTH:
        raise CorruptionError(f"batch at position {position}: length {length} is less than the minimum")
    return length + LOG_OVERHEAD


def compute_crc(buf: Buffer, position: int, size: int) -> int:
    """CRC32C over a batch of ``size`` bytes at ``position``, from its attributes to its end."""
    return crc32c(memoryview(buf)[position + CRC_START : position + size])


def verify_crc(buf: Buffer, header: BatchHeader) -> bool:
    """Whether the batch's bytes give the checksum in its header; False too if they are not all there."""
    end = header.end
    return end <= len(buf) and crc32c(memoryview(buf)[header.position + CRC_START : end]) == header.crc


def stamp(buf: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place. Both lie outside the checksum, so nothing else changes."""
    _BASE_OFFSET.pack_into(buf, position, base_offset)
    _LEADER_EPOCH.pack_into(buf, position + LEADER_EPOCH_AT, leader_epoch)


def set_log_append_time(buf: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Mark the batch LogAppendTime with ``timestamp_ms`` as its max timestamp; renew its checksum. In place.

    The records keep their own deltas: readers of such a batch take the max timestamp for each of them
    (Kafka `DefaultRecordBatch.setMaxTimestamp`).
    """
    attributes = _ATTRIBUTES.unpack_from(buf, position + ATTRIBUTES_AT)[0] | LOG_APPEND_TIME_FLAG
    _ATTRIBUTES.pack_into(buf, position + ATTRIBUTES_AT, attributes)
    set_max_timestamp(buf, position, timestamp_ms)


def set_max_timestamp(buf: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Write the batch's max timestamp and renew its checksum, in place."""
    _MAX_TIMESTAMP.pack_into(buf, position + MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(buf, position + CRC_AT, compute_crc(buf, position, size_at(buf, position)))
