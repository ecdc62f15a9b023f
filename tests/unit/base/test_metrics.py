"""Histograms: which bucket a value belongs to, and what a snapshot tells."""

from __future__ import annotations

from math import inf

import pytest

from service.base.metrics import Histogram


def test_a_value_belongs_to_the_first_bound_that_is_not_less() -> None:
    times = Histogram((1.0, 2.0, 5.0))
    for value in (0.0, 1.0, 1.5, 2.0, 5.0, 5.1, 1e9):
        times.observe(value)
    assert times.snapshot().counts == (2, 2, 1, 2)
    assert times.snapshot().observed == 7
    assert times.snapshot().total == pytest.approx(14.6 + 1e9)


def test_a_snapshot_does_not_move() -> None:
    times = Histogram()
    before = times.snapshot()
    times.observe(0.1)
    assert before.observed == 0
    assert times.snapshot().observed == 1


def test_quantiles_are_bounds_of_buckets() -> None:
    times = Histogram((1.0, 2.0, 5.0))
    assert times.snapshot().quantile(0.99) == 0
    for value in [0.5] * 98 + [1.5, 100]:
        times.observe(value)
    found = times.snapshot()
    assert [found.quantile(share) for share in (0.5, 0.98, 0.99, 1)] == [1.0, 1.0, 2.0, inf]
