from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.spark.selection import (
    ALL_TIMES,
    EVERYTHING,
    NOTHING,
    Slab,
    Window,
    may_match,
    of_offsets,
    of_times,
)

spans = st.lists(st.tuples(st.integers(-3, 20), st.integers(-3, 20)), max_size=4)
leaves = st.builds(of_offsets, spans) | st.builds(of_times, spans)
windows = st.recursive(
    leaves,
    lambda inner: (
        st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda a, b: a | b, inner, inner)
        | st.builds(lambda a: ~a, inner)
    ),
    max_leaves=8,
)


def holds(window: Window, offset: int, time: int) -> bool:
    return any(
        slab.begin_offset <= offset < slab.end_offset and any(b <= time < e for b, e in slab.times)
        for slab in window.slabs
    )


GRID = [(offset, time) for offset in range(-1, 22) for time in range(-4, 22)]


@given(a=windows, b=windows)
def test_windows_join_meet_and_turn_round_as_conditions_do(a: Window, b: Window) -> None:
    for offset, time in GRID:
        here, there = holds(a, offset, time), holds(b, offset, time)
        assert holds(a & b, offset, time) == (here and there)
        assert holds(a | b, offset, time) == (here or there)
        assert holds(~a, offset, time) == (not here and offset >= 0)


@given(window=windows)
def test_slabs_are_sorted_apart_and_never_empty(window: Window) -> None:
    for slab in window.slabs:
        assert 0 <= slab.begin_offset < slab.end_offset
        assert slab.times
        assert all(begin < end for begin, end in slab.times)
        assert all(one[1] < other[0] for one, other in zip(slab.times, slab.times[1:], strict=False))
    for one, other in zip(window.slabs, window.slabs[1:], strict=False):
        assert one.end_offset <= other.begin_offset
        assert one.end_offset < other.begin_offset or one.times != other.times


@given(window=windows, begin=st.integers(0, 25), length=st.integers(0, 25))
def test_a_part_of_a_window_is_what_lies_between(window: Window, begin: int, length: int) -> None:
    part = Window(tuple(window.between(begin, begin + length)))
    for offset, time in GRID:
        inside = begin <= offset < begin + length
        assert holds(part, offset, time) == (inside and holds(window, offset, time))


@given(
    window=windows,
    first=st.integers(0, 20),
    span=st.integers(0, 5),
    low=st.integers(-1, 20),
    more=st.integers(0, 9),
)
def test_nothing_is_left_out_that_holds_a_wanted_record(
    window: Window, first: int, span: int, low: int, more: int
) -> None:
    """A least time of -1 is one that is not known."""
    high = low + more
    records = [
        (offset, time)
        for offset, time in GRID
        if first <= offset <= first + span and time <= high and (low < 0 or time >= low)
    ]
    if any(holds(window, *record) for record in records):
        assert window.may_want(first, first + span, low, high)


def test_ends_of_everything_and_nothing() -> None:
    assert ~EVERYTHING == NOTHING
    assert ~NOTHING == EVERYTHING
    assert not NOTHING
    assert of_offsets([(-5, 3)]).slabs == (Slab(0, 3, ALL_TIMES),)
    assert of_times([(5, 5)]) == NOTHING


@pytest.mark.parametrize(
    ("low", "high", "taken"),
    [(0, 99, False), (0, 100, True), (199, 300, True), (200, 300, False), (-1, 300, True), (-1, -1, False)],
)
def test_times_prune_what_lies_wholly_outside_and_trust_no_unknown_minimum(
    low: int, high: int, taken: bool
) -> None:
    assert may_match(((100, 200),), low, high) == taken
