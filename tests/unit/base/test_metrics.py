"""Histograms: which bucket a value belongs to, and what a snapshot tells."""

from __future__ import annotations

from math import inf

import pytest

from service.base.metrics import Histogram
from service.remote.metrics import StoreMetrics


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


def test_values_of_another_process_are_added() -> None:
    times, others = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    for histogram, value in ((times, 0.5), (times, 7.0), (others, 0.25), (others, 1.5)):
        histogram.observe(value)
    times.add(others)
    assert times.snapshot().counts == (2, 1, 1)
    assert times.snapshot().total == 9.25
    assert others.snapshot().observed == 2


def test_calls_of_another_process_tell_of_the_store_as_those_of_this_one() -> None:
    own, other = StoreMetrics(), StoreMetrics()
    own.add(other)
    assert own.called_ms == 0
    other.calls["get"].received_bytes, other.calls["get"].errors["StoreThrottled"] = 5, 2
    other.problem, other.since_ms, other.called_ms = "503", 40, 9
    own.calls["get"].received_bytes = 3
    own.add(other)
    own.add(other)
    assert own.calls["get"].received_bytes == 13
    assert own.calls["get"].errors == {"StoreThrottled": 4}
    assert (own.problem, own.since_ms, own.called_ms) == ("503", 40, 9)
    own.add(StoreMetrics(called_ms=12))
    assert (own.problem, own.since_ms, own.called_ms) == (None, None, 12)
