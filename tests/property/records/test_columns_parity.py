"""Columns hold what `iter_records` reads, in every life of the kernel, however they are cut into chunks."""

from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.records import column_kernel, columns
from service.records.batch import CompressionType, iter_headers
from service.records.builder import encode_record
from service.records.column_kernel import HEADER_COST
from service.records.columns import COLUMNS, ColumnDecoder, Columns
from service.records.compression import compress
from service.records.decode import iter_records, records_of
from tests.support import batches
from tests.support.kernels import interpreted

LIVES = [column_kernel, *(interpreted(with_cython=found)["column_kernel"] for found in (True, False))]


class Row(NamedTuple):
    """One row; what was not wanted is `...`."""

    offset: Any = ...
    timestamp: Any = ...
    timestamp_type: Any = ...
    key: Any = ...
    value: Any = ...
    headers: Any = ...

    def only(self, want: frozenset[str]) -> "Row":
        names = ("offset", "timestamp", "timestampType", "key", "value", "headers")
        return Row(*(cell if name in want else ... for name, cell in zip(names, self, strict=True)))

    def cost(self) -> int:
        """Its bytes as `max_bytes` counts them."""
        headers = () if self.headers is ... else self.headers
        cells = [self.key, self.value, *(cell for pair in headers for cell in pair)]
        return HEADER_COST * len(headers) + sum(len(cell) for cell in cells if isinstance(cell, bytes | str))


def blobs(
    count: int, validity: memoryview | None, offsets: memoryview, data: memoryview
) -> list[bytes | None]:
    assert len(offsets) == count + 1
    assert (offsets[0], offsets[count]) == (0, len(data))
    assert offsets.format == "i"
    assert validity is None or len(validity) == (count + 7) // 8
    return [
        bytes(data[start:end]) if validity is None or validity[i >> 3] >> (i & 7) & 1 else None
        for i, (start, end) in enumerate(pairwise(offsets))
    ]


def rows_of(c: Columns) -> list[Row]:
    """The rows of a chunk, read by Arrow's rules."""
    for numbers, kind in ((c.offsets, "q"), (c.timestamps, "q"), (c.timestamp_types, "i")):
        assert numbers is None or (numbers.format, len(numbers)) == (kind, c.count)
    cells: list[Any] = [c.offsets, c.timestamps, c.timestamp_types]
    cells += (
        blobs(c.count, validity, offsets, data) if offsets is not None and data is not None else None
        for validity, offsets, data in (
            (c.key_validity, c.key_offsets, c.key_data),
            (c.value_validity, c.value_offsets, c.value_data),
        )
    )
    lists = c.header_lists
    if lists is not None:
        assert (lists.format, len(lists), lists[0]) == ("i", c.count + 1, 0)
        assert c.header_key_offsets is not None
        assert c.header_key_data is not None
        assert c.header_value_offsets is not None
        assert c.header_value_data is not None
        total = lists[c.count]
        keys = blobs(total, None, c.header_key_offsets, c.header_key_data)
        values = blobs(total, c.header_value_validity, c.header_value_offsets, c.header_value_data)
        texts = [key.decode() for key in keys if key is not None]
        pairs = list(zip(texts, values, strict=True))
        cells.append([tuple(pairs[start:end]) for start, end in pairwise(lists)])
    else:
        cells.append(None)
    return [Row(*(... if cell is None else cell[i] for cell in cells)) for i in range(c.count)]


def answer(life: ModuleType, data: bytes, **options: Any) -> tuple[list[list[Row]], str]:
    """Chunks, and the error that ended them if one did."""
    chunks: list[list[Row]] = []
    with patch.object(columns, "ColumnWriter", life.ColumnWriter):
        try:
            chunks.extend(rows_of(chunk) for chunk in ColumnDecoder(**options).decode(data))
        except CorruptionError as error:
            return chunks, str(error)
    return chunks, ""


def in_all_lives(data: bytes, **options: Any) -> tuple[list[list[Row]], str]:
    """The one answer of every life."""
    answers = [answer(life, data, **options) for life in LIVES]
    assert answers[1:] == answers[:-1]
    return answers[0]


content = st.none() | st.binary(max_size=20) | st.sampled_from([b"", b"x" * 100, b"y" * 3000])
headers = st.lists(st.tuples(st.text("abc", max_size=4), st.none() | st.binary(max_size=8)), max_size=3)
rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60) | st.just(-1), content, content, headers),
    min_size=1,
    max_size=12,
)


@st.composite
def a_batch(draw: st.DrawFn, offset: int) -> tuple[bytes, int]:
    """A batch as a broker or its compaction leaves it, and the offset after it."""
    gaps = draw(st.booleans())
    delta, payload, timestamps = -1, b"", []
    base = draw(st.sampled_from([0, 30, 2**40]))
    for gap, timestamp, key, value, found in draw(rows):
        delta += 1 + (gap if gaps else 0)
        payload += encode_record(delta, timestamp - base, key, value, found)
        timestamps.append(timestamp)
    count, last = len(timestamps), delta + (draw(st.integers(0, 3)) if gaps else 0)
    if draw(st.integers(0, 9)) == 0:
        payload, count, timestamps = b"", 0, [-1]
    codec = draw(st.sampled_from(CompressionType)) if count else CompressionType.NONE
    attributes = codec | draw(st.sampled_from([0, 0, 8, 16, 16, 24, 32, 48]))
    data = batches.batch(
        payload=bytes(compress(codec, payload)),
        base_offset=offset,
        attributes=attributes,
        last_offset_delta=last,
        base_timestamp=base,
        max_timestamp=max(timestamps),
        producer_id=draw(st.integers(0, 2)),
        count=count,
    )
    return data, offset + last + 1


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    log, offset = b"", draw(st.integers(0, 5) | st.just(2**40))
    for _ in range(draw(st.integers(0, 5))):
        data, offset = draw(a_batch(offset))
        log += data
        offset += draw(st.integers(0, 3))
    return log


wants = st.frozensets(st.sampled_from(sorted(COLUMNS))) | st.just(COLUMNS)


def expected(data: bytes, aborted: list[tuple[int, int, int]] = []) -> Iterator[Row]:  # noqa: B006
    for header in iter_headers(data):
        if header.is_control:
            continue
        if header.is_transactional and any(
            producer_id == header.producer_id and first <= header.last_offset and last >= header.base_offset
            for producer_id, first, last in aborted
        ):
            continue
        for record in records_of(data, header):
            pairs = tuple(
                (key if isinstance(key, str) else key.decode(errors="replace"), value)
                for key, value in record.headers
            )
            yield Row(*record[:5], pairs)


@given(data=logs())
@settings(deadline=None)
def test_columns_hold_what_the_record_reader_reads(data: bytes) -> None:
    chunks, error = in_all_lives(data)
    assert not error
    assert [row for chunk in chunks for row in chunk] == list(expected(data))
    assert len(chunks) == bool(list(iter_records(data)))


@given(
    data=logs(),
    want=wants,
    offsets=st.tuples(st.integers(0, 90), st.integers(0, 120) | st.just(2**63 - 1)),
    times=st.tuples(*[st.none() | st.integers(-2, 62)] * 2),
    aborted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 90)), max_size=4),
    verify_crc=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_rows_are_cut_as_asked_and_aborted_ones_left_out(
    data: bytes,
    want: frozenset[str],
    offsets: tuple[int, int],
    times: tuple[int | None, int | None],
    aborted: list[tuple[int, int, int]],
    verify_crc: bool,
) -> None:
    chunks, error = in_all_lives(
        data,
        want=want,
        min_offset=offsets[0],
        max_offset=offsets[1],
        min_timestamp=times[0],
        max_timestamp=times[1],
        aborted=aborted,
        verify_crc=verify_crc,
    )
    assert not error
    assert [row for chunk in chunks for row in chunk] == [
        row.only(want)
        for row in expected(data, aborted)
        if offsets[0] <= row.offset < offsets[1]
        and (times[0] is None or row.timestamp >= times[0])
        and (times[1] is None or row.timestamp < times[1])
    ]


@given(
    data=logs(),
    want=wants,
    max_rows=st.integers(1, 9) | st.just(200_000),
    max_bytes=st.integers(1, 300) | st.just(5000),
)
@settings(max_examples=200, deadline=None)
def test_a_chunk_ends_where_the_next_row_would_be_too_much(
    data: bytes, want: frozenset[str], max_rows: int, max_bytes: int
) -> None:
    chunks, error = in_all_lives(data, want=want, max_rows=max_rows, max_bytes=max_bytes)
    assert not error
    greedy: list[list[Row]] = []
    for row in (row.only(want) for row in expected(data)):
        last = greedy[-1] if greedy else []
        if not last or len(last) == max_rows or sum(r.cost() for r in [*last, row]) > max_bytes:
            greedy.append([])
        greedy[-1].append(row)
    assert chunks == greedy


@given(data=logs(), cuts=st.sets(st.integers(0, 6)), max_rows=st.integers(1, 30))
@settings(deadline=None)
def test_parts_of_a_stream_leave_no_seams(data: bytes, cuts: set[int], max_rows: int) -> None:
    starts = [header.position for index, header in enumerate(iter_headers(data)) if index in cuts]
    ends = [*starts, len(data)]
    parts = [data[start:end] for start, end in pairwise([0, *ends])]
    decoder = ColumnDecoder(max_rows=max_rows)
    assert [rows_of(c) for c in decoder.decode_stream(parts)] == [rows_of(c) for c in decoder.decode(data)]


@given(
    data=logs(),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 100),
    want=wants,
    max_rows=st.sampled_from([2, 1000]),
)
@settings(max_examples=400, deadline=None)
def test_damaged_data_are_answered_alike_and_never_wrongly(
    data: bytes, edits: list[tuple[int, int]], cut: int, want: frozenset[str], max_rows: int
) -> None:
    damaged = bytearray(data)
    for at, byte in edits:
        if damaged:
            damaged[at % len(damaged)] = byte
    log = bytes(damaged[: len(damaged) - cut if cut < 20 else None])
    limits = {"max_rows": max_rows, "max_inflated_bytes": 1 << 16}
    in_all_lives(log, want=want, **limits)
    chunks, error = in_all_lives(log, **limits)
    try:
        records = list(expected(log))
    except (CorruptionError, OverflowError):
        assert error
        return
    found = [row for chunk in chunks for row in chunk]
    assert found == records[: len(found)]
    assert error or len(found) == len(records)


@given(data=st.binary(max_size=200), want=wants)
@settings(deadline=None)
def test_any_bytes_are_answered_alike(data: bytes, want: frozenset[str]) -> None:
    in_all_lives(data, want=want)


@pytest.mark.skipif(not column_kernel.COMPILED, reason="the kernel is not compiled on this machine")
def test_the_compiled_kernel_is_the_one_in_use() -> None:
    assert not column_kernel.__file__.endswith(".py")
