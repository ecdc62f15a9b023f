"""Decoding into columns, case by case; what holds for all data is in the property tests."""

import gc
import threading
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import pytest

from service.base.errors import CorruptionError
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder, encode_record
from service.records.columns import COLUMNS, AbortedRange, ColumnDecoder, Columns
from service.records.compression import compress
from tests.support import batches
from tests.support.built_batches import build_batch

TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 16, 32, 8


def only(chunks: Iterable[Columns]) -> Columns:
    (chunk,) = chunks
    return chunk


def offsets(chunks: Iterable[Columns]) -> list[list[int]]:
    return [list(chunk.offsets or ()) for chunk in chunks]


def numbered(
    base_offset: int, count: int, codec: CompressionType = CompressionType.NONE, size: int = 10
) -> bytes:
    """Values are ``size`` bytes, timestamps 1000 + offset."""
    rows = [(1000 + offset, None, bytes(size)) for offset in range(base_offset, base_offset + count)]
    return bytes(build_batch(rows, base_offset=base_offset, codec=codec))


def compacted(deltas: list[int], last_delta: int, base_offset: int = 0) -> bytes:
    payload = b"".join(encode_record(delta, 0, b"k", b"v%d" % delta) for delta in deltas)
    return batches.batch(
        payload=payload, base_offset=base_offset, count=len(deltas), last_offset_delta=last_delta
    )


def test_the_buffers_are_those_of_arrow() -> None:
    builder = BatchBuilder(5)
    builder.add(10, None, b"v", [("k", b"x"), ("long", None)])
    builder.add(11, b"", b"")
    builder.add(9, b"key", None, [("z", b"")])
    chunk = only(ColumnDecoder().decode(builder.build()))
    assert chunk.count == 3
    assert chunk.offsets is not None
    assert chunk.offsets.tolist() == [5, 6, 7]
    assert chunk.timestamps is not None
    assert chunk.timestamps.tolist() == [10, 11, 9]
    assert chunk.timestamp_types is not None
    assert chunk.timestamp_types.tolist() == [0, 0, 0]
    assert chunk.key_validity == b"\x06"
    assert chunk.key_offsets is not None
    assert chunk.key_offsets.tolist() == [0, 0, 0, 3]
    assert chunk.key_data == b"key"
    assert chunk.value_validity == b"\x03"
    assert chunk.header_lists is not None
    assert chunk.header_lists.tolist() == [0, 2, 2, 3]
    assert chunk.header_key_data == b"klongz"
    assert chunk.header_value_validity == b"\x05"
    assert chunk.header_value_offsets is not None
    assert chunk.header_value_offsets.tolist() == [0, 1, 1, 1]


def test_a_column_without_nulls_has_no_validity() -> None:
    chunk = only(ColumnDecoder().decode(numbered(0, 20)))
    assert chunk.value_validity is None
    assert chunk.key_validity == bytes(3)


def test_unrequested_columns_are_absent() -> None:
    chunk = only(ColumnDecoder(want={"value"}).decode(numbered(0, 3)))
    assert chunk.value_data == bytes(30)
    assert chunk.offsets is chunk.timestamps is chunk.timestamp_types is chunk.key_data is None
    assert chunk.header_lists is chunk.header_key_data is chunk.header_value_data is None


def test_rows_are_counted_even_if_nothing_of_them_is_wanted() -> None:
    assert only(ColumnDecoder(want=()).decode(numbered(0, 3) + compacted([0, 4], 9, 3))).count == 5


def test_chunks_stay_valid_after_the_decoder_went_on() -> None:
    data = numbered(0, 100)
    chunks = list(ColumnDecoder(max_rows=7).decode(data))
    del data
    gc.collect()
    assert [len(chunk) for chunk in offsets(chunks)] == [7] * 14 + [2]
    assert list(chain(*offsets(chunks))) == list(range(100))
    assert all(chunk.value_data == bytes(10 * chunk.count) for chunk in chunks)


def test_malformed_header_keys_are_repaired_each_by_itself() -> None:
    builder = BatchBuilder()
    builder.add(0, None, None, [(b"\xc3", b"1"), (b"\xa4", b"2"), ("ä", b"3"), (b"a\xffb", b"4")])
    chunk = only(ColumnDecoder(want={"headers"}).decode(builder.build()))
    keys, ends = bytes(chunk.header_key_data or b""), list(chunk.header_key_offsets or ())
    texts = [keys[start:end].decode() for start, end in pairwise(ends)]
    assert texts == ["\ufffd", "\ufffd", "ä", "a\ufffdb"]


def test_a_record_larger_than_a_chunk_comes_alone() -> None:
    data = numbered(0, 2) + numbered(2, 1, size=10_000_000) + numbered(3, 2)
    chunks = list(ColumnDecoder(max_bytes=1000).decode(data))
    assert offsets(chunks) == [[0, 1], [2], [3, 4]]
    assert len(chunks[1].value_data or b"") == 10_000_000


def test_headers_without_bytes_cost_their_place_too() -> None:
    builder = BatchBuilder()
    for _ in range(4):
        builder.add(0, None, None, [("", None)] * 10)
    decoder = ColumnDecoder(want={"headers", "offset"}, max_bytes=160)
    assert offsets(decoder.decode(builder.build())) == [[0, 1], [2, 3]]


def test_gaps_of_compaction_stay_gaps() -> None:
    data = compacted([2, 3, 7], 9) + compacted([], 4, 10) + compacted([0], 0, 15)
    for want in (COLUMNS, {"offset"}):
        assert offsets(ColumnDecoder(want=want).decode(data)) == [[2, 3, 7, 15]]


def test_records_that_headers_tell_all_about_are_not_looked_at() -> None:
    payload = b"not a zstd frame"
    batch = batches.batch(
        payload=payload, attributes=CompressionType.ZSTD, count=3, last_offset_delta=2, base_offset=4
    )
    assert offsets(ColumnDecoder(want={"offset", "timestampType"}, min_offset=5).decode(batch)) == [[5, 6]]
    with pytest.raises(CorruptionError, match="offset 4: broken zstd data"):
        list(ColumnDecoder(want={"offset", "value"}).decode(batch))


def test_a_timestamp_set_by_the_broker_goes_to_every_row() -> None:
    builder = BatchBuilder(log_append_time=77)
    for timestamp in (5, 500):
        builder.add(timestamp, None, b"")
    for want in (COLUMNS, {"timestamp", "timestampType"}):
        chunk = only(ColumnDecoder(want=want).decode(builder.build()))
        assert list(chunk.timestamps or ()) == [77, 77]
        assert list(chunk.timestamp_types or ()) == [1, 1]
    assert not list(ColumnDecoder(max_timestamp=77).decode(builder.build()))
    assert not list(ColumnDecoder(min_timestamp=78).decode(builder.build()))


def test_bounds_are_half_open() -> None:
    data = numbered(0, 10) + numbered(10, 10, CompressionType.LZ4)
    assert offsets(ColumnDecoder(min_offset=8, max_offset=12).decode(data)) == [[8, 9, 10, 11]]
    decoder = ColumnDecoder(min_timestamp=1008, max_timestamp=1012)
    assert offsets(decoder.decode(data)) == [[8, 9, 10, 11]]
    assert not list(ColumnDecoder(min_offset=5, max_offset=5).decode(data))


def test_nothing_is_asked_for_after_the_last_wanted_offset() -> None:
    asked = []

    def parts() -> Iterator[bytes]:
        for base_offset in range(0, 50, 10):
            asked.append(base_offset)
            yield numbered(base_offset, 10)

    assert offsets(ColumnDecoder(max_offset=20).decode_stream(parts())) == [list(range(20))]
    assert asked == [0, 10]


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    def transaction(
        base_offset: int, producer_id: int, codec: CompressionType = CompressionType.NONE
    ) -> bytes:
        payload = bytes(compress(codec, encode_record(0, 0, None, b"t") + encode_record(1, 0, None, b"t")))
        return batches.batch(
            payload=payload,
            base_offset=base_offset,
            attributes=TRANSACTIONAL | codec,
            producer_id=producer_id,
            count=2,
            last_offset_delta=1,
        )

    def marker(base_offset: int, producer_id: int) -> bytes:
        return batches.batch(
            [b"m"], base_offset=base_offset, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id
        )

    plain = batches.batch([b"p"], base_offset=11, producer_id=1)
    data = (
        transaction(0, 1, CompressionType.GZIP)
        + transaction(2, 2, CompressionType.SNAPPY)
        + transaction(4, 1)
        + marker(6, 1)
        + transaction(7, 1)
        + marker(9, 2)
        + marker(10, 1)
        + plain
    )
    assert offsets(ColumnDecoder().decode(data)) == [[0, 1, 2, 3, 4, 5, 7, 8, 11]]
    aborted = [AbortedRange(1, 0, 6)]
    for want in (COLUMNS, {"offset"}):
        assert offsets(ColumnDecoder(want=want, aborted=aborted).decode(data)) == [[2, 3, 7, 8, 11]]
    # a plain batch of the same producer is nobody's transaction
    aborted = [AbortedRange(1, 7, 20), AbortedRange(2, 2, 9)]
    assert offsets(ColumnDecoder(aborted=aborted).decode(data)) == [[0, 1, 4, 5, 11]]


def test_a_checksum_is_verified_if_asked_for() -> None:
    good, bad = numbered(0, 3), bytearray(numbered(3, 3))
    bad[-2] ^= 1
    assert offsets(ColumnDecoder().decode(good + bad)) == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(CorruptionError, match=rf"position {len(good)}, after offset 2: its checksum"):
        list(ColumnDecoder(verify_crc=True).decode(good + bad))


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("cut short", numbered(7, 2)[:-1]),
        ("cut short", numbered(7, 2)[:11]),
        ("magic", batches.batch([b"x"], base_offset=7, magic=1)),
        ("less than that of a header", batches.batch([b"x"], base_offset=7, length=40)),
        ("overlap", numbered(7, 2) + numbered(8, 1)),
        ("overlap", batches.batch([b"x"], base_offset=-1)),
        ("overlap", batches.batch([b"x"], base_offset=2**63 - 1)),
        ("record count is negative", batches.batch([b"x"], base_offset=7, count=-1)),
        ("not that of its parts", batches.batch([b"x"], base_offset=7, count=2**31 - 1)),
        ("offset 7, record 1: it is cut short", batches.batch([b"x"], base_offset=7, count=2, payload=
            encode_record(0, 0, None, bytes(20)))),
        ("record 1: its offset delta", compacted([1, 1], 5, 7)),
        ("record 0: its offset delta", compacted([6], 5, 7)),
        ("bytes are left", batches.batch(base_offset=7, count=1, payload=
            encode_record(0, 0, None, b"") + b"x")),
        ("bytes are left", batches.batch(base_offset=7, count=0, last_offset_delta=0, payload=b"x")),
        ("record 0: its timestamp", batches.batch(base_offset=7, count=1, base_timestamp=2**62, payload=
            encode_record(0, 2**62, None, b""))),
        ("unknown compression codec 6", batches.batch(base_offset=7, count=1, attributes=6, payload=b"x")),
        ("record 0: it has an impossible number of headers", batches.batch(base_offset=7, count=1, payload=
            encode_record(0, 0, None, b"")[:-1] + b"\x7f")),
    ],
)  # fmt: skip
def test_corrupt_batches_are_reported_with_their_position(what: str, data: bytes) -> None:
    with pytest.raises(CorruptionError, match=what) as caught:
        list(ColumnDecoder().decode(data))
    assert "batch at position" in str(caught.value)
    assert ", offset " in str(caught.value)


def test_inflated_records_are_bounded() -> None:
    bomb = numbered(7, 1, CompressionType.ZSTD, size=1 << 20)
    with pytest.raises(CorruptionError, match="offset 7: zstd data inflate to more than 65536 bytes"):
        list(ColumnDecoder(max_inflated_bytes=65536).decode(bomb))
    claim = batches.batch(
        payload=b"x", attributes=CompressionType.ZSTD, count=2**31 - 1, last_offset_delta=2**31 - 2
    )
    with pytest.raises(CorruptionError):
        list(ColumnDecoder(want={"offset"}).decode(claim))


@pytest.mark.parametrize(
    "options", [{"want": {"topic"}}, {"max_rows": 0}, {"max_bytes": 0}, {"max_bytes": 2**31}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"no such columns: topic|between 1 and"):
        ColumnDecoder(**options)  # type: ignore[arg-type]


def test_one_decoder_serves_many_threads() -> None:
    data = b"".join(numbered(base, 500, CompressionType.NONE) for base in range(0, 50_000, 500))
    decoder = ColumnDecoder(max_rows=1000)
    answers: list[list[list[int]]] = []

    def read() -> None:
        answers.append(offsets(decoder.decode(data)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert all(list(chain(*answer)) == list(range(50_000)) for answer in answers)
