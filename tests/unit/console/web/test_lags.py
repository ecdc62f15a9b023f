"""The past of lags: bounded in groups and points, of partitions that are there."""

from __future__ import annotations

from service.console.web.lags import LEAST_STEP_MS, MOST_GROUPS, MOST_POINTS, Lags
from service.groups.admin_models import PartitionProgress


def at(partition: int, lag: int | None) -> PartitionProgress:
    return PartitionProgress("t", partition, None if lag is None else 0, lag, None)


def test_points_come_in_order_and_the_oldest_go() -> None:
    lags = Lags()
    for n in range(MOST_POINTS + 10):
        lags.add("g", n * LEAST_STEP_MS, [at(0, n), at(1, None)])
    (line,) = lags.of("g").values()
    assert [lag for _, lag in line] == list(range(10, MOST_POINTS + 10))


def test_concurrent_lag_samples_make_one_point() -> None:
    lags = Lags()
    for ms in (0, 1, LEAST_STEP_MS - 1, LEAST_STEP_MS):
        lags.add("g", ms, [at(0, ms)])
    assert lags.of("g") == {("t", 0): ((0, 0), (LEAST_STEP_MS, LEAST_STEP_MS))}


def test_the_least_recently_viewed_group_is_evicted() -> None:
    lags = Lags()
    for n in range(MOST_GROUPS):
        lags.add(f"g{n}", n, [at(0, 1)])
    lags.add("g0", 100, [at(0, 1)])
    lags.add("new", 101, [at(0, 1)])
    assert not lags.of("g1")
    assert lags.of("g0")
    assert lags.of("new")


def test_partitions_that_the_group_has_no_more_are_forgotten() -> None:
    lags = Lags()
    lags.add("g", 0, [at(0, 1), at(1, 1)])
    lags.forget_others("g", [("t", 1)])
    assert list(lags.of("g")) == [("t", 1)]
