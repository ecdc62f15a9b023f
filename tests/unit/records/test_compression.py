"""Codecs: Kafka's framings, whole streams only, and never more bytes than allowed."""

import gzip
import itertools
import random
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard

from service.base.errors import CorruptionError
from service.records.batch import CompressionType
from service.records.compression import InflatedTooLarge, compress, decompress
from tests.support.bombs import gzip_bomb

REAL = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
DATA = b"".join(b"%d,EWR,IAH;" % i for i in range(9000)) + random.Random(1).randbytes(5000)
BOMB_BYTES = 64 << 20


def plain_lz4(data: bytes, block_size: int = lz4.frame.BLOCKSIZE_MAX64KB) -> bytes:
    """A frame as Kafka's clients write it: independent blocks, no checksums, no size."""
    return bytes(lz4.frame.compress(data, block_size=block_size, block_linked=False, store_size=False))


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("data", [b"x", DATA, bytes(100_000)], ids=["one byte", "mixed", "zeros"])
def test_data_come_back_and_fit_exactly(codec: CompressionType, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    assert bytes(decompress(codec, memoryview(packed), 10 * len(data))) == data


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("limit", [0, 1, len(DATA) - 1])
def test_a_byte_too_many_is_refused(codec: CompressionType, limit: int) -> None:
    with pytest.raises(InflatedTooLarge):
        decompress(codec, compress(codec, DATA), limit)


@pytest.mark.parametrize("codec", REAL)
def test_a_truncated_stream_never_passes_for_a_whole_one(codec: CompressionType) -> None:
    # Ours carry checksums of blocks, those of Kafka's clients do not.
    for packed in (bytes(compress(codec, DATA)), plain_lz4(DATA))[: 2 if codec is CompressionType.LZ4 else 1]:
        _prove_no_cut_passes(codec, packed)


def _prove_no_cut_passes(codec: CompressionType, packed: bytes) -> None:
    for cut in [*range(40), *range(40, len(packed), 997), len(packed) - 1]:
        try:
            data = decompress(codec, packed[:cut], 1 << 20)
        except CorruptionError:
            continue
        # snappy's framing has no end mark: a cut between two blocks leaves a shorter stream
        assert codec is CompressionType.SNAPPY
        assert DATA.startswith(bytes(data))
        assert len(data) < len(DATA)


@pytest.mark.parametrize("codec", REAL)
def test_garbage_is_corruption(codec: CompressionType) -> None:
    rng = random.Random(7)
    for size in (0, 1, 3, 15, 16, 17, 100, 1000):
        data = rng.randbytes(size)
        with pytest.raises(CorruptionError):
            decompress(codec, data, 1 << 20)


def bombs() -> dict[str, tuple[CompressionType, bytes]]:
    zeros = bytes(1 << 20)
    block = bytes(cramjam.snappy.compress_raw(zeros))
    framed = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + (len(block).to_bytes(4, "big") + block) * 200
    encoder = zstandard.ZstdCompressor().compressobj()
    without_size = encoder.compress(bytes(BOMB_BYTES)) + encoder.flush()
    return {
        "gzip": (CompressionType.GZIP, gzip_bomb(BOMB_BYTES)),
        "gzip in many members": (CompressionType.GZIP, gzip.compress(zeros) * 200),
        "snappy in blocks": (CompressionType.SNAPPY, framed),
        "snappy claiming 4 GiB": (CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 50),
        "lz4": (CompressionType.LZ4, lz4.frame.compress(bytes(BOMB_BYTES), block_linked=False)),
        "lz4 as clients write it": (CompressionType.LZ4, plain_lz4(bytes(BOMB_BYTES))),
        "lz4 in one block": (
            CompressionType.LZ4,
            plain_lz4(bytes((4 << 20) + 1), lz4.frame.BLOCKSIZE_MAX4MB),
        ),
        "zstd": (CompressionType.ZSTD, zstandard.compress(bytes(BOMB_BYTES))),
        "zstd without a size": (CompressionType.ZSTD, without_size),
        "zstd in many frames": (CompressionType.ZSTD, zstandard.compress(zeros) * 200),
    }


BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_the_bound(name: str) -> None:
    codec, data = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(InflatedTooLarge):
            decompress(codec, data, 4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_zstd_frames_of_every_shape_inflate_to_the_same() -> None:
    data = random.Random(3).randbytes(300_000) + bytes(3_000_000)
    shape = zstandard.ZstdCompressionParameters.from_level
    great = shape(3, window_log=26, write_content_size=False)
    linked = shape(3, window_log=26, enable_ldm=True)
    frames = {
        "one": zstandard.compress(data),
        "without a size": zstandard.ZstdCompressor(write_content_size=False).compress(data),
        "several": zstandard.compress(data[:100]) + zstandard.compress(data[100:]),
        "a great window": zstandard.ZstdCompressor(compression_params=great).compress(data),
        "long matches": zstandard.ZstdCompressor(compression_params=linked).compress(data),
        "empty": zstandard.compress(b""),
    }
    for what, frame in frames.items():
        expected = b"" if what == "empty" else data
        assert bytes(decompress(CompressionType.ZSTD, frame, 4 << 20)) == expected, what


def zstd_frames() -> list[tuple[bytes, bytes]]:
    """Frames of every kind and what they inflate to: sized, unsized, with a checksum, empty, skipped."""
    unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False)
    summed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)
    streamed = zstandard.ZstdCompressor().compressobj()
    return [
        (zstandard.ZstdCompressor().compress(DATA), DATA),
        (unsized.compress(DATA), DATA),
        (summed.compress(bytes(300_000)), bytes(300_000)),
        (streamed.compress(DATA) + streamed.flush(), DATA),
        (zstandard.ZstdCompressor().compress(b""), b""),
        (unsized.compress(b""), b""),
        (b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"aside", b""),
    ]


def test_several_zstd_frames_are_one_stream() -> None:
    for (one, first), (other, second) in itertools.product(zstd_frames(), repeat=2):
        assert bytes(decompress(CompressionType.ZSTD, one + other, 1 << 20)) == first + second
        with pytest.raises(CorruptionError):
            decompress(CompressionType.ZSTD, one + other + b"\0", 1 << 20)
        if first + second:
            with pytest.raises(InflatedTooLarge):
                decompress(CompressionType.ZSTD, one + other, len(first + second) - 1)


def test_several_gzip_members_are_one_stream() -> None:
    packed = gzip.compress(DATA) + gzip.compress(b"") + gzip.compress(b"x")
    assert bytes(decompress(CompressionType.GZIP, packed, 1 << 20)) == DATA + b"x"


def test_a_zstd_frame_that_lies_about_its_size_is_refused() -> None:
    packed = bytearray(zstandard.compress(DATA))
    for size in (2**63, 2**31, len(DATA) - 1):
        lying = packed[:4] + b"\xe0" + size.to_bytes(8, "little") + packed[5 + 4 :]
        with pytest.raises(CorruptionError):
            decompress(CompressionType.ZSTD, bytes(lying), 1 << 20)


def test_snappy_is_read_raw_as_well_as_framed() -> None:
    assert (
        bytes(decompress(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA)), len(DATA))) == DATA
    )


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0\0"])
def test_a_snappy_block_length_is_held_against_what_is_there(length: bytes) -> None:
    with pytest.raises(CorruptionError):
        decompress(CompressionType.SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + length, 1 << 20)


def test_lz4_with_linked_blocks_is_refused_as_kafka_does() -> None:
    linked = lz4.frame.compress(DATA, block_linked=True)
    with pytest.raises(CorruptionError, match="depend on each other"):
        decompress(CompressionType.LZ4, linked, 1 << 20)
    assert not lz4.frame.get_frame_info(bytes(compress(CompressionType.LZ4, DATA)))["block_linked"]


@pytest.mark.parametrize("block_size", range(lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB + 1))
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
@pytest.mark.parametrize(
    "flags", [{}, {"block_checksum": True}, {"content_checksum": True}, {"store_size": True}]
)
def test_lz4_frames_of_every_shape_inflate_to_the_same(
    block_size: int, size: int, flags: dict[str, bool]
) -> None:
    shape = {"block_linked": False, "store_size": False, "block_size": block_size, **flags}
    for data in (bytes(size), random.Random(size).randbytes(size), (DATA * 80)[:size]):
        frame = lz4.frame.compress(data, **shape)
        assert bytes(decompress(CompressionType.LZ4, frame, size)) == data
        assert bytes(decompress(CompressionType.LZ4, memoryview(frame), 8 << 20)) == data
        assert bytes(decompress(CompressionType.LZ4, frame + frame, 16 << 20)) == data + data
        if size:
            with pytest.raises(InflatedTooLarge):
                decompress(CompressionType.LZ4, frame, size - 1)


def test_a_changed_byte_of_a_plain_lz4_frame_is_never_inflated_otherwise_than_by_the_frame_reader() -> None:
    frame = plain_lz4(DATA[:3000])
    for position in range(len(frame)):
        for bit in (1, 16, 128):
            changed = bytearray(frame)
            changed[position] ^= bit
            try:
                expected = bytes(cramjam.lz4.decompress(changed))
            except cramjam.DecompressionError:
                expected = None
            try:
                found = bytes(decompress(CompressionType.LZ4, changed, 1 << 20))
            except CorruptionError:
                found = None
            # Flags that ask for linked blocks are refused before.
            assert found == expected or (position == 4 and found is None), (position, bit)


@pytest.mark.parametrize("blocks", [1023, 1024, 1025, 50_000])
def test_an_lz4_frame_may_have_any_number_of_blocks(blocks: int) -> None:
    one = (1 | 1 << 31).to_bytes(4, "little") + b"x"
    frame = plain_lz4(b"")[:7] + one * blocks + bytes(4)
    assert bytes(decompress(CompressionType.LZ4, frame, blocks)) == b"x" * blocks


@pytest.mark.parametrize("word", [0x7FFF_FFFF, 0xFFFF_FFFF, 0x8001_0001, 65_537, 1])
def test_an_lz4_block_length_is_held_against_what_is_there(word: int) -> None:
    frame = plain_lz4(b"")[:7] + word.to_bytes(4, "little") + bytes(100_000)
    with pytest.raises(CorruptionError):
        decompress(CompressionType.LZ4, frame, 1 << 20)
