"""Offsets that a reset gives a group."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.client.offset_resets import LogSpan, at_time, current, shifted, within

A, B = ("t", 0), ("t", 1)
SPANS = {A: LogSpan(5, 20), B: LogSpan(0, 0)}


def test_an_offset_outside_of_the_log_comes_to_its_nearest_end() -> None:
    found = within({A: 3, B: 7}, SPANS)
    assert found.offsets == {A: 5, B: 0}
    assert found.notes == (
        "t-0 begins at 5: it gets that instead of 3",
        "t-1 ends at 0: it gets that instead of 7",
    )
    assert within({A: 20}, SPANS).notes == ()


def test_a_shift_is_from_what_is_committed() -> None:
    assert shifted([A], {A: 10}, -3, SPANS).offsets == {A: 7}
    assert shifted([A], {A: 10}, -300, SPANS).offsets == {A: 5}
    with pytest.raises(ConfigError, match="t-1"):
        shifted([A, B], {A: 10}, 1, SPANS)


def test_current_offsets_stay_even_outside_of_the_log() -> None:
    found = current([A, B], {A: 3}, SPANS)
    assert found.offsets == {A: 3, B: 0}
    assert found.notes == ("t-1 has no committed offset: it gets the end",)


def test_a_time_after_the_last_record_is_the_end() -> None:
    found = at_time({A: -1, B: 0}, SPANS)
    assert found.offsets == {A: 20, B: 0}
    assert found.notes == ("t-0 has no record of that time or later: it gets the end",)
