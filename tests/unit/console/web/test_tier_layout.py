"""A partition as a line: scales, pieces, retention edges."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.console.web.line import drawing
from service.console.web.tier_layout import (
    BUCKET,
    BYTES,
    DISK,
    LOWER,
    OFFSETS,
    TIME,
    UPPER,
    WHOLE,
    Scale,
    TierBlock,
    TierLayout,
    lay_out_pieces,
    retention_edges,
    scale_of,
)


def block(tier: str, first: int, end: int, size: int, newest_ms: int, *, active: bool = False) -> TierBlock:
    return TierBlock(tier, first, end, size, 1, None, newest_ms, f"{tier}-{first}", active)


def both_tiers() -> TierLayout:
    """Offsets 0 to 400: the bucket to 300, the disk from 200."""
    blocks = (
        block(BUCKET, 0, 100, 1000, 10_000),
        block(BUCKET, 100, 200, 3000, 20_000),
        block(BUCKET, 200, 300, 1000, 30_000),
        block(DISK, 200, 300, 900, 30_000),
        block(DISK, 300, 400, 500, 40_000, active=True),
    )
    return TierLayout(0, 1, (1,), (1,), 0, 200, 300, 400, blocks)


def test_a_line_is_ice_then_both_then_water() -> None:
    line = both_tiers()
    pieces = lay_out_pieces(line, scale_of(line, OFFSETS), 0, 400, 0.001)
    found = [(piece.lane, piece.blocks[0].tier, piece.x, piece.x_end) for piece in pieces]
    assert found == [
        (WHOLE, BUCKET, 0, 0.25),
        (WHOLE, BUCKET, 0.25, 0.5),
        (UPPER, BUCKET, 0.5, 0.75),
        (LOWER, DISK, 0.5, 0.75),
        (WHOLE, DISK, 0.75, 1),
    ]


def test_bytes_and_time_stretch_the_same_line() -> None:
    line = both_tiers()
    by_bytes, by_time = scale_of(line, BYTES), scale_of(line, TIME)
    assert [by_bytes(offset) for offset in (0, 100, 200, 300, 400)] == [0, 1000, 4000, 5000, 5500]
    assert by_time(200) == 20_000
    assert by_time.offset_of(25_000) == 250


def test_thin_pieces_are_drawn_as_one() -> None:
    blocks = tuple(block(BUCKET, n, n + 1, 10, n) for n in range(10_000))
    line = TierLayout(0, 1, (1,), (1,), 0, 10_000, 10_000, 10_000, blocks)
    pieces = lay_out_pieces(line, scale_of(line, OFFSETS), 0, 10_000, 0.003)
    assert len(pieces) < 400
    assert sum(len(piece.blocks) for piece in pieces) == 10_000
    assert all(before.x_end == after.x for before, after in pairwise(pieces))


def test_retention_lets_go_where_time_and_bytes_say() -> None:
    settings = {"retention.ms": 20_000, "local.retention.bytes": 1500, "retention.bytes": 10**9}
    edges = {edge.what: edge.offset for edge in retention_edges(both_tiers(), settings, now_ms=45_000)}
    assert edges == {"retention.ms": 250, "local.retention.bytes": 200}


def test_a_layout_with_unknown_sizes_is_drawn_by_offsets_only() -> None:
    line = TierLayout(3, 1, (1,), (1,), 0, 0, 0, 10, (TierBlock(DISK, 0, 10, None, None, None, None, ""),))
    assert drawing(line, OFFSETS, 0, 10, 0) is not None
    assert drawing(line, BYTES, 0, 10, 0) is None
    assert drawing(line, TIME, 0, 10, 0) is None


@given(
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(-1, 2**50)), min_size=2, max_size=20),
    st.integers(0, 2**50),
)
@example([(0, -1), (0, -1)], 0)
def test_a_scale_rises_whatever_its_anchors(anchors: list[tuple[int, int]], offset: int) -> None:
    """Timestamps go back and forth in a log; a place on the line never does."""
    scale = Scale(sorted(anchors, key=lambda one: one[0]))
    assert scale.low <= scale(offset) <= scale.high
    assert scale(offset) <= scale(offset + 1) + 1e-12 * abs(scale(offset))


def test_a_partition_without_records_is_no_line() -> None:
    assert drawing(TierLayout(0, 1, (1,), (1,)), OFFSETS, 0, 1, 0) is None
    assert drawing(TierLayout(0, 1, (1,), (1,)), TIME, 0, 1, 0) is None


@pytest.mark.parametrize("name", ['<b>"', "&amp;"])
def test_names_in_a_line_are_text(name: str) -> None:
    line = TierLayout(0, 1, (1,), (1,), 0, 10, 10, 10, (TierBlock(BUCKET, 0, 10, 5, 1, 1, 2, name),))
    assert name not in str(drawing(line, OFFSETS, 0, 10, 0)).replace("&amp;amp;", "")
