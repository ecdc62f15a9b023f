"""A range of times reads what it has to, and the rows are those of reading everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.columns import ColumnDecoder
from service.records.decode import iter_records
from service.remote.format.manifest import ManifestLimits
from service.remote.reading.object_reader import open_footer_of
from service.spark.plan.splits import Split
from service.spark.read.downloads import Downloads
from service.spark.selection import END_OF_TIME, MIN_TIMESTAMP, all_match, may_match
from tests.unit.spark.bucket import START_MS, Bucket, plain

DAY_MS = 86_400_000
TABLE_BYTES = 100_000
"""Where a test counts bytes, the footers of a few segments are less than this."""


def rows(bucket: Bucket, splits: list[Split]) -> list[tuple[int, int]]:
    """(offset, timestamp) of every row that is wanted, in the order of splits."""
    found: list[tuple[int, int]] = []
    for split in splits:
        with Downloads(bucket.store, split.pieces, fetch_bytes=1 << 20, budget_bytes=8 << 20) as downloads:
            for piece, parts in downloads:
                decoder = ColumnDecoder(
                    want={"offset", "timestamp"},
                    min_offset=piece.begin_offset,
                    max_offset=piece.end_offset,
                    min_timestamp=piece.times[0][0],
                    max_timestamp=piece.times[-1][1],
                )
                for columns in decoder.decode_stream(parts):
                    assert columns.offsets is not None
                    assert columns.timestamps is not None
                    found += zip(columns.offsets, columns.timestamps, strict=True)
    return found


def at(milliseconds: int) -> str:
    """As a constant of `where`."""
    return f"TIMESTAMP '{datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)}'"


stamps = st.lists(
    st.one_of(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.sampled_from([-1, -7, 0])),
    min_size=1,
    max_size=4,
)
batches = st.tuples(stamps, st.sampled_from(CompressionType), st.none() | st.integers(0, 99))


@given(
    segments=st.lists(st.lists(batches, min_size=1, max_size=5), min_size=1, max_size=9),
    spread=st.sampled_from([0, 50, 1000]),
    bounds=st.lists(
        st.tuples(st.integers(-3, 9000) | st.none(), st.integers(-3, 9000) | st.none()), max_size=4
    ),
    block_bytes=st.sampled_from([1, 200, 1 << 20]),
)
@settings(max_examples=120, deadline=None)
def test_a_pruned_plan_reads_the_rows_of_one_that_is_not(
    segments: list[list[tuple[list[int], CompressionType, int | None]]],
    spread: int,
    bounds: list[tuple[int | None, int | None]],
    block_bytes: int,
) -> None:
    bucket = Bucket(block_bytes=block_bytes, limits=ManifestLimits(entries=2, page_refs=2))
    bucket.topic("t")
    log = b""
    for number, parts in enumerate(segments):
        made = []
        offset = bucket.end("t")
        for times, codec, append_time in parts:
            since = number * spread
            builder = BatchBuilder(
                offset, codec, log_append_time=None if append_time is None else append_time + since
            )
            for time in times:
                builder.add(time + since if time >= 0 else time, None, b"v")
            made.append(bytes(builder.build()))
            offset += len(times)
        bucket.add("t", batches=made)
        log += b"".join(made)
    everything = [(record.offset, record.timestamp) for record in iter_records(log)]
    assert rows(bucket, bucket.plan(subscribe="t")) == everything
    for low, high in bounds:
        terms = ["offset >= 0"]
        if low is not None:
            terms.append(f"timestamp >= {at(low)}")
        if high is not None:
            terms.append(f"timestamp < {at(high)}")
        where = " and ".join(terms)
        expected = [
            row for row in everything if (low is None or low <= row[1]) and (high is None or row[1] < high)
        ]
        assert rows(bucket, bucket.plan(where, subscribe="t")) == expected


def days(count: int, *, value_bytes: int = 100, limits: ManifestLimits | None = None) -> Bucket:
    """A segment a day, of 200 records a second apart."""
    bucket = Bucket(block_bytes=20_000, limits=limits or ManifestLimits())
    bucket.topic("t")
    for day in range(count):
        first = START_MS + day * DAY_MS
        made = [plain(200 * day + 10 * i, first + 10_000 * i, value_bytes=value_bytes) for i in range(20)]
        bucket.add("t", batches=made)
    bucket.store.reset()
    return bucket


def between(begin_ms: int, end_ms: int) -> str:
    return f"timestamp >= {at(begin_ms)} and timestamp < {at(end_ms)}"


def test_younger_segments_and_their_pages_are_not_read() -> None:
    bucket = days(40, limits=ManifestLimits(entries=4, page_refs=4))
    begin = START_MS + 9 * DAY_MS
    splits = bucket.plan(between(begin, begin + DAY_MS), subscribe="t")
    assert [piece.entry.base_offset for split in splits for piece in split.pieces] == [1800]
    pages = sum(count for key, count in bucket.store.gets.items() if "/page/" in key)
    depth = 1 + max(ref.level for ref in bucket.manifest("t", 0).pages)
    assert pages == depth, "one for each level"
    assert not bucket.store.got(".seg")
    assert not bucket.plan("timestamp < '2001-01-01 00:00:00Z'", subscribe="t")


def test_only_segments_on_the_border_are_looked_into() -> None:
    """The others lie wholly within the range, so all of their blocks are wanted."""
    bucket = days(7, value_bytes=10_000)
    begin, end = START_MS + DAY_MS + 100_000, START_MS + 5 * DAY_MS + 100_000
    splits = bucket.plan(between(begin, end), subscribe="t")
    entries = list(bucket.manifest("t", 0).entries)
    assert set(bucket.store.got(".seg")) == {entries[1].key, entries[5].key}
    wanted = sum(entry.log_length for entry in entries[2:5]) + entries[1].log_length // 2
    planned = sum(piece.end_byte - piece.first_byte for split in splits for piece in split.pieces)
    assert wanted <= planned - entries[5].log_length // 2 <= wanted + 2 * TABLE_BYTES
    expected = [*range(300, 400), *range(400, 1000), *range(1000, 1100)]
    assert [offset for offset, _ in rows(bucket, splits)] == expected


def test_a_segment_in_which_one_record_has_no_time_is_read_and_its_other_blocks_are_pruned() -> None:
    bucket = days(3, value_bytes=10_000)
    last = [plain(600 + 10 * i, START_MS + 3 * DAY_MS, value_bytes=10_000) for i in range(20)]
    builder = BatchBuilder(700)
    for _ in range(10):
        builder.add(START_MS + 3 * DAY_MS if len(builder) else -1, None, b"v")
    last[10] = bytes(builder.build())
    entry = bucket.add("t", batches=last)
    assert entry.min_timestamp == -1
    known = [block.min_timestamp > 0 for block in open_footer_of(bucket.store, entry).blocks]
    assert known.count(False) == 1
    assert bucket.manifest("t", 0).entries[0].min_timestamp == START_MS
    (split,) = bucket.plan(f"timestamp < {at(0)}", subscribe="t")
    (piece,) = split.pieces
    assert piece.entry.key == entry.key
    assert piece.end_byte - piece.first_byte < TABLE_BYTES
    assert rows(bucket, [split]) == [(700, -1)]


@pytest.mark.parametrize("begin", [MIN_TIMESTAMP, -5, 0, 9, 10, 11])
@pytest.mark.parametrize("end", [0, 10, 20, 21, END_OF_TIME])
@pytest.mark.parametrize("span", [(10, 20), (0, 20), (-1, 20), (-1, -1), (10, 10)])
def test_all_times_are_taken_where_no_record_can_be_left_out(
    begin: int, end: int, span: tuple[int, int]
) -> None:
    times = ((begin, end),)
    low, high = span
    if all_match(times, low, high):
        # Where the minimum is not known, records may be as old as there is a number for.
        assert begin <= (low if low >= 0 else MIN_TIMESTAMP)
        assert high < end
        assert may_match(times, low, high)
    else:
        assert low < 0 or not all(begin <= time < end for time in (low, high))
