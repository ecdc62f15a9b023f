"""The circuit breaker, on a manual clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.remote.stores.breaker import Breaker, BreakerSettings, BreakerState, is_failure
from service.remote.stores.errors import (
    AccessRefused,
    AccountRefused,
    BucketRefused,
    CredentialsMissing,
    ObjectAsleep,
    ObjectNotFound,
    ObjectTruncated,
    PreconditionFailed,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
    StoreUnreachable,
)

DOWN = StoreUnreachable("down")

STEADY = BreakerSettings(failures=3, first_pause_ms=100, longest_pause_ms=400, trial_ms=1_000, jitter=0.0)


def opened(at_ms: int = 0) -> Breaker:
    breaker = Breaker(STEADY)
    for _ in range(3):
        breaker.failed(DOWN, "k", began_ms=at_ms, now_ms=at_ms)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_failures_in_a_row_open_it_and_an_answer_between_them_does_not() -> None:
    breaker = Breaker(STEADY)
    for now in range(20):
        assert not breaker.failed(DOWN, "k", began_ms=now, now_ms=now)
        assert not breaker.failed(DOWN, "k", began_ms=now, now_ms=now)
        breaker.answered()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.reason is None
    assert [
        breaker.failed(StoreThrottled(text), "k", began_ms=30, now_ms=30) for text in ("a", "b", "c")
    ] == [False, False, True]
    assert breaker.reason == "c"


def test_one_call_tries_when_the_pause_is_over_and_pauses_double_up_to_the_longest() -> None:
    breaker, now = opened(), 0
    for pause in (100, 200, 400, 400):
        assert breaker.wait_ms(now) == pause
        assert breaker.wait_ms(now + pause - 1) == 1
        now += pause
        assert breaker.wait_ms(now) == 0
        assert breaker.wait_ms(now) > 0, "the second one waits for the first one's answer"
        assert breaker.failed(StoreUnreachable("still down"), "k", began_ms=now, now_ms=now)
    assert breaker.reason == "still down"
    assert breaker.opened == 5


def test_the_answer_to_the_trial_closes_it_and_the_next_outage_begins_with_the_first_pause() -> None:
    breaker = opened()
    assert breaker.wait_ms(100) == 0
    assert breaker.answered()
    assert breaker.wait_ms(101) == 0
    for _ in range(3):
        breaker.failed(DOWN, "k", began_ms=200, now_ms=200)
    assert breaker.wait_ms(200) == 100


def test_a_lost_trial_does_not_block_the_breaker() -> None:
    breaker = opened()
    assert breaker.wait_ms(100) == 0
    assert breaker.wait_ms(600) == 500
    assert breaker.wait_ms(1_100) == 0


def test_a_call_from_before_the_outage_may_close_the_breaker() -> None:
    breaker = opened(at_ms=50)
    assert breaker.wait_ms(150) == 0
    assert not breaker.failed(DOWN, "k", began_ms=10, now_ms=160), "a slow call of the same outage"
    assert breaker.state is BreakerState.TRYING
    assert breaker.answered()
    assert breaker.state is BreakerState.CLOSED


def test_one_object_that_times_out_again_and_again_is_no_outage_and_several_are() -> None:
    breaker = Breaker(STEADY)
    for now in range(50):
        assert not breaker.failed(StoreUnavailable("timed out"), "one", began_ms=now, now_ms=now)
    assert not breaker.failed(StoreUnavailable("timed out"), "two", began_ms=60, now_ms=60)
    assert breaker.failed(StoreUnavailable("timed out"), "three", began_ms=60, now_ms=60)


def test_errors_about_an_object_do_not_open_the_breaker() -> None:
    said = (
        *(ObjectNotFound("k"), ObjectTruncated("k"), PreconditionFailed("k"), CorruptionError("k"), None),
        *(StoreRefused("locked"), AccessRefused("denied"), ObjectAsleep("archived")),
    )
    assert not any(map(is_failure, said))
    failures = (StoreUnavailable("k"), StoreThrottled("k"), AccountRefused("k"), BucketRefused("k"))
    assert all(map(is_failure, (*failures, CredentialsMissing("k"), StoreUnreachable("k"))))


@given(st.lists(st.tuples(st.integers(0, 5_000), st.sampled_from("wfa"), st.floats(0, 1)), max_size=200))
def test_a_call_is_allowed_again_within_the_longest_pause(
    steps: list[tuple[int, str, float]],
) -> None:
    settings = BreakerSettings()
    breaker, now = Breaker(settings), 0
    for after, step, uniform in steps:
        now += after
        if step == "w":
            breaker.wait_ms(now)
        elif step == "f":
            breaker.failed(DOWN, "k", began_ms=now, now_ms=now, uniform=uniform)
        else:
            breaker.answered()
        assert (breaker.reason is None) == (breaker.state is BreakerState.CLOSED)
    assert breaker.wait_ms(now) <= max(settings.longest_pause_ms * 1.3, settings.trial_ms)
