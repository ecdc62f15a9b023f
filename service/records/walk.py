"""Walk over the batches of a log by their headers, without reading unwanted records. [P]

A callable reads the bytes, in chunks. A batch larger than a chunk is checksummed piece by piece, so a wrong
length costs no memory. Used by lookups on the loop (a few KiB from an indexed position), by recovery on its
threads and by the dump tools (whole files). `records.scan` verifies in bulk; `batch.iter_headers` walks bytes
in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import (
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MIN_BATCH_LENGTH,
    BatchHeader,
    read_header,
)

LOOKUP_BYTES: Final = 8192
"""Two index intervals and a header: one read of this size answers most lookups."""
CHUNK_BYTES: Final = 1 << 20

_PLACE: Final = struct.Struct(">qi11xi")  # base offset, batch length, last offset delta
_SEARCHED: Final = struct.Struct(">qiib")  # base offset, batch length, leader epoch, magic
_MAGIC_BYTE: Final = bytes([MAGIC])
_MAX_OFFSETS: Final = 2**31
"""Upper limit of the distance between two offsets of one segment."""

Read = Callable[[int, int], Buffer]
"""(size, position) -> bytes from there on, fewer than `size` at the end only; raises `StorageError`."""


class BatchPlace(NamedTuple):
    """Place of a batch in its segment; offsets inclusive, sizes in bytes."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def find_offset(read: Read, offset: int, position: int, end: int, name: object = "log") -> BatchPlace | None:
    """Return the first batch from `position` on whose last offset is not below `offset`, or None.

    Raises `CorruptionError`, with `name`, for anything but a batch.
    """
    chunk: Buffer = b""
    start = position
    while position < end:
        at = position - start
        if at + _PLACE.size > len(chunk):
            start, at = position, 0
            chunk = read(min(LOOKUP_BYTES, end - position), position)
            if len(chunk) < _PLACE.size:
                raise CorruptionError(f"{name}: no whole batch at position {position}")
        base_offset, length, delta = _PLACE.unpack_from(chunk, at)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE or delta < 0 or position + size > end:
            raise CorruptionError(f"{name}: no whole batch at position {position}")
        if base_offset + delta >= offset:
            return BatchPlace(position, size, base_offset, base_offset + delta)
        position += size
    return None


def last_place(data: Buffer) -> BatchPlace:
    """Return the last of the batches that `data` begins with, by their headers alone.

    `CorruptionError` if there is none, or if the bytes end within a header.
    """
    position, size, base_offset, delta = 0, 0, -1, -1
    while position + size < len(data):
        position += size
        if position + _PLACE.size > len(data):
            raise CorruptionError(f"no whole batch at position {position}")
        base_offset, length, delta = _PLACE.unpack_from(data, position)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE or delta < 0:
            raise CorruptionError(f"no whole batch at position {position}")
    if not size:
        raise CorruptionError("no batch")
    return BatchPlace(position, size, base_offset, base_offset + delta)


def iter_batches(
    read: Read, position: int, end: int, *, name: object = "log", chunk_bytes: int = LOOKUP_BYTES
) -> Iterator[BatchHeader]:
    """Yield the headers of the batches in ``[position, end)``; `BatchHeader.position` is that in the log.

    Raises `CorruptionError` at a torn or malformed batch; the headers yielded before are valid.
    """
    for header, _, _ in _walk(read, position, end, chunk_bytes, name):
        yield header


def iter_verified(read: Read, end: int, name: object = "log") -> Iterator[BatchHeader]:
    """Yield the headers of the whole log, each batch's checksum verified; errors as in `iter_batches`."""
    for header, chunk, start in _walk(read, 0, end, CHUNK_BYTES, name):
        if _crc(read, header, chunk, start, name) != header.crc:
            raise CorruptionError(f"{name}: wrong checksum of the batch at position {header.position}")
        yield header


def read_verified(read: Read, position: int, end: int, name: object = "log") -> BatchHeader:
    """Return the header of the batch at `position`, its checksum verified, piece by piece if it is large.

    Raises `CorruptionError` if the batch is torn or malformed.
    """
    for header, chunk, start in _walk(read, position, end, CHUNK_BYTES, name):
        if _crc(read, header, chunk, start, name) != header.crc:
            raise CorruptionError(f"{name}: wrong checksum of the batch at position {header.position}")
        return header
    raise CorruptionError(f"{name}: nothing is at position {position}")


def find_sound(read: Read, position: int, end: int, least_offset: int) -> int | None:
    """Return the first position in ``[position, end)`` of a whole batch with a right checksum and offsets
    from `least_offset` on, or None.

    Distinguishes damage from a torn end: nothing was written after a torn end.
    """
    while position + HEADER_SIZE <= end:
        chunk = bytes(read(min(CHUNK_BYTES, end - position), position))
        if len(chunk) < HEADER_SIZE:
            return None
        at = chunk.find(_MAGIC_BYTE, MAGIC_AT)
        while at >= 0 and at - MAGIC_AT + _SEARCHED.size <= len(chunk):
            found = position + at - MAGIC_AT
            if _is_sound(read, chunk, at - MAGIC_AT, found, end, least_offset):
                return found
            at = chunk.find(_MAGIC_BYTE, at + 1)
        position += max(len(chunk) - HEADER_SIZE + 1, 1)
    return None


def _is_sound(read: Read, chunk: bytes, at: int, position: int, end: int, least_offset: int) -> bool:
    base_offset, length, _, _ = _SEARCHED.unpack_from(chunk, at)
    if not 0 <= base_offset - least_offset < _MAX_OFFSETS:
        return False
    if length < MIN_BATCH_LENGTH or position + length + LOG_OVERHEAD > end:
        return False
    try:
        header = at_position(read_header(read(HEADER_SIZE, position)), position)
        return _crc(read, header, memoryview(b""), position, "log") == header.crc
    except CorruptionError:
        return False


def _walk(
    read: Read, position: int, end: int, chunk_bytes: int, name: object
) -> Iterator[tuple[BatchHeader, memoryview, int]]:
    """Yield (header, the chunk it was read from, that chunk's position in the log)."""
    chunk = memoryview(b"")
    start = position
    while position < end:
        at = position - start
        torn = at + HEADER_SIZE > len(chunk)
        # A batch that fits a chunk is read in one piece, for callers that parse its records.
        if not torn and chunk_bytes == CHUNK_BYTES:
            size = _PLACE.unpack_from(chunk, at)[1] + LOG_OVERHEAD
            torn = at + size > len(chunk) and size <= chunk_bytes
        if torn:
            start, at = position, 0
            chunk = memoryview(read(min(chunk_bytes, end - position), position))
        try:
            header = at_position(read_header(chunk, at), position)
        except CorruptionError as e:
            raise CorruptionError(f"{name}: no batch at position {position}: {e}") from e
        if position + header.size > end:
            raise CorruptionError(f"{name}: the batch at position {position} is cut at {end}")
        yield header, chunk, start
        position += header.size


def at_position(header: BatchHeader, position: int) -> BatchHeader:
    """Return `header` with another position, in a fifth of the time of `_replace`."""
    return tuple.__new__(BatchHeader, (position, *header[1:]))


def _crc(read: Read, header: BatchHeader, chunk: memoryview, start: int, name: object) -> int:
    """Return the CRC32C of a batch that lies in `chunk` wholly or in part."""
    at = header.position - start
    crc = crc32c(chunk[at + CRC_START : at + header.size])
    position, end = max(start + len(chunk), header.position + CRC_START), header.position + header.size
    while position < end:
        piece = read(min(CHUNK_BYTES, end - position), position)
        if not piece:
            raise CorruptionError(f"{name} ends at {position}, within a batch")
        crc = crc32c(piece, crc)
        position += len(piece)
    return crc
