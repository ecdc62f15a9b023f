"""Validation of produced batches; Kafka's own answers are compared in tests/golden/records."""

import struct
import tracemalloc
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.config.settings import LogConfig
from service.records.batch import CompressionType, compute_crc, read_header, verify_crc
from service.records.builder import BatchBuilder
from service.records.compression import compress
from service.records.decode import iter_records
from service.records.validation import (
    MAX_RECORD_ERRORS,
    RecordsRefused,
    ValidationRules,
    rules_of,
    validate_produced,
)
from tests.support.built_batches import build_batch

NOW = 1_700_000_000_000
RULES = ValidationRules()


def batch_of(count: int = 3, codec: CompressionType = CompressionType.NONE) -> bytearray:
    return build_batch([(NOW + i, b"key", b"value-%d" % i) for i in range(count)], codec=codec)


def refusal(data: bytes | bytearray, rules: ValidationRules = RULES, now_ms: int = NOW) -> RequestError:
    before = bytes(data)
    with pytest.raises(RequestError) as raised:
        validate_produced(bytearray(data), rules, now_ms)
    assert bytes(data) == before
    return raised.value


def renewed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return data


@pytest.mark.parametrize("codec", CompressionType)
def test_a_good_batch_keeps_its_bytes_and_its_buffer(codec: CompressionType) -> None:
    data = batch_of(3, codec)
    before = bytes(data)
    batch = validate_produced(data, RULES, NOW)
    assert bytes(batch.data) == before
    assert batch.data.obj is data
    assert not batch.data.readonly
    assert batch.header == read_header(before)
    assert (batch.max_timestamp, batch.offset_delta_of_max_timestamp, batch.record_count) == (NOW + 2, 2, 3)


def test_the_first_record_with_the_highest_timestamp_is_found() -> None:
    data = build_batch(
        [(NOW, None, b"a"), (NOW + 9, None, b"b"), (NOW + 9, None, b"c"), (NOW + 1, None, b"d")]
    )
    batch = validate_produced(data, RULES, NOW)
    assert (batch.max_timestamp, batch.offset_delta_of_max_timestamp) == (NOW + 9, 1)


def test_records_without_timestamps_are_taken() -> None:
    batch = validate_produced(build_batch([(-1, None, b"a"), (-1, None, b"b")]), RULES, NOW)
    assert (batch.max_timestamp, batch.offset_delta_of_max_timestamp) == (-1, 0)


def test_a_view_into_a_larger_buffer_is_enough() -> None:
    frame = bytearray(b"head") + batch_of() + b"tail"
    batch = validate_produced(memoryview(frame)[4:-4], ValidationRules(log_append_time=True), NOW + 50)
    assert frame[4:-4] == batch.data
    assert read_header(frame, 4).max_timestamp == NOW + 50


@pytest.mark.parametrize("codec", CompressionType)
def test_truncations_at_every_byte_are_refused(codec: CompressionType) -> None:
    data = bytes(batch_of(3, codec))
    for cut in range(len(data)):
        assert refusal(data[:cut]).code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


@pytest.mark.parametrize("codec", CompressionType)
def test_a_flipped_bit_anywhere_is_refused_or_outside_the_checksum(codec: CompressionType) -> None:
    data = bytes(batch_of(2, codec))
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        if 12 <= bit // 8 < 16:  # the leader epoch is the broker's to write
            validate_produced(bad, RULES, NOW)
        else:
            refusal(bad)


@pytest.mark.parametrize("codec", CompressionType)
def test_flipped_bits_under_a_right_checksum_never_do_worse_than_an_error(codec: CompressionType) -> None:
    data = bytes(batch_of(2, codec))
    for bit in range(8 * 21, 8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            batch = validate_produced(renewed(bad), RULES, NOW)
        except RequestError:
            continue
        assert len(list(iter_records(batch.data))) == batch.record_count


def test_a_batch_at_the_limit_passes_and_a_byte_more_does_not() -> None:
    data = batch_of()
    validate_produced(bytearray(data), ValidationRules(max_message_bytes=len(data)), NOW)
    error = refusal(data, ValidationRules(max_message_bytes=len(data) - 1))
    assert error.code is ErrorCode.message_too_large


@pytest.mark.parametrize(
    "codec", [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
)
def test_a_bomb_is_too_large_and_costs_no_memory(codec: CompressionType) -> None:
    data = batch_of(1, codec)
    del data[61:]
    data += compress(codec, bytes(100 << 20), 1)
    struct.pack_into(">i", data, 8, len(data) - 12)
    rules = ValidationRules(max_message_bytes=1 << 30, max_inflated_bytes=2 << 20)
    renewed(data)
    tracemalloc.start()
    try:
        assert refusal(data, rules).code is ErrorCode.message_too_large
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + (8 << 20)
    finally:
        tracemalloc.stop()


def test_timestamps_out_of_bounds_name_their_records() -> None:
    data = build_batch(
        [(NOW, None, b"a"), (NOW - 61_000, None, b"b"), (-1, None, b"c"), (NOW + 11, None, b"d")]
    )
    rules = ValidationRules(timestamp_before_max_ms=60_000, timestamp_after_max_ms=10)
    error = refusal(data, rules)
    assert isinstance(error, RecordsRefused)
    assert error.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in error.record_errors] == [1, 3]


def test_bounds_are_inclusive() -> None:
    data = build_batch([(NOW - 60_000, None, b"a"), (NOW + 10, None, b"b")])
    validate_produced(data, ValidationRules(timestamp_before_max_ms=60_000, timestamp_after_max_ms=10), NOW)


def test_the_list_of_bad_records_is_bounded() -> None:
    error = refusal(build_batch([(NOW + 10**9, None, None)] * 1000))
    assert isinstance(error, RecordsRefused)
    assert len(error.record_errors) == MAX_RECORD_ERRORS


def test_a_broken_record_outweighs_a_bad_timestamp() -> None:
    data = build_batch([(NOW + 10**9, None, b"a")])
    data[-1] = 8  # says it has four headers
    assert refusal(renewed(data)).code is ErrorCode.invalid_record


def test_append_time_ignores_what_producers_say_about_time() -> None:
    data = build_batch([(0, None, b"a"), (NOW + 10**12, None, b"b")])
    rules = ValidationRules(log_append_time=True, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    batch = validate_produced(data, rules, NOW)
    assert batch.header.is_log_append_time
    assert verify_crc(batch.data, batch.header)
    assert (batch.max_timestamp, batch.header.max_timestamp, batch.offset_delta_of_max_timestamp) == (
        NOW,
        NOW,
        0,
    )
    assert {record.timestamp for record in iter_records(batch.data)} == {NOW}


@pytest.mark.parametrize("source", CompressionType)
@pytest.mark.parametrize("target", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("log_append_time", [False, True])
def test_the_topics_codec_wins_and_the_records_stay(
    source: CompressionType, target: str, log_append_time: bool
) -> None:
    builder = BatchBuilder(codec=source, producer_id=9, producer_epoch=1, base_sequence=4)
    for i in range(20):
        builder.add(NOW + i, b"key", b"value" * i, [("h", b"x" * i), ("n", None)])
    data = builder.build()
    expected = [record[3:] for record in iter_records(bytes(data))]
    rules = ValidationRules(compression_type=target, log_append_time=log_append_time)
    batch = validate_produced(data, rules, NOW + 30)
    wanted = (
        source
        if target == "producer"
        else CompressionType["NONE" if target == "uncompressed" else target.upper()]
    )
    assert batch.header.codec is wanted
    assert batch.header == read_header(batch.data)
    assert verify_crc(batch.data, batch.header)
    assert [record[3:] for record in iter_records(batch.data)] == expected
    assert (batch.header.producer_id, batch.header.producer_epoch, batch.header.base_sequence) == (9, 1, 4)
    assert batch.data.obj is data or wanted is not source


def test_a_batch_that_grows_beyond_the_limit_when_unpacked_is_too_large() -> None:
    data = build_batch([(NOW, None, bytes(10_000))], codec=CompressionType.ZSTD)
    rules = ValidationRules(max_message_bytes=5000, compression_type="uncompressed")
    assert refusal(data, rules).code is ErrorCode.message_too_large
    assert validate_produced(data, ValidationRules(max_message_bytes=5000), NOW).record_count == 1


def test_many_tiny_batches_in_one_field_are_refused_at_once() -> None:
    tiny = struct.pack(">qiib", 0, 14, -1, 2) + bytes(9)
    assert refusal(tiny * 200_000).code is ErrorCode.invalid_record


def test_rules_are_those_of_the_topic() -> None:
    config = LogConfig(
        max_message_bytes=200 << 20,
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=5,
        message_timestamp_after_max_ms=6,
        compression_type="lz4",
    )
    assert rules_of(config, 64 << 20) == ValidationRules(
        200 << 20, True, 5, 6, "lz4", 200 << 20, compression_level=9
    )
    assert rules_of(LogConfig(), 256 << 20) == ValidationRules()
    assert rules_of(LogConfig(max_message_bytes=1 << 30), 1).max_inflated_bytes == 256 << 20


COMPACTED = rules_of(LogConfig(cleanup_policy="compact,delete"), 64 << 20)
NO_KEY = "Compacted topic cannot accept message without key"


@pytest.mark.parametrize("codec", CompressionType)
def test_a_compacted_topic_names_the_records_without_a_key(codec: CompressionType) -> None:
    assert validate_produced(batch_of(3, codec), COMPACTED, NOW).record_count == 3
    data = build_batch([(NOW, None, b"a"), (NOW, b"", b"b"), (NOW, None, b"c")], codec=codec)
    error = refusal(data, COMPACTED)
    assert isinstance(error, RecordsRefused)
    assert error.code is ErrorCode.invalid_record
    assert error.record_errors == ((0, NO_KEY), (2, NO_KEY))
    assert validate_produced(data, RULES, NOW).record_count == 3


def test_a_record_without_a_key_is_reported_for_its_key_only() -> None:
    """But one bad timestamp makes it the batch's error, as in Kafka."""
    late = NOW + 10**10
    error = refusal(build_batch([(late, None, b"a"), (late, b"k", b"b"), (NOW, None, b"c")]), COMPACTED)
    assert isinstance(error, RecordsRefused)
    assert error.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in error.record_errors] == [0, 1, 2]
    assert error.record_errors[0][1] == error.record_errors[2][1] == NO_KEY
    assert "out of range" in error.record_errors[1][1]


def test_a_bad_timestamp_counts_only_where_it_is_said() -> None:
    """A record without a key is refused for that alone, whatever else is wrong with it (as in Kafka)."""
    late = NOW + 10**10
    error = refusal(build_batch([(late, None, b"a"), (NOW, b"k", b"b")]), COMPACTED)
    assert isinstance(error, RecordsRefused)
    assert (error.code, error.record_errors) == (ErrorCode.invalid_record, ((0, NO_KEY),))
    typed = build_batch([(NOW, None, b"a"), (NOW, b"k", b"b")])
    struct.pack_into(">h", typed, 21, 8)
    error = refusal(renewed(typed), COMPACTED)
    assert isinstance(error, RecordsRefused)
    assert error.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in error.record_errors] == [0, 1]
    assert error.record_errors[0][1] == NO_KEY
    typed = build_batch([(NOW, None, b"a"), (-1, None, b"b")])
    struct.pack_into(">h", typed, 21, 8)
    error = refusal(renewed(typed), COMPACTED)
    assert isinstance(error, RecordsRefused)
    assert (error.code, error.record_errors) == (ErrorCode.invalid_record, ((0, NO_KEY), (1, NO_KEY)))


def test_refusals_name_the_partition_and_how_many_there_are() -> None:
    rules = rules_of(LogConfig(cleanup_policy="compact"), 64 << 20, "t-7")
    error = refusal(build_batch([(NOW, None, b"a")] * 300), rules)
    assert isinstance(error, RecordsRefused)
    why = f"{NO_KEY} in topic partition t-7"
    assert error.record_errors == tuple((index, why) for index in range(MAX_RECORD_ERRORS))
    assert error.message == (
        "One or more records have been rejected due to 300 record errors in total, and only showing the "
        "first three errors at most: ["
        + ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index in range(3))
        + "]"
    )


def test_a_timestamp_that_does_not_fit_names_its_record() -> None:
    data = build_batch([(NOW, None, b"a"), (NOW + 5, None, b"b")])
    struct.pack_into(">q", data, 27, 2**63 - 3)
    error = refusal(renewed(data))
    assert isinstance(error, RecordsRefused)
    assert error.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in error.record_errors] == [1]


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_batch_is_recompressed_at_the_level_of_its_topic(codec: CompressionType) -> None:
    name = codec.name.lower()
    words = b" ".join(b"%d" % (n * n % 9973) for n in range(20_000))
    sizes = {}
    for level in (1, 9):
        config: dict[str, Any] = {"compression_type": name, f"compression_{name}_level": level}
        rules = rules_of(LogConfig(**config), 64 << 20)
        batch = validate_produced(build_batch([(NOW, b"k", words)]), rules, NOW)
        assert batch.header.codec is codec
        assert [record.value for record in iter_records(batch.data)] == [words]
        assert batch.data[61:] == compress(codec, build_batch([(NOW, b"k", words)])[61:], level)
        sizes[level] = len(batch.data)
    assert sizes[9] != sizes[1]
    default = validate_produced(
        build_batch([(NOW, b"k", words)]), rules_of(LogConfig(compression_type=name), 64 << 20), NOW
    )
    assert default.data[61:] == compress(codec, build_batch([(NOW, b"k", words)])[61:])
    packed = build_batch([(NOW, b"k", words)], codec=codec)
    before = bytes(packed)
    assert validate_produced(packed, rules, NOW).data == before, "it has the codec already"


def test_slow_compression_levels_lower_the_inline_limit() -> None:
    def at_once(level: int) -> int:
        config = LogConfig(compression_type="zstd", compression_zstd_level=level)
        return rules_of(config, 64 << 20).at_once_bytes[CompressionType.NONE]

    assert at_once(-131_072) == at_once(3) > at_once(4) > at_once(9) > at_once(13) > at_once(22) > 1000
