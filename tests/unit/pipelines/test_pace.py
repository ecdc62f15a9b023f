"""Words for how a job gets on."""

from __future__ import annotations

import doctest

from service.pipelines import pace
from service.pipelines.pace import ProgressSample, RateEstimator


def test_the_examples_hold() -> None:
    assert doctest.testmod(pace).failed == 0


def test_speed_is_that_of_the_last_half_minute_and_time_left_that_of_the_tasks() -> None:
    looked = RateEstimator()
    assert looked.words(0.0, ProgressSample(0, "", 0, 40)) == "0 records, 0 of 40 tasks"
    assert looked.words(10.0, ProgressSample(50_000, "1.2 MiB", 10, 40)) == (
        "50,000 records, 5,000 rows/s, 1.2 MiB, 10 of 40 tasks, 30 s left"
    )
    assert looked.words(60.0, ProgressSample(50_000, "1.2 MiB", 20, 40)).startswith("50,000 records, 1.2 MiB")


def test_records_that_are_left_say_more_than_tasks() -> None:
    looked = RateEstimator()
    looked.words(0.0, ProgressSample(0, "", 0, 4, 10_000))
    assert looked.words(1.0, ProgressSample(1000, "", 1, 4, 9_000)).endswith("1 of 4 tasks, 9 s left")


def test_rates_restart_with_the_next_query() -> None:
    looked = RateEstimator()
    looked.words(0.0, ProgressSample(0, "", 0, 4))
    looked.words(5.0, ProgressSample(500, "", 4, 4))
    assert looked.words(6.0, ProgressSample(10, "", 0, 2)) == "10 records, 0 of 2 tasks"
    assert looked.words(8.0, ProgressSample(30, "", 1, 2)) == "30 records, 10 rows/s, 1 of 2 tasks, 2 s left"
