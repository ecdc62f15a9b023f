"""Records into batches and out again."""

import pytest

from service.base.errors import CorruptionError
from service.records.batch import CompressionType, iter_headers, read_header, verify_crc
from service.records.builder import BatchBuilder, encode_varint
from service.records.decode import Record, iter_records
from service.records.validation import ValidationRules, validate_produced
from tests.support.built_batches import build_batch


@pytest.mark.parametrize("codec", CompressionType)
def test_built_batches_decode_to_their_records(codec: CompressionType) -> None:
    builder = BatchBuilder(100, codec, leader_epoch=4)
    assert builder.add(50, b"k", b"v", [("a", b"1"), ("a", None), (b"\xff", b"")]) == 100
    assert builder.add(40, None, b"") == 101
    assert builder.add(60, memoryview(b""), None) == 102
    assert len(builder) == 3
    data = builder.build()
    header = read_header(data)
    assert verify_crc(data, header)
    assert (header.base_timestamp, header.max_timestamp, header.last_offset) == (50, 60, 102)
    assert list(iter_records(data)) == [
        Record(100, 50, 0, b"k", b"v", (("a", b"1"), ("a", None), (b"\xff", b""))),
        Record(101, 40, 0, None, b"", ()),
        Record(102, 60, 0, b"", None, ()),
    ]


def test_the_size_is_known_before_the_batch_is_built() -> None:
    builder = BatchBuilder()
    for i in range(200):
        builder.add(i * 1000, b"x" * i, None)
    assert builder.size == len(builder.build())


def test_a_built_batch_is_what_a_broker_accepts() -> None:
    assert validate_produced(build_batch([(1, b"k", b"v")] * 500), ValidationRules(), 1).record_count == 500


def test_a_batch_without_records_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BatchBuilder().build()


def test_control_batches_are_left_out_unless_asked_for() -> None:
    control = BatchBuilder(1, is_control=True)
    control.add(5, b"\0\0\0\2", b"leader")
    log = bytes(
        build_batch([(1, None, b"a")]) + control.build() + build_batch([(2, None, b"b")], base_offset=2)
    )
    assert [r.offset for r in iter_records(log)] == [0, 2]
    assert [r.offset for r in iter_records(log, include_control=True)] == [0, 1, 2]


def test_append_time_is_the_time_of_every_record() -> None:
    builder = BatchBuilder(log_append_time=777)
    builder.add(1, None, None)
    builder.add(2, None, None)
    assert [(r.timestamp, r.timestamp_type) for r in iter_records(builder.build())] == [(777, 1), (777, 1)]


def test_offsets_with_gaps_are_kept_as_a_compacted_log_has_them() -> None:
    data = build_batch([(1, None, b"a"), (1, None, b"b")], base_offset=10)
    at = data.index(b"\x02\x01\x02b")  # offset delta 1, null key, value "b"
    data[at] = 12
    assert [r.offset for r in iter_records(data)] == [10, 16]


@pytest.mark.parametrize(
    ("at", "patch", "reason"),
    [
        (57, b"\x7f\xff\xff\xff", "cannot lie in"),
        (57, b"\0\0\0\2", "record 1: it is cut short"),
        (61, b"\x36", "record 0: it is cut short"),
        (61, b"\x32", "record 0: it is cut short"),
        (66, b"\x7e", "not that of its parts"),
        (66, b"\x24", "impossible number of headers"),
        (21, b"\0\7", "codec 7"),
        (21, b"\0\1", "broken gzip"),
    ],
)
def test_a_batch_that_does_not_parse_is_corruption(at: int, patch: bytes, reason: str) -> None:
    data = build_batch([(1, None, b"a" * 20)])
    data[at : at + len(patch)] = patch
    with pytest.raises(CorruptionError, match=reason):
        list(iter_records(data))


def test_inflation_is_bounded() -> None:
    data = build_batch([(1, None, bytes(1 << 20))], codec=CompressionType.ZSTD)
    with pytest.raises(CorruptionError, match="more than 1000 bytes"):
        list(iter_records(data, max_inflated_bytes=1000))
    (header,) = iter_headers(data)
    assert header.size < 1000


@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 64, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_varints_have_javas_sizes(value: int) -> None:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    assert len(encode_varint(value)) == max(1, -(-zigzag.bit_length() // 7))


def test_many_records_at_once_are_the_bytes_of_one_after_the_other() -> None:
    records = [(b"k%d" % n, None if n % 7 == 3 else bytes(n % 300)) for n in range(400)]
    one_by_one, at_once = BatchBuilder(base_offset=5), BatchBuilder(base_offset=5)
    for start, timestamp in ((0, 1000), (150, 1700)):
        some = records[start : start + 250]
        for key, value in some:
            one_by_one.add(timestamp, key, value)
        at_once.add_all(timestamp, some)
    assert (at_once.size, len(at_once)) == (one_by_one.size, len(one_by_one))
    assert at_once.build() == one_by_one.build()
