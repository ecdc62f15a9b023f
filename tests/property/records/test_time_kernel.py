"""Searches by time give what going through the records one by one gives, in all lives of the kernel."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import service.records.time_kernel as imported
from service.base.errors import CorruptionError
from service.records import batch
from service.records.batch import CompressionType, iter_headers
from service.records.builder import BatchBuilder
from service.records.by_time import first_in_batches
from service.records.decode import records_of
from tests.support.kernels import interpreted

LIVES = [imported, *(interpreted(with_cython=found)["time_kernel"] for found in (True, False))]
BASE_MS = 1_700_000_000_000

timestamps = st.integers(BASE_MS - 5, BASE_MS + 5)
batches = st.lists(
    st.tuples(st.lists(timestamps, min_size=1, max_size=6), st.sampled_from(CompressionType), st.booleans()),
    min_size=1,
    max_size=5,
)


def same(call: str, *arguments: object) -> object:
    answers = []
    for life in LIVES:
        own = [a[:] if isinstance(a, array) else a for a in arguments]
        try:
            answers.append((getattr(life, call)(*own), [a for a in own if isinstance(a, array)]))
        except IndexError as error:
            answers.append((str(error), []))
    assert answers[1:] == answers[:-1]
    return answers[0][0]


def log_of(rows: list[tuple[list[int], CompressionType, bool]], gap: int = 0) -> bytes:
    data = bytearray()
    offset = 0
    for times, codec, by_log in rows:
        builder = BatchBuilder(base_offset=offset, codec=codec)
        for n, at in enumerate(times):
            builder.add(at, b"key", b"%d" % n, [(b"h", None)])
        one = bytearray(builder.build())
        if by_log:
            batch.set_log_append_time(one, 0, max(times))
        data += one
        offset += len(times) + gap
    return bytes(data)


@given(batches, timestamps, st.integers(0, 20), st.integers(0, 2))
def test_the_first_record_by_time_is_what_a_walk_finds(
    rows: list[tuple[list[int], CompressionType, bool]], timestamp: int, offset: int, gap: int
) -> None:
    data = log_of(rows, gap)
    expected = next(
        (
            (record.offset, record.timestamp, header.partition_leader_epoch)
            for header in iter_headers(data)
            for record in records_of(data, header)
            if record.timestamp >= timestamp and record.offset >= offset
        ),
        None,
    )
    assert first_in_batches(data, 0, len(data), timestamp, offset) == expected


@given(
    batches, timestamps, st.integers(0, 20), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)))
)
def test_damaged_bytes_are_answered_alike_by_all_lives(
    rows: list[tuple[list[int], CompressionType, bool]],
    timestamp: int,
    offset: int,
    edits: list[tuple[int, int]],
) -> None:
    data = bytearray(log_of(rows))
    for at, byte in edits:
        data[at % len(data)] = byte
    for end in (len(data), len(data) // 2, 61, 60, 0):
        same("find_batch", bytes(data), 0, min(end, len(data)), timestamp, offset)
    start, end = 61, min(len(data), 300)
    for count in (0, 1, len(rows[0][0])):
        for has_deltas in (0, 1):
            same("find_record", bytes(data), start, end, count, BASE_MS, has_deltas, timestamp, offset)
        for keys in (0, 1):
            out = array("q", [0] * 8)
            same("find_refused", bytes(data), start, end, count, BASE_MS, BASE_MS, timestamp, keys, out)
    same("find_record", bytes(data), 5, 4, 1, 0, 1, 0, 0)


@given(
    st.lists(st.tuples(timestamps, st.sampled_from([None, b"", b"k"])), min_size=1, max_size=30),
    timestamps,
    st.integers(1, 10),
    st.booleans(),
    st.booleans(),
)
def test_records_that_are_refused_are_named_until_there_is_no_more_room(
    records: list[tuple[int, bytes | None]], newest: int, room: int, needs_keys: bool, all_are: bool
) -> None:
    builder = BatchBuilder()
    for at, key in records:
        builder.add(at, key, b"")
    data = bytes(builder.build())
    header = next(iter_headers(data))
    out = array("q", [0] * (3 * room))
    oldest, newest = (1, 0) if all_are else (0, newest)
    asked = (data, 61, len(data), len(records), header.base_timestamp, oldest, newest, needs_keys)
    found, outside = imported.find_refused(*asked, out)
    expected = [
        (n, at, int(needs_keys and key is None))
        for n, (at, key) in enumerate(records)
        if (needs_keys and key is None) or all_are or at > newest
    ]
    assert (found, outside) == (len(expected), sum(not keyless for *_, keyless in expected))
    named = min(found, room)
    assert list(zip(*(out[field : 3 * named : 3] for field in range(3)), strict=True)) == expected[:room]
    same("find_refused", *asked, out)


def test_a_timestamp_beyond_64_bits_is_a_status_and_not_a_number() -> None:
    record = bytes([0x1E, 0, *([0xFE] + [0xFF] * 8 + [0x01]), 0, 1, 1, 0])  # delta 2**63 - 1
    answer = same("find_record", record, 0, len(record), 1, 2, 1, 0, 0)
    assert isinstance(answer, tuple)
    assert answer[:2] == (-7, 0)
    assert same("find_refused", record, 0, len(record), 1, 2, 0, 1, 0, array("q", [0, 0, 0])) == (0, 0)


def test_data_that_is_no_batch_is_refused_with_its_position() -> None:
    data = log_of([([BASE_MS], CompressionType.NONE, False)])
    with pytest.raises(CorruptionError, match=f"position {len(data)}"):
        first_in_batches(data + b"\0" * 61, 0, len(data) + 61, BASE_MS + 9, 0)
    with pytest.raises(CorruptionError, match="no whole batch"):
        first_in_batches(data + b"\0" * 3, 0, len(data) + 3, BASE_MS + 9, 0)
