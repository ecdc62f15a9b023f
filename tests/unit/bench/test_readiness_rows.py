"""Medians, bounds and reckoned requests of the bench of the price of being ready."""

from __future__ import annotations

from bench.readiness_rows import Bar, Kind, Line, an_hour, lines_of, reckoned_puts, void_share

RATE = Kind("produced", "MB/s", Bar.RATE)
P99 = Kind("p99", "ms", Bar.TIMES)
P999 = Kind("p99.9", "ms", Bar.MORE)
TOLD = Kind("tails", "GB")


def test_medians_of_each_side_are_compared() -> None:
    found = {
        False: [{RATE: 100.0, P99: 4.0}, {RATE: 300.0, P99: 2.0}, {RATE: 110.0, P99: 90.0}],
        True: [{RATE: 99.0, P99: 5.0}, {RATE: 1.0, P99: 5.0}, {RATE: 105.0, P99: 1.0}],
    }
    assert lines_of(found) == [Line(RATE, 110.0, 99.0), Line(P99, 4.0, 5.0)]


def test_a_rate_may_fall_by_a_twentieth() -> None:
    assert not Line(RATE, 100.0, 95.0).is_over
    assert Line(RATE, 100.0, 94.9).is_over
    assert not Line(RATE, 100.0, 200.0).is_over


def test_a_p99_may_grow_by_a_tenth() -> None:
    assert not Line(P99, 10.0, 11.0).is_over
    assert Line(P99, 10.0, 11.1).is_over


def test_a_p999_may_grow_by_ten_milliseconds() -> None:
    line = Line(P999, 1.0, 11.0)
    assert line.change == 10.0
    assert not line.is_over
    assert Line(P999, 1.0, 11.1).is_over


def test_a_figure_without_a_bound_is_told_alone() -> None:
    line = Line(TOLD, 0.0, 5.0)
    assert line.change is None
    assert not line.is_over
    assert str(line).split() == ["tails", "off", "0.00", "GB", "on", "5.00", "GB"]


def test_times_of_hardly_anything_are_left_out() -> None:
    assert str(Line(TOLD, 0.0001, 1.0)).split() == ["tails", "off", "0.00", "GB", "on", "1.00", "GB"]


def test_a_line_says_what_is_over() -> None:
    assert str(Line(RATE, 100.0, 50.0)).split()[-6:] == ["0.50", "x", "≥", "0.95", "x", "OVER"]


def test_the_share_of_void_attempts_counts_attempts_with_news() -> None:
    assert void_share(99, 1) == 0.01
    assert void_share(5, 0) == 0.0
    assert void_share(0, 0) == 0.0
    assert void_share(0, 2) == 1.0


def test_three_brokers_and_ten_seconds_are_reckoned_as_the_design_does() -> None:
    tails, documents = reckoned_puts(3, 10_000)
    assert (24 * tails, 24 * documents) == (25_920, 17_280)
    assert an_hour(30, 60) == 1800
