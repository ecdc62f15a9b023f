"""Any bytes that a producer sends become a readable batch or a protocol error."""

import struct
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError, RequestError
from service.records.batch import HEADER_SIZE, CompressionType, compute_crc, read_header, verify_crc
from service.records.compression import compress
from service.records.decode import iter_records
from service.records.scan import scan_batches
from service.records.validation import ValidationRules, validate_produced
from tests.support.built_batches import build_batch

NOW = 1_700_000_000_000
RULES = st.builds(
    ValidationRules,
    max_message_bytes=st.sampled_from([300, 1 << 20]),
    log_append_time=st.booleans(),
    timestamp_before_max_ms=st.sampled_from([0, 10**6, 2**63 - 1]),
    timestamp_after_max_ms=st.sampled_from([0, 3_600_000, 2**63 - 1]),
    compression_type=st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    max_inflated_bytes=st.sampled_from([64, 1 << 16]),
)


def is_refused_or_sound(data: bytes, rules: ValidationRules) -> None:
    try:
        batch = validate_produced(bytearray(data), rules, NOW)
    except RequestError:
        return
    assert verify_crc(batch.data, batch.header)
    assert batch.header == read_header(batch.data)
    records = list(iter_records(batch.data))
    assert [record.offset for record in records] == list(range(batch.record_count))
    if not rules.log_append_time:
        assert max([-1, *(r.timestamp for r in records)]) == batch.max_timestamp == batch.header.max_timestamp


@given(data=st.binary(max_size=300), rules=RULES)
@settings(max_examples=200, deadline=None)
def test_any_bytes(data: bytes, rules: ValidationRules) -> None:
    is_refused_or_sound(data, rules)


@st.composite
def near_batches(draw: st.DrawFn) -> bytes:
    """A batch with a few bytes or fields changed, whose length and checksum are mostly put right again."""
    codec = draw(st.sampled_from(CompressionType))
    rows = [(NOW + i, b"key", b"v" * draw(st.integers(0, 40))) for i in range(draw(st.integers(1, 5)))]
    data = build_batch(rows)
    for at, byte in draw(
        st.lists(st.tuples(st.integers(HEADER_SIZE, len(data) - 1), st.integers(0, 255)), max_size=3)
    ):
        data[at] = byte
    data[HEADER_SIZE:] = compress(codec, bytes(data[HEADER_SIZE:]))
    data[22] = codec
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=2)):
        data[at] = byte
    del data[draw(st.sampled_from([len(data), len(data), len(data) - 1, HEADER_SIZE])) :]
    data += draw(st.sampled_from([b"", b"", b"", b"\0", bytes(70)]))
    if draw(st.sampled_from([True, True, True, False])):
        struct.pack_into(">i", data, 8, len(data) - 12)
        data[16] = 2
        struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return bytes(data)


@given(data=near_batches(), rules=RULES)
@settings(max_examples=600, deadline=None)
def test_batches_that_are_nearly_right(data: bytes, rules: ValidationRules) -> None:
    is_refused_or_sound(data, rules)


@given(data=near_batches() | st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_readers_raise_corruption_and_nothing_else(data: bytes) -> None:
    with suppress(CorruptionError):
        list(iter_records(data, include_control=True, max_inflated_bytes=1 << 16))
    scan = scan_batches(data)
    assert 0 <= scan.end <= len(data)
    assert (scan.end == len(data)) == (scan.status == 0)
