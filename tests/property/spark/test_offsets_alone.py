"""Reads of offsets alone are answered by the block table, without a download."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.records.columns import ColumnDecoder
from service.remote.format.manifest import SegmentEntry
from service.spark.plan.splits import Split
from service.spark.read.downloads import Downloads
from tests.unit.spark.bucket import START_MS, Bucket, CountingStore, marker, plain, transactional


def read_offsets(store: CountingStore, splits: list[Split], *, alone: bool) -> list[int]:
    found: list[int] = []
    for split in splits:
        with Downloads(
            store,
            split.pieces,
            fetch_bytes=100_000,
            budget_bytes=1 << 20,
            offsets_alone=alone,
        ) as downloads:
            for piece, parts in downloads:
                decoder = ColumnDecoder(
                    want={"offset"},
                    min_offset=piece.begin_offset,
                    max_offset=piece.end_offset,
                    aborted=piece.aborted,
                )
                for part in parts:
                    if isinstance(part, range):
                        assert alone
                        assert part
                        found.extend(part)
                        continue
                    for columns in decoder.decode(part):
                        assert columns.offsets is not None
                        found.extend(columns.offsets)
    return found


def footers(bucket: Bucket) -> int:
    """The bytes of all footers."""
    entries = bucket.manifest("t", 0).children
    return sum(e.size - e.footer_position for e in entries if isinstance(e, SegmentEntry))


def test_a_log_without_gaps_costs_no_more_than_its_footers() -> None:
    bucket = Bucket(block_bytes=20_000)
    bucket.topic("t")
    for _ in range(4):
        base = bucket.end("t")
        bucket.add("t", batches=[plain(base + 10 * i, START_MS, value_bytes=10_000) for i in range(20)])
    splits = bucket.plan(subscribe="t", startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":773}}')
    bucket.store.reset()
    assert read_offsets(bucket.store, splits, alone=True) == list(range(7, 773))
    assert sum(bucket.store.bytes.values()) == footers(bucket)
    bucket.store.reset()
    assert read_offsets(bucket.store, splits, alone=False) == list(range(7, 773))
    assert sum(bucket.store.bytes.values()) > 7_000_000


def test_a_segment_with_transactions_is_read() -> None:
    bucket = Bucket(block_bytes=1)
    bucket.topic("t")
    bucket.add("t", batches=[plain(0, START_MS), transactional(10, 7, 5), marker(15, 7, commit=False)],
               txn_rows=[(7, 10, 15, 16)])  # fmt: skip
    bucket.add("t", batches=[plain(16, START_MS)])
    assert read_offsets(bucket.store, bucket.plan(subscribe="t"), alone=True) == [*range(15), *range(16, 26)]
    committed = bucket.plan(subscribe="t", isolationLevel="read_committed")
    assert read_offsets(bucket.store, committed, alone=True) == [*range(10), *range(16, 26)]


def test_an_object_that_is_gone_is_missed_though_nothing_of_its_log_is_wanted() -> None:
    bucket = Bucket()
    bucket.topic("t")
    entry = bucket.add("t")
    splits = bucket.plan(subscribe="t")
    data = bytearray(bucket.store.get(entry.key, max_size=1 << 30))
    data[entry.size - 30] ^= 1
    bucket.store.put(entry.key, data)
    with pytest.raises(CorruptionError, match=entry.key):
        read_offsets(bucket.store, splits, alone=True)


@given(
    segments=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), min_size=1, max_size=12),
        min_size=1,
        max_size=4,
    ),
    block_bytes=st.sampled_from([1, 300, 1000, 1 << 20]),
    begin=st.integers(0, 60),
    length=st.integers(0, 80),
)
def test_the_offsets_are_those_that_reading_gives(
    segments: list[list[tuple[int, int, bool]]], block_bytes: int, begin: int, length: int
) -> None:
    """Batches after gaps of some offsets, of some records, some of them in a transaction."""
    bucket = Bucket(block_bytes=block_bytes)
    bucket.topic("t")
    for rows in segments:
        offset, batches = bucket.end("t"), []
        for gap, count, is_transactional in rows:
            offset += gap
            one = transactional(offset, 7, count) if is_transactional else plain(offset, START_MS, count)
            batches.append(one)
            offset += count
        bucket.add("t", batches=batches)
    end = min(begin + length, bucket.end("t"))
    splits = bucket.plan(
        subscribe="t",
        startingOffsets=f'{{"t":{{"0":{min(begin, end)}}}}}',
        endingOffsets=f'{{"t":{{"0":{end}}}}}',
    )
    expected = read_offsets(bucket.store, splits, alone=False)
    assert read_offsets(bucket.store, splits, alone=True) == expected
