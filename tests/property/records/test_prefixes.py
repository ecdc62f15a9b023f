"""The first bytes of compressed records are those of the whole, in all lives, or there are none."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import lz4.frame
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.records import prefix_kernel
from service.records.batch import CompressionType
from service.records.compression import XERIAL_MAGIC, compress, decompress, first_bytes
from service.records.erasure import filter_hash
from service.records.scan import scan_batches
from service.remote.format.key_filter import KeyFilter, KeyFilterBuilder
from tests.support.compaction import Pair, make_batch
from tests.support.hostile_batches import CONTROL, Fields, sealed
from tests.support.kernels import interpreted

LIVES: Final[list[Any]] = [
    prefix_kernel,
    *(interpreted(with_cython=found)["prefix_kernel"] for found in (True, False)),
]
MOST: Final = 1 << 20
SNAPPY, LZ4 = CompressionType.SNAPPY, CompressionType.LZ4


def xerial(data: bytes, block_bytes: int) -> bytes:
    """As snappy-java frames it."""
    found = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block_bytes):
        block = bytes(snappy.compress(data[at : at + block_bytes]))
        found += struct.pack(">i", len(block)) + block
    return found


def lz4_frame(**options: Any) -> Callable[[bytes], bytes]:
    return lambda data: bytes(lz4.frame.compress(data, block_linked=False, **options))


FRAMES: Final[dict[str, tuple[CompressionType, Callable[[bytes], bytes]]]] = {
    "lz4": (LZ4, lz4_frame(store_size=False)),
    "lz4 with checksums and a size": (LZ4, lz4_frame(block_checksum=True, content_checksum=True)),
    "lz4, the hardest": (LZ4, lz4_frame(compression_level=12, block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
    "ours": (LZ4, lambda data: bytes(compress(LZ4, data))),
    "snappy, one block": (SNAPPY, lambda data: bytes(snappy.compress(data))),
    "snappy-java's": (SNAPPY, lambda data: xerial(data, 1 << 15)),
    "snappy-java's in small blocks": (SNAPPY, lambda data: xerial(data, 30)),
}
contents = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from((b"customer-", b"abc", bytes(40), b"\xff\x00", b"x" * 300)), max_size=400).map(
        b"".join
    ),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 9000)).map(lambda both: both[0] * both[1]),
    st.tuples(st.randoms(use_true_random=False), st.integers(0, 70_000)).map(
        lambda both: both[0].randbytes(both[1])
    ),
)


def started(codec: int, data: bytes, room: int) -> bytes | None:
    """What all lives agree on."""
    answers = []
    for life in LIVES:
        out = bytearray(b"?" * room)
        found = life.inflate_start(codec, data, out)
        assert -1 <= found <= room
        answers.append(None if found < 0 else bytes(out[:found]))
    assert answers[1:] == answers[:-1]
    return answers[0]


def whole(codec: CompressionType, data: bytes) -> bytes | None:
    try:
        return bytes(decompress(codec, data, MOST))
    except CorruptionError:
        return None


@pytest.mark.parametrize("kind", FRAMES)
@settings(max_examples=60, deadline=None)
@given(data=contents, room=st.sampled_from((1, 5, 64, 1024)))
def test_the_first_bytes_are_those_of_the_whole(kind: str, data: bytes, room: int) -> None:
    codec, framed = FRAMES[kind]
    found = started(codec, framed(data), room)
    if not data:
        assert found in (None, b"")
    elif "small blocks" in kind:
        assert found == data[: min(room, 30)]
    else:
        assert found == data[:room]


@pytest.mark.parametrize("kind", FRAMES)
@settings(max_examples=150, deadline=None)
@given(
    data=contents,
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.none() | st.integers(0, 400),
    room=st.sampled_from((1, 64, 1024)),
)
def test_all_lives_say_of_damaged_data_what_the_library_says_or_nothing(
    kind: str, data: bytes, edits: list[tuple[int, int]], cut: int | None, room: int
) -> None:
    codec, framed = FRAMES[kind]
    damaged = bytearray(framed(data))
    for at, byte in edits:
        damaged[at % len(damaged)] = byte
    frame = bytes(damaged[:cut])
    found, library = started(codec, frame, room), whole(codec, frame)
    if found is not None and library is not None:
        assert library.startswith(found)
        assert len(found) == min(room, len(library)) or "snappy-java" in kind or "lz4" in kind


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.sampled_from(CompressionType), st.sampled_from((1, 64)))
def test_any_bytes_are_answered_alike(data: bytes, codec: CompressionType, room: int) -> None:
    """Behind the head of a frame and without it."""
    for head in (b"", b"\x04\x22\x4d\x18\x60\x40\x82", XERIAL_MAGIC + bytes(8)):
        frame = head + data
        found, library = started(codec, frame, room), whole(codec, frame)
        if found is not None and library is not None:
            assert library.startswith(found)


def test_data_that_expand_without_end_give_what_there_is_room_for() -> None:
    """A block of 16 KB that claims four million bytes, and a copy of snappy's that claims four billion."""
    block = b"\x1fA\x01\x00" + b"\xff" * 16_400 + b"\x00\x50AAAAA"
    frame = b"\x04\x22\x4d\x18\x60\x70\x73" + struct.pack("<I", len(block)) + block + bytes(4)
    assert started(LZ4, frame, 64) == b"A" * 64
    assert started(SNAPPY, b"\xff\xff\xff\xff\x0f\x00A" + b"\xfe\x01\x00" * 9000, 64) == b"A" * 64


REFUSED: Final = {
    "a block that reaches back before its start": (LZ4, b"\x10A\x02\x00\x00"),
    "a distance of nothing": (LZ4, b"\x10A\x00\x00\x00"),
    "literals beyond the block": (LZ4, b"\x50A"),
    "a length without an end": (LZ4, b"\xf0\xff\xff\xff"),
    "a match's length without an end": (LZ4, b"\x1fA\x01\x00\xff\xff"),
    "a block that ends in a match": (LZ4, b"\x10A\x01\x00"),
    "half a distance": (LZ4, b"\x10A\x01"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_block_that_is_none_is_left_to_the_library(kind: str) -> None:
    codec, block = REFUSED[kind]
    frame = b"\x04\x22\x4d\x18\x60\x40\x82" + struct.pack("<I", len(block)) + block + bytes(4)
    assert started(codec, frame, 64) is None


@pytest.mark.parametrize(
    ("at", "byte"),
    [(4, 0x40), (4, 0x61), (4, 0x62), (4, 0xA0), (5, 0x30), (5, 0xC0), (5, 0x41), (0, 0x02)],
    ids=(
        "linked",
        "a dictionary",
        "reserved",
        "version 2",
        "a size too small",
        "reserved too",
        "and",
        "legacy",
    ),
)
def test_an_unusual_head_is_left_to_the_library(at: int, byte: int) -> None:
    frame = bytearray(FRAMES["lz4"][1](b"some records"))
    frame[at] = byte
    assert started(LZ4, bytes(frame), 64) is None


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("size", [0, 10, 5000, 3 << 20])
def test_first_bytes_of_each_codec(codec: CompressionType, size: int) -> None:
    data = b"".join(b"%d " % number for number in range(size // 5))
    found = first_bytes(codec, compress(codec, data), 100)
    assert bytes(found or b"")[:100] == data[:100]


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.ZSTD])
def test_damaged_data_of_other_codecs_have_no_first_bytes(codec: CompressionType) -> None:
    data = bytearray(compress(codec, bytes(range(256)) * 9000 + zlib.compress(b"x") * 8000))
    data += bytes(1 << 16)
    data[12:20] = b"\xff" * 8
    assert first_bytes(codec, bytes(data), 100) in (None, b"")


def test_a_window_beyond_the_bound_is_left_to_the_reader_of_whole_frames() -> None:
    """Of a frame that claims 512 MiB of window nothing is inflated, and nothing allocated."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = writer.compress(b"".join(b"%x" % (n * 2_654_435_761) for n in range(60_000))) + writer.flush()
    assert len(data) > 1 << 16
    assert first_bytes(CompressionType.ZSTD, data, 100) is None


# -- batches of one record


def built(log: bytes, bound: int = MOST) -> KeyFilterBuilder:
    builder = KeyFilterBuilder(len(log), 1 << 20, bound)
    builder.add(memoryview(log), scan_batches(log))
    return builder


@settings(max_examples=200, deadline=None)
@given(
    codec=st.sampled_from(CompressionType),
    key=st.none() | st.binary(max_size=40) | st.integers(900, 1500).map(lambda size: b"k" * size),
    value=contents,
    stamp=st.none() | st.just(1_700_000_000_000),
)
def test_the_key_of_a_single_record_is_in_the_filter(
    codec: CompressionType, key: bytes | None, value: bytes, stamp: int | None
) -> None:
    log = make_batch(5, [Pair(key, value)], codec=codec, log_append_time=stamp)
    builder = built(log)
    assert builder.keyed_record_count == (key is not None)
    section = builder.finish()
    assert bool(section) == (key is not None)
    if key is not None:
        assert KeyFilter.open(section).may_have(filter_hash(key))
        assert sum(map(int.bit_count, section)) == 8


def damaged_single(codec: CompressionType, attributes: int = 0) -> bytes:
    """A batch of one record whose compressed bytes are damaged at their end, and sealed as they are."""
    record = b"\xc0\x3e\x00\x00\x00\x06key\xb0\x3e" + b"".join(b"%d " % n for n in range(990)) + b"\x00"
    payload = bytes(compress(codec, record))
    fields = Fields(0, 0, 0, 2, 0, codec | attributes, 0, 1000, 1000, -1, -1, -1, 1)
    return sealed(fields, payload[:-400] + b"\xff" * 400)


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.SNAPPY, LZ4])
def test_a_key_is_known_whatever_comes_after_it(codec: CompressionType) -> None:
    """No reader has the record, but none misses its key, and others' keys are known."""
    builder = built(damaged_single(codec) + make_batch(1, [Pair(b"later", b"")]))
    assert builder.keyed_record_count == 2
    key_filter = KeyFilter.open(builder.finish())
    assert key_filter.may_have(filter_hash(b"later"))


@pytest.mark.parametrize("codec", [one for one in CompressionType if one])
def test_a_marker_that_is_compressed_leaves_no_filter(codec: CompressionType) -> None:
    """No broker writes one, damaged or whole."""
    assert built(damaged_single(codec, CONTROL)).keyed_record_count is None


def test_a_single_record_that_inflates_beyond_the_bound_has_a_known_key() -> None:
    log = make_batch(0, [Pair(b"key", bytes(200_000))], codec=LZ4)
    assert built(log, 50_000).keyed_record_count == 1
