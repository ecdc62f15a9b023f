"""Retries of a store: how long and how often, on a manual clock."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import ConfigError
from service.remote.stores.retry_policy import LEAST_RATE, RequestRate, RetryPolicy

UNIFORM = st.floats(0, 1)


@given(st.floats(0, 600), st.randoms(use_true_random=False))
def test_tries_end_with_the_time_and_the_last_one_is_made_then(timeout_s: float, chance: Random) -> None:
    patience = RetryPolicy(timeout_s=timeout_s)
    elapsed, failures = 0.0, 1
    while (pause := patience.pause_s(failures, elapsed, chance.random())) is not None:
        assert 0 < pause <= patience.longest_pause_s
        assert elapsed + pause <= timeout_s * 1.0001
        elapsed += pause + chance.choice((0.0, chance.random() * 60))
        failures += 1
        assert failures < 1000
    assert elapsed >= timeout_s * 0.9999


def test_pauses_begin_at_a_second_double_and_never_pass_twenty() -> None:
    patience = RetryPolicy()
    assert [patience.backoff_s(n, 0.5) for n in (1, 2, 3, 5, 6, 1000)] == [1, 2, 4, 16, 20, 20]
    assert (patience.backoff_s(1, 0.0), patience.backoff_s(1, 1.0)) == (0.7, 1.3)
    assert patience.backoff_s(6, 1.0) == 20


@given(st.floats(0, 20), UNIFORM)
def test_a_minute_away_is_outlived_from_any_moment_with_few_requests(began: float, uniform: float) -> None:
    patience, now, tries = RetryPolicy(), began, 0
    while now < 60:
        pause = patience.pause_s(tries + 1, now - began, uniform)
        assert pause is not None
        now += pause
        tries += 1
    assert tries <= 8
    assert now < 60 + 21


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), 1e9])
def test_a_time_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy(timeout_s=timeout_s)


def test_a_store_that_does_not_throttle_is_asked_as_often_as_one_likes() -> None:
    rate = RequestRate(RetryPolicy())
    assert all(rate.wait_s(now / 1000) == 0 for now in range(5000))
    assert rate.rate is None


def test_a_burst_of_refused_requests_is_one_cut_and_a_pause_for_all() -> None:
    rate = RequestRate(RetryPolicy())
    assert [rate.wait_s(0.0) for _ in range(64)] == [0.0] * 64
    for _ in range(64):
        rate.throttled(0.0, 0.1, 0.5)
    assert rate.rate == 32
    assert rate.wait_s(0.2) == pytest.approx(0.9)
    assert rate.wait_s(1.1) == 0
    assert rate.wait_s(1.1) == pytest.approx(1 / 32)


def test_a_store_that_goes_on_throttling_is_asked_three_times_a_minute_by_a_process() -> None:
    rate, sent, now = RequestRate(RetryPolicy()), 0, 0.0
    while now < 300:
        wait = rate.wait_s(now)
        if wait == 0:
            sent += now > 60
            rate.throttled(now, now, 0.5)
        now += max(wait, 0.001)
    assert sent <= 4 * 3
    assert rate.rate == LEAST_RATE


@given(st.integers(1, 500), st.integers(1, 12))
def test_the_limit_ends_soon_after_the_throttling(peak: int, cuts: int) -> None:
    rate, now = RequestRate(RetryPolicy()), 0.0
    for _ in range(peak):
        rate.wait_s(now)
    for _ in range(cuts):
        rate.throttled(now, now, 0.5)
        now += 21
    begun = now
    while rate.rate is not None:
        wait = rate.wait_s(now)
        now += wait
        if wait == 0:
            rate.answered(now)
    assert now - begun <= 20


@given(st.lists(st.tuples(st.booleans(), UNIFORM, st.floats(0, 3)), min_size=1, max_size=200))
def test_a_request_waits_at_most_a_pause_and_a_place_for_any_answers(
    events: list[tuple[bool, float, float]],
) -> None:
    rate, now = RequestRate(RetryPolicy()), 0.0
    for is_throttled, uniform, passes in events:
        wait = rate.wait_s(now)
        assert 0 <= wait <= 20 + 1 / LEAST_RATE
        if wait == 0:
            if is_throttled:
                rate.throttled(now, now, uniform)
            else:
                rate.answered(now)
        assert rate.rate is None or rate.rate >= LEAST_RATE
        now += passes


def test_answers_from_before_the_cut_do_not_raise_the_rate() -> None:
    rate = RequestRate(RetryPolicy())
    for _ in range(8):
        rate.wait_s(0.0)
    rate.throttled(0.0, 0.5, 0.5)
    rate.answered(0.0)
    assert rate.rate == 4
    rate.answered(2.0)
    assert rate.rate > 4
