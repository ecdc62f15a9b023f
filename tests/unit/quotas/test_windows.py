"""Averages over windows: what they are taken over, how long a client is throttled, what is forgotten."""

from __future__ import annotations

import pytest

from service.quotas.windows import WindowedRate


def rate(number: int = 11, size_ms: int = 1000) -> WindowedRate:
    return WindowedRate(number, size_ms)


def test_an_average_is_taken_over_ten_whole_windows_at_least() -> None:
    one = rate()
    assert one.over_ms(5) == 10_000
    one.record(1_000, 0)
    assert (one.over_ms(0), one.over_ms(999), one.over_ms(1_000)) == (10_000, 10_999, 10_000)
    assert one.over_ms(9_500) == 10_500
    assert one.over_ms(10_999) == 10_999, "more than the windows where the oldest one overlaps them"
    assert one.total == 1_000
    assert one.over_ms(11_000) == 10_000
    assert one.total == 0


@pytest.mark.parametrize(
    ("value", "limit", "throttle_ms"),
    [
        (1_000, 100.0, 0),
        (1_001, 100.0, 10),
        (2_000, 100.0, 10_000),
        (50_000_000, 1.0, 2_147_483_647),
        (0.15, 0.01, 5_000),
    ],
)
def test_a_throttle_lasts_until_the_average_is_at_the_limit(
    value: float, limit: float, throttle_ms: int
) -> None:
    one = rate()
    one.record(value, 0)
    assert one.throttle_ms(limit, 0) == throttle_ms


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 0.0, -1.0, float("nan")])
def test_a_limit_of_nearly_nothing_lets_nothing_pass(limit: float) -> None:
    """``request_percentage=1e-300`` can be set; 0 and less only by a log of others."""
    one = rate()
    one.record(1_000, 0)
    assert one.throttle_ms(limit, 0) == 2_147_483_647


def test_an_endless_limit_lets_all_pass() -> None:
    one = rate()
    one.record(1e300, 0)
    assert one.throttle_ms(float("inf"), 0) == 0


def test_a_value_that_is_taken_back_does_not_count() -> None:
    one = rate()
    one.record(900, 0)
    one.record(5_000, 1_500)
    assert one.throttle_ms(100.0, 1_500) > 0
    one.record(-5_000, 1_500)
    assert one.total == 900
    assert one.throttle_ms(100.0, 1_500) == 0


def test_there_are_at_most_the_windows_of_the_average_and_one_more() -> None:
    one = rate(number=3)
    for n in range(8):
        one.record(1, n * 1_000)
    assert len(list(one)) == 3, "the values of three windows are younger than three seconds"
    one = rate(number=3)
    for n in range(8):
        one.record(1, n * 1_000 + (n % 2) * 700)
        one.record(1, n * 1_000 + 999)
    assert len(list(one)) <= 4
    assert one.total == sum(window.value for window in one)


def test_fractions_do_not_add_up_to_an_error() -> None:
    one = rate()
    for n in range(200_000):
        one.record(0.1, n)
    kept = list(one)
    assert one.total == pytest.approx(sum(window.value for window in kept), rel=1e-9)
    one.purge(10_000_000)
    assert one.total == 0


def test_a_rate_is_idle_when_its_last_value_has_run_out() -> None:
    one = rate()
    assert one.is_idle(0)
    one.record(1, 0)
    one.record(1, 10_999)
    assert (one.is_idle(11_000), one.is_idle(21_998), one.is_idle(21_999)) == (False, False, True)


def test_a_clock_that_steps_back_throttles_nobody_for_ever() -> None:
    one = rate()
    one.record(900, 100_000)
    one.record(50, 40_000)
    assert one.throttle_ms(100.0, 40_000) == 0
    one.record(5_000, 40_000)
    assert 0 < one.throttle_ms(100.0, 40_000) < 60_000
    assert one.throttle_ms(100.0, 200_000) == 0
    assert one.is_idle(200_000)
