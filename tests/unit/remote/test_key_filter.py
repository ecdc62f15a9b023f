"""Filters of keys: Parquet's bits, how large they are, and that they never say no to what is there."""

from __future__ import annotations

import struct
from array import array

import pytest

from service.base.errors import CorruptionError
from service.records.batch import CompressionType, read_header
from service.records.compaction import filling_batch, sealed_batch
from service.records.erasure import filter_hash
from service.records.filter_kernel import insert
from service.records.scan import scan_batches
from service.remote.format.key_filter import KeyFilter, KeyFilterBuilder, LeastTimestamps
from tests.support.compaction import START_MS, Pair, make_batch, make_marker

BOUND = 64 << 20

OF_PARQUET = {
    4: "0000100000020000000400008000000000020000000000800000001000000008",
    5: "0000800000000010010000000000001020000000000020000000004000000800",
    7: "0400000000004000000040000000080000000004002000001000000002000000",
    10: "0000200000080000000100000000002000008000000000080001000000100000",
}
"""Blocks that are not zero in apache/parquet-testing's bloom_filter.xxhash.bin: 1024 bytes for four keys."""


def built(log: bytes, log_bytes: int | None = None, bound: int = BOUND) -> KeyFilterBuilder:
    """The filter of a log, by its size or by another, in which as many records may lie."""
    found = scan_batches(log)
    most = (len(log), found.last_offsets[-1] + 1) if log_bytes is None else (log_bytes, log_bytes)
    builder = KeyFilterBuilder(*most, bound)
    assert builder.add(memoryview(log), found) == LeastTimestamps(bound).add(memoryview(log), found)
    return builder


def keyed(keys: list[bytes | None], codec: CompressionType = CompressionType.NONE) -> bytes:
    return make_batch(0, [Pair(key, b"value") for key in keys], codec=codec)


def numbers(begin: int, end: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(begin, end)]


def false_share(key_filter: KeyFilter, tries: int = 20_000) -> float:
    """The share of keys that are not there and seem to be."""
    return sum(key_filter.may_have(filter_hash(b"not %d" % n)) for n in range(tries)) / tries


def test_the_bits_are_parquets() -> None:
    words = array("Q", bytes(1024))
    for key in (b"hello", b"parquet", b"bloom", b"filter"):
        insert(words, filter_hash(key))
    bits = struct.pack("<128Q", *words)
    blocks = {at // 32: bits[at : at + 32].hex() for at in range(0, 1024, 32) if any(bits[at : at + 32])}
    assert blocks == OF_PARQUET


@pytest.mark.parametrize(("keys", "size"), [(1, 32), (300, 384), (5000, 6240)])
def test_a_filter_is_that_of_its_keys_in_its_size(keys: int, size: int) -> None:
    """The section of a log is what keys put into a filter of that size give, whatever it was built in."""
    log = keyed(numbers(0, keys))
    section = built(log, 1 << 21).finish()
    assert len(section) == size
    words = array("Q", bytes(size))
    for number in range(keys):
        insert(words, filter_hash(b"%d" % number))
    assert section == struct.pack(f"<{len(words)}Q", *words)


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("keys", [1, 40, 1000, 30_000])
def test_one_key_of_a_hundred_seems_to_be_there(keys: int, codec: CompressionType) -> None:
    """The filter takes at most three bytes for a key, and 32 at least."""
    builder = built(keyed(numbers(0, keys), codec))
    section = builder.finish()
    key_filter = KeyFilter.open(section)
    assert len(section) <= max(32, 3 * keys)
    assert all(key_filter.may_have(filter_hash(b"%d" % number)) for number in range(keys))
    assert false_share(key_filter) < 0.016
    assert builder.keyed_record_count == keys


def test_keys_that_come_again_take_no_room() -> None:
    log = keyed([b"same"] * 50_000)
    builder = built(log)
    assert (builder.keyed_record_count, len(builder.finish())) == (50_000, 32)


def test_records_without_keys_have_no_filter() -> None:
    """An empty key is one; markers have keys that no client gave them."""
    log = keyed([None, None]) + make_marker(2, 5, commit=True) + bytes(filling_batch(3, 9, 4))
    builder = built(log)
    assert (builder.keyed_record_count, builder.finish()) == (0, b"")
    builder = built(keyed([None, b""]))
    assert builder.keyed_record_count == 1
    assert KeyFilter.open(builder.finish()).may_have(filter_hash(b""))


def test_batches_that_the_broker_stamped_are_read_for_their_keys() -> None:
    """Their headers alone tell the least timestamp, compressed or not; so does that of a single record."""
    for codec in (CompressionType.NONE, CompressionType.ZSTD):
        log = make_batch(0, [Pair(b"one", b""), Pair(b"two", b"")], codec=codec, log_append_time=START_MS)
        log += make_batch(2, [Pair(b"three", b"")], codec=codec)
        builder = built(log)
        assert builder.keyed_record_count == 3
        key_filter = KeyFilter.open(builder.finish())
        assert all(key_filter.may_have(filter_hash(key)) for key in (b"one", b"two", b"three"))


def test_keys_of_aborted_transactions_are_there() -> None:
    log = make_batch(0, [Pair(b"one", b"")], producer=(5, 0, 0), transactional=True)
    assert built(log + make_marker(1, 5, commit=False)).keyed_record_count == 1


def broken(batch: bytes, **change: int) -> bytes:
    return bytes(sealed_batch(read_header(batch)._replace(**change), batch[61:]))


BROKEN = {
    "a record too few": broken(keyed(numbers(0, 3)), record_count=2),
    "a record too many": broken(keyed(numbers(0, 3)), record_count=3, last_offset_delta=9)[:-1],
    "an unknown codec": broken(keyed(numbers(0, 3)), attributes=5),
    "not compressed": broken(keyed(numbers(0, 3)), attributes=int(CompressionType.ZSTD)),
    "a compressed marker": broken(keyed(numbers(0, 3), CompressionType.GZIP), attributes=0x21),
    "a key beyond its record": keyed([b"key"])[:65] + b"\x7e" + keyed([b"key"])[66:],
}


def resealed(batch: bytes) -> bytes:
    header = read_header(batch)
    return bytes(sealed_batch(header, batch[61 : header.size]))


@pytest.mark.parametrize("batch", BROKEN.values(), ids=BROKEN)
def test_records_that_do_not_parse_leave_no_filter(batch: bytes) -> None:
    """What comes after them is walked for its least timestamp all the same."""
    builder = built(resealed(batch))
    later = make_batch(100, [Pair(b"later", b"")])
    assert builder.add(memoryview(later), scan_batches(later)) == START_MS
    assert (builder.keyed_record_count, builder.finish()) == (None, b"")


def test_a_batch_that_inflates_beyond_the_bound_leaves_no_filter() -> None:
    """Of one record the key is known all the same."""
    one = Pair(b"key", bytes(100_000))
    builder = built(make_batch(0, [one, one], codec=CompressionType.ZSTD), bound=50_000)
    assert (builder.keyed_record_count, builder.finish()) == (None, b"")
    assert built(make_batch(0, [one], codec=CompressionType.ZSTD), bound=50_000).keyed_record_count == 1


def test_too_many_keys_leave_no_filter_and_are_counted() -> None:
    """A filter as large as its log has room for fewer keys than a log may hold that compresses well."""
    builder = built(keyed(numbers(0, 20_000)), log_bytes=4096)
    assert (builder.keyed_record_count, builder.finish()) == (20_000, b"")


@pytest.mark.thorough
def test_beyond_two_mebibytes_there_is_no_filter() -> None:
    """1.7 million keys fit, two million do not; once that is seen keys are counted alone."""
    builder, step = KeyFilterBuilder(1 << 30, 1 << 30, BOUND), 50_000
    for begin in range(0, 2_300_000, step):
        log = keyed(numbers(begin, begin + step))
        builder.add(memoryview(log), scan_batches(log))
        if begin + step == 1_700_000:
            section = builder.finish()
            assert len(section) == 65520 * 32
            assert false_share(KeyFilter.open(section)) < 0.016
        if begin + step == 2_000_000:
            assert builder.finish() == b""
    assert (builder.keyed_record_count, builder.finish()) == (2_300_000, b"")


def test_many_hashes_are_looked_for_at_once() -> None:
    key_filter = KeyFilter.open(built(keyed(numbers(0, 100))).finish())
    absent = [one for n in range(500) if not key_filter.may_have(one := filter_hash(b"not %d" % n))]
    assert not key_filter.hits(b"")
    assert not key_filter.hits(b"".join(struct.pack(">Q", one) for one in absent))
    assert key_filter.hits(b"".join(struct.pack(">Q", one) for one in (*absent, filter_hash(b"99"))))
    with pytest.raises(ValueError, match="7 bytes are not hashes"):
        key_filter.hits(bytes(7))


@pytest.mark.parametrize(
    "section",
    [b"", bytes(31), bytes(32), b"\x01" * 33, b"\x01" * ((2 << 20) + 32)],
    ids=("empty", "short", "zeros", "a byte more", "too large"),
)
def test_a_section_that_is_no_filter_is_named(section: bytes) -> None:
    with pytest.raises(CorruptionError, match="a key filter"):
        KeyFilter.open(section)
