"""Bounded compression and decompression of a batch's records, as Kafka's clients frame them. [P]

- gzip: one or more members.
- snappy: written in snappy-java's framing (a 16-byte header, then blocks with big-endian lengths), as by Java
  clients; read in that framing or as one raw block, as librdkafka writes it (Kafka `SnappyCompression`).
- lz4: the frame format with independent blocks only; Kafka's readers refuse linked ones
  (`Lz4BlockInputStream`).
- zstd: one or more frames, with or without a content size.

No function allocates more than a small multiple of ``max_size``, whatever sizes the input claims. The codecs
release the GIL while they work.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import cramjam
import zstandard

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import CompressionType
from service.records.prefix_kernel import inflate_start

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_LENGTH: Final = struct.Struct(">i")
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCKS_INDEPENDENT: Final = 0x20
_LZ4_PLAIN: Final = 0x60
"""Flags of version 1 with independent blocks and no checksums or sizes, as Kafka's clients write."""
_LZ4_HEADER_BYTES: Final = 7
_LZ4_WORD: Final = struct.Struct("<I")
_LZ4_IS_RAW: Final = 1 << 31
_LZ4_MOST_BLOCKS: Final = 1024
"""Frames of more blocks, which may be hostile, go to the frame reader, which releases the GIL."""
_FIRST_GUESS: Final = 64 * 1024
_OUT_OF_SPACE: Final = "write whole buffer"
"""Error text of Rust's `write_all`, through cramjam, for a full output buffer."""
_GZIP_WINDOW_BITS: Final = 31
_ZSTD_KEPT_WINDOW: Final = 8 << 20
"""Frames with a larger window are read with memory that is freed afterwards."""
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_RUN: Final = 1
"""Type of a block that is one repeated byte."""
_ZSTD_MOST_BLOCKS: Final = 1024
"""Frames of more blocks, maybe hostile, go to the general reader. A block inflates to 128 KiB at most."""
_ZSTD_LARGE: Final = 64 << 10
"""Size of a frame, compressed or not, of which a part is read as a stream."""
_idle_contexts: Final[list[zstandard.ZstdDecompressor]] = []
"""Unused contexts; there are as many contexts as were ever used at the same time."""
DEFAULT_LEVELS: Final = {CompressionType.GZIP: 6, CompressionType.LZ4: 9, CompressionType.ZSTD: 3}
"""Kafka's defaults: ``compression.gzip.level`` (-1, which is zlib's 6), ``compression.{lz4,zstd}.level``."""


class InflatedTooLarge(CorruptionError):
    """Data that inflate beyond the given bound; nothing beyond it was kept."""

    def __init__(self, codec: CompressionType, max_size: int) -> None:
        super().__init__(f"{codec.name.lower()} data inflate to more than {max_size} bytes")


def decompress(codec: CompressionType, data: Buffer, max_size: int) -> Buffer:
    """Return the inflated ``data``, of at most ``max_size`` bytes.

    Raises `InflatedTooLarge` beyond that, and `CorruptionError` for anything but one whole stream. Returns
    ``data`` itself for `CompressionType.NONE`.
    """
    if codec is CompressionType.NONE:
        if len(data) > max_size:
            raise InflatedTooLarge(codec, max_size)
        return data
    try:
        return _DECOMPRESSORS[codec](data, max_size)
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, OSError) as error:
        raise CorruptionError(f"broken {codec.name.lower()} data: {error}") from None


def first_bytes(codec: CompressionType, data: Buffer, size: int) -> Buffer | None:
    """Return the first ``size`` bytes, or fewer, that ``data`` inflate to.

    What comes after them may be damaged. None, or fewer than there are, where `decompress` has to say what
    the data are. Of zstd there may be more: less than a block of it is not inflated.
    """
    if codec is CompressionType.NONE:
        return data[:size]
    if codec is CompressionType.GZIP:
        try:
            return zlib.decompressobj(wbits=_GZIP_WINDOW_BITS).decompress(data, size)
        except zlib.error:
            return None
    if codec is CompressionType.ZSTD:
        return _start_of_zstd(data, size)
    start = memoryview(bytearray(size))
    found = inflate_start(codec, data, start)
    return start[:found] if found >= 0 else None


def compress(codec: CompressionType, data: Buffer, level: int | None = None) -> Buffer:
    """Return ``data`` compressed in ``codec``'s framing; ``level`` defaults to Kafka's."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    if codec is CompressionType.GZIP:
        return zlib.compress(data, level, wbits=_GZIP_WINDOW_BITS)
    if codec is CompressionType.SNAPPY:
        return _compress_snappy(data)
    if codec is CompressionType.LZ4:
        encoder = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        encoder.compress(bytes(data))
        return bytes(encoder.finish())
    if codec is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(data)
    return data


def _decompress_gzip(data: Buffer, max_size: int) -> bytes:
    parts: list[bytes] = []
    left = max_size
    rest = data
    while rest or not parts:
        member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        part = member.decompress(rest, left + 1)
        left -= len(part)
        if left < 0:
            raise InflatedTooLarge(CompressionType.GZIP, max_size)
        if not member.eof:
            raise CorruptionError("broken gzip data: it ends before its trailer")
        parts.append(part)
        rest = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: Buffer, max_size: int) -> bytes:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _snappy_block(data, max_size, max_size)
    parts = []
    left = max_size
    position = len(_XERIAL_HEADER)
    view = memoryview(data)
    while position < len(view):
        if position + 4 > len(view):
            raise CorruptionError("broken snappy data: it ends inside a block length")
        length: int = _BLOCK_LENGTH.unpack_from(view, position)[0]
        position += 4
        if length <= 0 or length > len(view) - position:
            raise CorruptionError(
                f"broken snappy data: a block of {length} bytes, {len(view) - position} left"
            )
        part = _snappy_block(view[position : position + length], left, max_size)
        left -= len(part)
        parts.append(part)
        position += length
    return b"".join(parts)


def _snappy_block(block: Buffer, left: int, max_size: int) -> bytes:
    """Inflate one raw snappy block; its claimed size is checked against ``left`` before any allocation."""
    if cramjam.snappy.decompress_raw_len(block) > left:
        raise InflatedTooLarge(CompressionType.SNAPPY, max_size)
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_lz4(data: Buffer, max_size: int) -> Buffer:
    head = bytes(data[:5])
    if len(head) < 5 or head[:4] != _LZ4_MAGIC:
        raise CorruptionError("broken lz4 data: no frame magic")
    if not head[4] & _LZ4_BLOCKS_INDEPENDENT:
        raise CorruptionError(
            "broken lz4 data: its blocks depend on each other, which Kafka's readers refuse"
        )
    if head[4] == _LZ4_PLAIN and (block_bytes := _lz4_block_bytes(bytes(data[:_LZ4_HEADER_BYTES]))):
        inflated = _lz4_blocks(memoryview(data), block_bytes, max_size)
        if inflated is not None:
            return inflated
    # Checksums, a size, several frames, too large, or broken: the frame reader distinguishes these.
    return _inflate_into(CompressionType.LZ4, cramjam.lz4.decompress_into, data, 0, max_size)


@lru_cache(maxsize=16)
def _lz4_block_bytes(header: bytes) -> int:
    """Return the maximal block size of a frame with this header; 0 if the header is malformed."""
    try:
        cramjam.lz4.decompress(header + bytes(_LZ4_WORD.size))
    except cramjam.DecompressionError:
        return 0
    return 1 << 2 * (header[5] >> 4 & 7) + 8


def _lz4_blocks(frame: memoryview, block_bytes: int, max_size: int) -> Buffer | None:
    """Inflate the blocks of a plain frame, in half to two thirds of the time of the frame reader.

    Returns None if they are not one whole frame of up to `max_size` bytes.
    """
    parts: list[Buffer] = []
    left = max_size
    position, end = _LZ4_HEADER_BYTES, len(frame) - _LZ4_WORD.size
    while position <= end and len(parts) <= _LZ4_MOST_BLOCKS:
        word: int = _LZ4_WORD.unpack_from(frame, position)[0]
        position += _LZ4_WORD.size
        if word == 0:
            if position < len(frame):
                return None
            return parts[0] if len(parts) == 1 else b"".join(parts)
        length = word & ~_LZ4_IS_RAW
        if length > block_bytes or length > end - position:
            return None
        block = frame[position : position + length]
        position += length
        part = block if word & _LZ4_IS_RAW else _lz4_block(block, min(block_bytes, left))
        if part is None or len(part) > left:
            return None
        left -= len(part)
        parts.append(part)
    return None


def _lz4_block(block: memoryview, most: int) -> memoryview | None:
    size = min(most, 8 * len(block))
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: cramjam.lz4.decompress_block_into(block, out, output_len=size)]
        except cramjam.DecompressionError:
            if size == most:
                return None
        size = most


def _decompress_zstd(data: Buffer, max_size: int) -> Buffer:
    claimed = zstandard.frame_content_size(data)
    if claimed > max_size:
        raise InflatedTooLarge(CompressionType.ZSTD, max_size)
    guess = claimed if claimed >= 0 else min(max_size, max(_FIRST_GUESS, 4 * len(data)))
    # zstandard reports trailing data only after a frame with a content size above 0.
    if claimed > 0 or _is_one_zstd_frame(data):
        with contextlib.suppress(zstandard.ZstdError):
            # One frame, as clients write it: a reused context is three times as fast.
            return _inflate_frame(data, guess)
    # Several frames, more than guessed, a large window, or broken: the general reader distinguishes these.
    return _inflate_into(CompressionType.ZSTD, cramjam.zstd.decompress_into, data, claimed, max_size)


def _is_one_zstd_frame(data: Buffer) -> bool:
    """Return whether the first frame ends where `data` does, by its block sizes (RFC 8878, 3.1.1).

    Also False for too many blocks and for a skippable frame.
    """
    try:
        position = zstandard.frame_header_size(data)
    except zstandard.ZstdError:
        return False
    for _ in range(_ZSTD_MOST_BLOCKS):
        if position + _ZSTD_BLOCK_HEADER_BYTES > len(data):
            return False
        header = int.from_bytes(data[position : position + _ZSTD_BLOCK_HEADER_BYTES], "little")
        is_run = header >> 1 & 3 == _ZSTD_RUN
        position += _ZSTD_BLOCK_HEADER_BYTES + (1 if is_run else header >> 3)
        if header & 1:
            return position + 4 * zstandard.get_frame_parameters(data).has_checksum == len(data)
    return False


def _inflate_frame(data: Buffer, max_size: int) -> bytes:
    """Inflate one frame with a context that no other thread uses: pop and append are atomic."""
    try:
        context = _idle_contexts.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_KEPT_WINDOW)
    try:
        return context.decompress(data, max_output_size=max_size, allow_extra_data=False)
    finally:
        _idle_contexts.append(context)


def _start_of_zstd(data: Buffer, size: int) -> bytes | None:
    try:
        context = _idle_contexts.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_KEPT_WINDOW)
    try:
        if len(data) < _ZSTD_LARGE and zstandard.frame_content_size(data) <= _ZSTD_LARGE:
            # A stream costs more to set up than so little costs to inflate.
            return context.decompress(data, max_output_size=_ZSTD_LARGE)
        with context.stream_reader(data) as reader:
            return reader.read(size)
    except zstandard.ZstdError:
        return None
    finally:
        _idle_contexts.append(context)


def _inflate_into(
    codec: CompressionType,
    decompress_into: Callable[[Buffer, bytearray], int],
    data: Buffer,
    guess: int,
    max_size: int,
) -> memoryview:
    """Inflate into a buffer that grows until the stream fits or ``max_size`` is reached.

    Untouched pages of the buffer cost nothing, so a generous guess is cheaper than a second attempt.
    """
    size = min(max_size, max(_FIRST_GUESS, 4 * len(data), guess))
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: decompress_into(data, out)]
        except cramjam.DecompressionError as error:
            if _OUT_OF_SPACE not in str(error):
                raise
        if size == max_size:
            raise InflatedTooLarge(codec, max_size)
        size = min(max_size, 8 * size)


_DECOMPRESSORS: Final[dict[CompressionType, Callable[[Buffer, int], Buffer]]] = {
    CompressionType.GZIP: _decompress_gzip,
    CompressionType.SNAPPY: _decompress_snappy,
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
}
