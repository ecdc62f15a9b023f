"""The smallest piece of a segment that the planner cuts off for equal splits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from service.spark.plan.splits import SegmentCandidate, SplitLimits, needs_blocks, plan_splits
from service.spark.selection import ALL_TIMES

KIB = 1024


def planned(log_kib: list[int], max_kib: int) -> list[list[tuple[int, int, int]]]:
    """Return the pieces of each split: segment, first and end KiB. Opening one counts 256 KiB."""
    candidates = []
    for n, size in enumerate(log_kib):
        entry: Any = SimpleNamespace(log_length=size * KIB, base_offset=10 * n, last_offset=10 * n + 9, key=n)
        candidates.append(SegmentCandidate("t", 0, entry, 0, 1000))
    splits = plan_splits(candidates, SplitLimits(max_kib * KIB))
    pieces = [[(piece.entry, piece) for piece in split.pieces] for split in splits]
    return [
        [(int(str(entry.key)), piece.first_byte // KIB, piece.end_byte // KIB) for entry, piece in split]
        for split in pieces
    ]


def test_pieces_are_cut_off_down_to_an_eighth_of_a_split() -> None:
    assert planned([1000, 1000], 1024) == [
        [(0, 0, 581)],
        [(0, 581, 1000), (1, 0, 162)],
        [(1, 162, 1000)],
    ]
    assert planned([1500, 500], 2048) == [[(0, 0, 1000)], [(0, 1000, 1500), (1, 0, 500)]]


def test_less_than_that_goes_with_its_neighbour() -> None:
    assert planned([1100, 1500], 1664) == [[(0, 0, 1100)], [(1, 0, 1500)]]


def test_large_splits_are_made_equal_by_pieces_of_a_mebibyte_and_no_less() -> None:
    assert planned([17152, 15104], 16384) == [[(0, 0, 16128)], [(0, 16128, 17152), (1, 0, 15104)]]
    assert planned([17151, 15105], 16384) == [[(0, 0, 17151)], [(1, 0, 15105)]]


def test_a_segment_that_is_small_beside_a_split_stays_whole() -> None:
    """A merge may replace it before it is read; an object that several tasks share is not found again then.
    By default a split has 256 MiB, and merges leave objects of 16 MiB alone."""
    small = planned([15 * 1024] * 200, 256 * 1024)
    assert all(first == 0 and end == 15 * 1024 for split in small for _, first, end in split)
    sizes = [sum(end - first for _, first, end in split) for split in small]
    assert len(sizes) == 12
    assert min(sizes) >= 16 * 15 * 1024
    assert max(sizes) <= 17 * 15 * 1024
    large = planned([40 * 1024] * 50, 256 * 1024)
    assert any(first for split in large for _, first, _ in split)


@pytest.mark.parametrize(("size", "wanted"), [(1024 * KIB, False), (1024 * KIB + 1, True)])
def test_small_segments_are_read_without_their_block_table(size: int, wanted: bool) -> None:
    entry: Any = SimpleNamespace(
        log_length=size, base_offset=0, last_offset=9, min_timestamp=0, max_timestamp=9
    )
    assert needs_blocks(entry, 5, 10, ALL_TIMES) is wanted
    assert not needs_blocks(entry, 0, 10, ALL_TIMES)
