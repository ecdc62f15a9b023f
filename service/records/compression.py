"""Bounded compression and decompression of a batch's records, as Kafka's clients frame them.

- gzip: one or more members.
- snappy: written in snappy-java's framing (a 16-byte header, then blocks with big-endian lengths), as Java
  clients do; read in that framing or as one raw block, as librdkafka writes it (Kafka `SnappyCompression`).
- lz4: the frame format with independent blocks only: Kafka's readers refuse linked ones
  (`Lz4BlockInputStream`).
- zstd: frames, with or without a content size.

No function allocates more than a small multiple of ``max_size``, whatever sizes the input claims. The codecs
release the GIL while they work.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import zstandard

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import Codec

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_LENGTH: Final = struct.Struct(">i")
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCKS_INDEPENDENT: Final = 0x20
_FIRST_GUESS: Final = 64 * 1024
_OUT_OF_SPACE: Final = "write whole buffer"
"""What Rust's `write_all` says, through cramjam, when the output buffer is full."""
_GZIP_WINDOW_BITS: Final = 31
_ZSTD_KEPT_WINDOW: Final = 8 << 20
"""Frames with a larger window are read too, with memory that is given back."""
_thread: Final = threading.local()
DEFAULT_LEVELS: Final = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's: ``compression.gzip.level`` (-1, which is zlib's 6), ``compression.{lz4,zstd}.level``."""


class InflatedTooLarge(CorruptionError):
    """The data inflate beyond the bound given; nothing beyond it was kept."""

    def __init__(self, codec: Codec, max_size: int) -> None:
        super().__init__(f"{codec.name.lower()} data inflate to more than {max_size} bytes")


def decompress(codec: Codec, data: Buffer, max_size: int) -> Buffer:
    """The bytes that ``data`` inflate to, at most ``max_size`` of them.

    Raises `InflatedTooLarge` beyond that and `CorruptionError` for anything that is not one whole stream. For
    `Codec.NONE` the answer is ``data`` itself.
    """
    if codec is Codec.NONE:
        if len(data) > max_size:
            raise InflatedTooLarge(codec, max_size)
        return data
    try:
        return _DECOMPRESSORS[codec](data, max_size)
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, OSError) as error:
        raise CorruptionError(f"broken {codec.name.lower()} data: {error}") from None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """``data`` in ``codec``'s framing; ``level`` defaults to Kafka's. `Codec.NONE` returns ``data``."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    if codec is Codec.GZIP:
        return zlib.compress(data, level, wbits=_GZIP_WINDOW_BITS)
    if codec is Codec.SNAPPY:
        return _compress_snappy(data)
    if codec is Codec.LZ4:
        encoder = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        encoder.compress(bytes(data))
        return bytes(encoder.finish())
    if codec is Codec.ZSTD:
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
            raise InflatedTooLarge(Codec.GZIP, max_size)
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
    """One raw snappy block; the size it claims is held against ``left`` before anything is allocated."""
    if cramjam.snappy.decompress_raw_len(block) > left:
        raise InflatedTooLarge(Codec.SNAPPY, max_size)
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_lz4(data: Buffer, max_size: int) -> memoryview:
    head = bytes(data[:5])
    if len(head) < 5 or head[:4] != _LZ4_MAGIC:
        raise CorruptionError("broken lz4 data: no frame magic")
    if not head[4] & _LZ4_BLOCKS_INDEPENDENT:
        raise CorruptionError(
            "broken lz4 data: its blocks depend on each other, which Kafka's readers refuse"
        )
    return _inflate_into(Codec.LZ4, cramjam.lz4.decompress_into, data, 0, max_size)


def _decompress_zstd(data: Buffer, max_size: int) -> Buffer:
    claimed = zstandard.frame_content_size(data)
    if claimed <= max_size:
        guess = claimed if claimed >= 0 else min(max_size, max(_FIRST_GUESS, 4 * len(data)))
        with contextlib.suppress(zstandard.ZstdError):
            # One frame, as clients write it: a context that is used again makes this three times as fast.
            return _zstd_context().decompress(data, max_output_size=guess, allow_extra_data=False)
    # Several frames, more than was guessed, a great window, or broken: this tells them apart.
    return _inflate_into(Codec.ZSTD, cramjam.zstd.decompress_into, data, claimed, max_size)


def _zstd_context() -> zstandard.ZstdDecompressor:
    """This thread's: contexts are not for several threads at once."""
    context: zstandard.ZstdDecompressor | None = getattr(_thread, "zstd", None)
    if context is None:
        context = _thread.zstd = zstandard.ZstdDecompressor(max_window_size=_ZSTD_KEPT_WINDOW)
    return context


def _inflate_into(
    codec: Codec, decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, guess: int, max_size: int
) -> memoryview:
    """Into a buffer that grows until the stream fits or ``max_size`` is reached.

    Untouched pages of the buffer cost nothing, so a generous guess is cheaper than a second round.
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


_DECOMPRESSORS: Final[dict[Codec, Callable[[Buffer, int], Buffer]]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
