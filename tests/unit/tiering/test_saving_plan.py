"""Offsets that a broker saves at a cut."""

from __future__ import annotations

import pytest

from service.tiering.cuts.saving_plan import (
    Growth,
    Saved,
    SavedRange,
    adopted,
    after,
    is_due_anew,
    section_of,
    waits_for_segment,
)


def test_each_cut_saves_what_came_since_and_each_level_one_all_behind_the_chain() -> None:
    saved = Saved(0, 0, -1)
    ends = [5, 5, 9, 12]
    found = []
    for n, end in enumerate(ends):
        section = section_of(saved, 0, end, is_high=n == 3)
        found.append(section)
        if section is not None:
            saved = after(saved, section, 2, is_high=n == 3)
    assert found == [SavedRange(0, 5), None, SavedRange(5, 9), SavedRange(0, 12)]
    assert saved == Saved(12, 12, 2)
    assert section_of(saved, 0, 20, is_high=True) == SavedRange(12, 20)


def test_a_chain_that_moved_on_needs_no_tail() -> None:
    saved = Saved(10, 4, 1)
    assert section_of(saved, 15, 15, is_high=False) is None
    assert section_of(saved, 15, 18, is_high=False) == SavedRange(15, 18)
    assert section_of(saved, 7, 18, is_high=True) == SavedRange(7, 18)
    assert section_of(saved, 3, 18, is_high=False) == SavedRange(10, 18)


@pytest.mark.parametrize(
    ("known_epoch", "log_end", "expected"),
    [
        (4, 50, Saved(30, 20, 4)),
        (5, 50, Saved(10, 10, -1)),
        (None, 50, Saved(10, 10, -1)),
        (4, 29, Saved(10, 10, -1)),
        (4, 30, Saved(30, 20, 4)),
    ],
)
def test_a_new_leader_goes_on_where_tails_end_if_its_log_has_the_same_bytes(
    known_epoch: int | None, log_end: int, expected: Saved
) -> None:
    assert adopted(Saved(30, 20, 4), known_epoch, 10, log_end) == expected


def test_a_new_leader_whose_chain_has_all_that_was_saved_begins_at_the_chain() -> None:
    assert adopted(Saved(30, 20, 4), 7, 30, 40) == Saved(30, 30, 4)
    assert adopted(Saved(30, 20, 4), None, 35, 40) == Saved(35, 35, 4)


@pytest.mark.parametrize(
    ("left_bytes", "left_ms", "bytes_per_ms", "expected"),
    [
        (1000, 10**9, 1.0, True),
        (1001, 10**9, 1.0, False),
        (10**9, 999, 0.0, True),
        (10**9, 1001, 0.0, False),
        (0, 10**9, 0.0, False),
        (0, 10**9, 0.1, True),
    ],
)
def test_a_segment_that_is_soon_sealed_is_waited_for(
    left_bytes: int, left_ms: int, bytes_per_ms: float, expected: bool
) -> None:
    for is_tiered in (True, False):
        waits = waits_for_segment(
            is_tiered=is_tiered,
            left_bytes=left_bytes,
            left_ms=left_ms,
            bytes_per_ms=bytes_per_ms,
            wait_ms=1000,
        )
        assert waits == (expected and is_tiered)


def test_growth_is_that_of_the_last_minute_or_two() -> None:
    growth = Growth(0, 0)
    assert growth.bytes_per_ms(0, 0) == 0
    assert growth.bytes_per_ms(100, 50) == 0.5
    growth.note(60_000, 60_000)
    assert growth.bytes_per_ms(120_000, 120_000) == 1.0
    growth.note(120_000, 60_000)
    growth.note(180_000, 60_000)
    assert growth.bytes_per_ms(200_000, 60_000) == 0


def test_a_compacted_log_is_saved_anew_once_tails_have_twice_of_it() -> None:
    assert is_due_anew(201, 100, 0)
    assert not is_due_anew(200, 100, 0)
    assert not is_due_anew(1 << 26, 0, 1 << 26)
