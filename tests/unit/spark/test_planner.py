from __future__ import annotations

import pickle
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.remote.format.block_table import BlockTable, LogBlock
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import SegmentEntry
from service.spark.plan.splits import SegmentCandidate, Split, SplitLimits, plan_splits, wanted_blocks
from service.spark.selection import ALL_TIMES, Times

MIB = 1 << 20


def table_of(lengths: list[int], base_offset: int = 0, per_block: int = 10) -> BlockTable:
    """Blocks of these lengths, `per_block` records in each, one record a millisecond."""
    position, rows = 0, []
    for number, length in enumerate(lengths):
        first = base_offset + number * per_block
        last = first + per_block - 1
        rows.append(LogBlock(position, length, 0, first, last, first, last, per_block, 1))
        position += length
    return BlockTable.of(rows)


def segment_of(blocks: BlockTable, partition: int = 0) -> SegmentEntry:
    first, last = blocks[0].first_offset, blocks[len(blocks) - 1].last_offset
    log_length = blocks[len(blocks) - 1].end
    key = segment_key(SegmentKey(UUID(int=1), partition, first, last, 0, UUID(int=9)))
    return SegmentEntry(first, last, log_length + 500, log_length, last, last, (), key, log_length + 10, 77)


def candidate_of(
    blocks: BlockTable, partition: int = 0, *, shown: bool = False, begin: int = 0, end: int = 1 << 62
) -> SegmentCandidate:
    entry = segment_of(blocks, partition)
    return SegmentCandidate("t", partition, entry, begin, end, (), blocks if shown else None)


def read_by(splits: list[Split], tables: dict[str, BlockTable]) -> Counter[tuple[str, int]]:
    """Return how often each offset is read, if tasks choose blocks and rows as readers do."""
    seen: Counter[tuple[str, int]] = Counter()
    for split in splits:
        for piece in split.pieces:
            blocks = wanted_blocks(
                tables[piece.entry.key],
                piece.times,
                piece.begin_offset,
                piece.end_offset,
                piece.first_byte,
                piece.end_byte,
            )
            for block in blocks:
                for offset in range(block.first_offset, block.last_offset + 1):
                    in_time = any(begin <= offset < end for begin, end in piece.times)
                    if piece.begin_offset <= offset < piece.end_offset and in_time:
                        seen[piece.entry.key, offset] += 1
    return seen


lengths = st.lists(st.sampled_from([1, 1000, 200_000, MIB, 3 * MIB]), min_size=1, max_size=12)


@given(
    segments=st.lists(lengths, min_size=1, max_size=8),
    shown=st.booleans(),
    begin=st.integers(0, 150),
    length=st.integers(0, 150),
    by_time=st.booleans(),
    max_bytes=st.sampled_from([64 << 10, MIB, 5 * MIB, 128 * MIB]),
    min_splits=st.integers(1, 50),
    max_records=st.none() | st.integers(1, 40),
)
def test_every_wanted_row_is_in_exactly_one_split(
    segments: list[list[int]],
    shown: bool,
    begin: int,
    length: int,
    by_time: bool,
    max_bytes: int,
    min_splits: int,
    max_records: int | None,
) -> None:
    times: Times = ((begin, begin + length),) if by_time else ALL_TIMES
    limits = SplitLimits(max_bytes, min_splits, max_records)
    tables, candidates = {}, []
    for partition, blocks in enumerate(segments):
        table = table_of(blocks)
        # As the planner's caller has it: what is not wanted is no candidate.
        if by_time or begin <= table[len(table) - 1].last_offset:
            candidate = candidate_of(
                table,
                partition,
                shown=shown,
                begin=0 if by_time else begin,
                end=1 << 62 if by_time else begin + length,
            )._replace(times=times)
            tables[candidate.entry.key] = table
            if by_time or length:
                candidates.append(candidate)
    splits = plan_splits(candidates, limits)
    expected = Counter(
        {
            (key, offset): 1
            for key, table in tables.items()
            for offset in range(begin, begin + length)
            if offset <= table[len(table) - 1].last_offset
        }
    )
    assert read_by(splits, tables) == expected
    if max_records is not None:
        for split in splits:
            assert sum(read_by([split], tables).values()) <= max_records


@given(
    big=st.integers(100, 900),
    small=st.integers(0, 300),
    shown=st.booleans(),
)
def test_splits_are_of_equal_bytes_whether_segments_are_big_or_small(
    big: int, small: int, shown: bool
) -> None:
    candidates = [candidate_of(table_of([MIB] * big), 0, shown=shown)]
    candidates += [candidate_of(table_of([200_000]), n + 1, shown=shown) for n in range(small)]
    splits = plan_splits(candidates, SplitLimits(64 * MIB))
    sizes = sorted(split.size_bytes for split in splits)
    total = sum(candidate.entry.log_length for candidate in candidates)
    assert total <= sum(sizes) <= total + (1 + small) * (256 << 10)
    assert sizes[-1] <= 65 * MIB
    assert sizes[-1] - sizes[0] <= 2 * MIB + 256 * 1024


def test_one_hot_partition_among_many_small_ones_makes_no_long_task() -> None:
    candidates = [candidate_of(table_of([MIB] * 1000), 0)]
    candidates += [candidate_of(table_of([50_000]), n) for n in range(1, 200)]
    sizes = sorted(s.size_bytes for s in plan_splits(candidates, SplitLimits(128 * MIB)))
    assert sizes[-1] <= 1.05 * sizes[len(sizes) // 2]


def test_small_data_is_spread_over_the_tasks_that_are_worth_having() -> None:
    candidates = [candidate_of(table_of([100_000]), n) for n in range(40)]
    assert len(plan_splits(candidates, SplitLimits(128 * MIB, min_splits=4))) == 4
    assert len(plan_splits(candidates, SplitLimits(128 * MIB))) == 1
    nothing: list[SegmentCandidate] = []
    assert plan_splits(nothing, SplitLimits(MIB)) == []


def test_the_last_wave_of_tasks_is_a_full_one() -> None:
    candidates = [candidate_of(table_of([MIB] * 500), 0)]
    assert len(plan_splits(candidates, SplitLimits(128 * MIB))) == 4
    for wave, splits in ((2, 4), (3, 6), (8, 8)):
        sizes = [s.size_bytes for s in plan_splits(candidates, SplitLimits(128 * MIB, wave=wave))]
        assert len(sizes) == splits
        assert max(sizes) - min(sizes) <= 2 * MIB


def test_a_small_offset_range_of_a_segment_makes_a_small_split() -> None:
    blocks = table_of([MIB] * 100)
    (split,) = plan_splits([candidate_of(blocks, shown=True, begin=500, end=520)], SplitLimits(128 * MIB))
    (piece,) = split.pieces
    assert (piece.first_byte, piece.end_byte) == (50 * MIB, 52 * MIB)
    assert (piece.begin_offset, piece.end_offset) == (500, 520)
    assert split.size_bytes < 3 * MIB


def test_a_block_with_more_records_than_a_split_may_hold_is_read_by_several() -> None:
    blocks = table_of([MIB], per_block=100)
    splits = plan_splits([candidate_of(blocks, shown=True)], SplitLimits(MIB, max_records=30))
    assert [(s.pieces[0].begin_offset, s.pieces[0].end_offset) for s in splits] == [
        (0, 30),
        (30, 60),
        (60, 90),
        (90, 100),
    ]


@pytest.mark.parametrize("min_splits", [1, 10**9])
def test_splits_are_small_to_send_however_many_are_asked_for(min_splits: int) -> None:
    candidates = [candidate_of(table_of([MIB] * 30), n) for n in range(4)]
    splits = plan_splits(candidates, SplitLimits(128 * MIB, min_splits))
    assert len(splits) <= 4 * 30 * 16 + 4 * 5
    assert max(len(pickle.dumps(split)) for split in splits) < 2500
    assert pickle.loads(pickle.dumps(splits)) == splits
