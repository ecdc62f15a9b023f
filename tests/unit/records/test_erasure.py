"""Erasure of keys: what goes, what stays to the byte (T24), and batches that no client should have
written."""

from __future__ import annotations

import tracemalloc

import pytest

from service.base.errors import CorruptionError
from service.records.batch import CompressionType, read_header
from service.records.builder import BatchBuilder
from service.records.compaction import empty_batch, filling_batch, sealed_batch
from service.records.erasure import ErasureKeys, count_hits, filter_hash, hash_key
from service.records.scan import scan_batches
from tests.support.compaction import START_MS, Pair, header_rows, make_batch, make_marker, records_of
from tests.support.erasure import SECRET, erased, erasure_keys

GONE = erasure_keys([b"gone"])


def test_a_key_is_known_by_its_hash_under_the_orders_secret() -> None:
    """The vector of SipHash's reference for no bytes; another secret gives another hash."""
    assert hash_key(SECRET, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert hash_key(bytes(16), b"gone") != hash_key(SECRET, b"gone")
    keys = ErasureKeys.of(SECRET, hash_key(SECRET, b"gone") * 2)
    assert keys.entries == 1
    assert [keys.has(key, 0) for key in (b"gone", b"here", b"", None)] == [True, False, False, False]


@pytest.mark.parametrize(("secret", "hashes"), [(bytes(15), b""), (bytes(32), b""), (bytes(16), bytes(15))])
def test_an_order_of_another_size_is_refused(secret: bytes, hashes: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        ErasureKeys.of(secret, hashes)


def test_an_order_without_keys_takes_nothing() -> None:
    log = make_batch(0, [Pair(b"gone", b"1")])
    assert erased(log, ErasureKeys.of(SECRET, b"")) == log


def test_many_keys_are_found_and_no_others() -> None:
    order = erasure_keys(b"%d" % number for number in range(0, 20_000, 2))
    assert order.entries == 10_000
    assert [number for number in range(1000) if order.has(b"%d" % number, 0)] == list(range(0, 1000, 2))


def test_the_filters_hash_is_xxhash64() -> None:
    """Vectors of xxHash's own sanity check and of its users."""
    vectors = {
        b"": 0xEF46DB3751D8E999,
        b"a": 0xD24EC4F1A98C6E5B,
        b"abc": 0x44BC2CF5AD770999,
        b"message digest": 0x066ED728FCEEB3BE,
        b"abcdefghijklmnopqrstuvwxyz": 0xCFE1F278FA89835C,
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": 0xAAA46907D3047814,
        b"1234567890" * 8: 0xE04A477F19EE145D,
    }
    assert {key: filter_hash(key) for key in vectors} == vectors


def test_records_at_the_end_of_the_order_stay() -> None:
    log = make_batch(10, [Pair(b"gone", b"%d" % number) for number in range(4)])
    assert [record.offset for record in records_of(erased(log, GONE, 12))] == [12, 13]
    assert erased(log, GONE, 10) == log


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_only_records_that_are_known_to_be_earlier_go(codec: CompressionType) -> None:
    """The third record of `old` is as late as the order's time, and the batch without times has none."""
    order = erasure_keys([b"gone"], START_MS + 2)
    old = make_batch(0, [Pair(b"gone", b"1")] * 3, codec=codec)
    builder = BatchBuilder(codec=codec)
    builder.add(-1, b"gone", b"no time")
    log = old + bytes(
        sealed_batch(read_header(builder.build())._replace(base_offset=3), builder.build()[61:])
    )
    assert [record.offset for record in records_of(erased(log, order))] == [2, 3]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_records_of_a_batch_that_the_broker_stamped_have_its_time(codec: CompressionType) -> None:
    log = make_batch(0, [Pair(b"gone", b"1"), Pair(b"here", b"2")], codec=codec, log_append_time=START_MS + 9)
    assert erased(log, erasure_keys([b"gone"], START_MS + 9)) == log
    out = erased(log, erasure_keys([b"gone"], START_MS + 10))
    assert [(record.offset, record.timestamp) for record in records_of(out)] == [(1, START_MS + 9)]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_records_that_stay_keep_all_but_their_neighbours(codec: CompressionType) -> None:
    """Offsets, times, headers, producer and sequence; the greatest timestamp is that of what is left."""
    pairs = [Pair(b"here", b"0"), Pair(None, b"1"), Pair(b"gone", b"2"), Pair(b"", None), Pair(b"gone", None)]
    log = make_batch(7, pairs, codec=codec, producer=(5, 2, 40))
    out = erased(log, GONE)
    before, after = read_header(log), read_header(out)
    assert records_of(out) == [record for record in records_of(log) if record.offset in (7, 8, 10)]
    assert records_of(out)[0].headers == (("h", b"x"),)
    assert (after.base_offset, after.last_offset, after.producer_id, after.base_sequence) == (7, 11, 5, 40)
    assert (after.attributes, after.base_timestamp) == (before.attributes, before.base_timestamp)
    assert (after.record_count, after.max_timestamp) == (3, START_MS + 3)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_a_batch_that_loses_all_goes_unless_its_header_is_needed(codec: CompressionType) -> None:
    one, two, three = (
        make_batch(base, [Pair(b"gone", b"1")] * 2, codec=codec, producer=(5, 0, base)) for base in (0, 2, 4)
    )
    log = one + two + three
    assert erased(log, GONE) == b""
    assert header_rows(erased(log, GONE, keep_to=6)) == [(4, 5, 5, 4, 0)]
    assert header_rows(erased(log, GONE, producers={5: (3, 0)})) == [(2, 3, 5, 2, 0)]
    assert header_rows(erased(log, GONE, keeps_all=True)) == [
        (0, 1, 5, 0, 0),
        (2, 3, 5, 2, 0),
        (4, 5, 5, 4, 0),
    ]
    assert erased(log, GONE, keep_to=6) == bytes(empty_batch(read_header(three)))


def test_control_batches_and_empty_ones_are_the_same_bytes() -> None:
    """A marker's key is not a client's, and an empty batch has been left for its offset."""
    marker = make_marker(1, 5, commit=True)
    log = (
        make_batch(0, [Pair(b"gone", b"1")], producer=(5, 0, 0), transactional=True)
        + marker
        + bytes(filling_batch(2, 9, 4))
    )
    order = erasure_keys([b"gone", bytes((0, 0, 0, True))])
    assert erased(log, order) == marker + bytes(filling_batch(2, 9, 4))


def test_records_of_aborted_transactions_go_too() -> None:
    log = make_batch(
        0, [Pair(b"gone", b"1"), Pair(b"here", b"2")], producer=(5, 0, 0), transactional=True
    ) + make_marker(2, 5, commit=False)
    assert [record.offset for record in records_of(erased(log, GONE))] == [1, 2]


def test_offsets_beyond_two_to_the_31_are_told_apart() -> None:
    """A cleaner has left two records that are 2^31 - 1 offsets apart; the order ends between them."""
    header = read_header(make_batch(0, [Pair(b"gone", b"1")]))
    first = 2**40
    header = header._replace(base_offset=first, last_offset_delta=2**31 - 1, record_count=2)
    record = make_batch(0, [Pair(b"gone", b"1")])[61:]
    far = bytearray(record)
    assert far[3] == 0  # length, attributes, timestamp delta, offset delta
    far[3:4] = b"\xfe\xff\xff\xff\x0f"  # 2^31 - 1
    far[0] += 8  # four bytes more, in zigzag
    log = bytes(sealed_batch(header, record + far))
    assert [one.offset for one in records_of(erased(log, GONE, first + 2**31 - 1))] == [first + 2**31 - 1]
    assert erased(log, GONE) == b""


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_a_batch_that_claims_records_without_end_takes_no_memory(codec: CompressionType) -> None:
    batch = make_batch(0, [Pair(b"gone", b"1")], codec=codec)
    header = read_header(batch)._replace(last_offset_delta=2**31 - 1, record_count=2**31 - 1)
    log = bytes(sealed_batch(header, batch[61:]))
    assert scan_batches(log).batches == 1
    with pytest.raises(CorruptionError, match="batch at offset 0: it is cut short"):
        erased(log, GONE)
    with pytest.raises(CorruptionError, match="batch at offset 0: it is cut short"):
        count_hits(GONE, memoryview(log), scan_batches(log), 1)


@pytest.mark.parametrize("attributes", [0, 0x20, 7], ids=("plain", "control", "an unknown codec"))
def test_a_batch_beyond_the_buffer_takes_the_memory_of_its_bytes(attributes: int) -> None:
    """Its record count is looked at only where records may go, and bounded by its bytes first."""
    batch = make_batch(5, [Pair(b"gone", b"v" * 1000)])
    header = read_header(batch)._replace(
        attributes=attributes, last_offset_delta=2**31 - 1, record_count=2**31 - 1
    )
    log = bytes(sealed_batch(header, batch[61:]))
    tracemalloc.start()
    try:
        assert erased(log, GONE, 5, buffer_bytes=61) == log
        if attributes == 0:
            with pytest.raises(CorruptionError, match="batch at offset 5: it is cut short"):
                erased(log, GONE, buffer_bytes=61)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_records_that_do_not_parse_are_named_and_nothing_is_counted(codec: CompressionType) -> None:
    """A batch beyond the order's end is not looked into."""
    batch = make_batch(3, [Pair(b"gone", b"1")] * 2, codec=codec)
    log = bytes(sealed_batch(read_header(batch)._replace(record_count=1), batch[61:]))
    with pytest.raises(CorruptionError, match="batch at offset 3: bytes are left after the last record"):
        erased(log, GONE)
    with pytest.raises(CorruptionError, match="batch at offset 3"):
        count_hits(GONE, memoryview(log), scan_batches(log), 4)
    assert erased(log, GONE, 3) == log


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.SNAPPY])
def test_batches_larger_than_the_buffers_are_copied(codec: CompressionType) -> None:
    """Ten thousand records in a batch are more than the marks have room for at first."""
    pairs = [Pair(b"gone" if number % 3 else b"here", b"v" * 20) for number in range(10_000)]
    log = make_batch(0, pairs, codec=codec) + make_batch(10_000, pairs[:5], codec=codec)
    for buffer_bytes in (61, 1000, 1 << 20):
        out = erased(log, GONE, buffer_bytes=buffer_bytes)
        assert [one.offset for one in records_of(out)] == [*range(0, 10_000, 3), 10_000, 10_003]
    assert count_hits(GONE, memoryview(log), scan_batches(log), 10_001) == 6666
