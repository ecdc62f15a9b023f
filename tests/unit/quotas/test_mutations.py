"""Token bucket of changes to topics, strict and not."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.quotas.mutations import MutationQuota, TokenBucket


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def quota(bucket: TokenBucket, clock: Clock, *, is_strict: bool) -> MutationQuota:
    return MutationQuota(bucket, 2.0, is_strict, clock)


def test_a_new_bucket_is_full_and_holds_no_more() -> None:
    bucket = TokenBucket(11)
    assert bucket.left(2.0, 1_000_000) == 22
    bucket.take(10, 2.0, 1_000_000)
    assert bucket.left(2.0, 1_002_000) == 16
    assert bucket.left(2.0, 9_999_999) == 22


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 0.0, -1.0])
def test_a_rate_of_nearly_nothing_lets_nothing_pass(rate: float) -> None:
    bucket = TokenBucket(11)
    bucket.take(3, rate, 0)
    assert bucket.throttle_ms(rate, 0) == 2_147_483_647


def test_a_strict_quota_refuses_what_comes_after_the_debt() -> None:
    bucket, clock = TokenBucket(11), Clock()
    first = quota(bucket, clock, is_strict=True)
    first.record(30)
    assert first.throttle_ms() == 0, "one that makes the debt is not throttled"
    with pytest.raises(RequestError) as refused:
        first.record(1)
    assert refused.value.code is ErrorCode.throttling_quota_exceeded
    assert first.throttle_ms() == 4_000
    clock.now_ms = 1_500
    assert first.throttle_ms() == 2_500
    later = quota(bucket, clock, is_strict=True)
    with pytest.raises(RequestError):
        later.record(1)
    assert later.throttle_ms() == 2_500
    clock.now_ms = 4_000
    again = quota(bucket, clock, is_strict=True)
    again.record(1)
    assert (again.throttle_ms(), first.throttle_ms()) == (0, 0)


def test_another_quota_makes_all_changes_and_throttles() -> None:
    bucket, clock = TokenBucket(11), Clock()
    one = quota(bucket, clock, is_strict=False)
    one.record(22)
    assert one.throttle_ms() == 0
    one.record(1)
    one.record(1)
    assert one.throttle_ms() == 1_000


def test_a_rate_that_changes_fills_the_bucket_at_the_new_one() -> None:
    bucket = TokenBucket(11)
    bucket.take(22, 2.0, 0)
    assert bucket.left(10.0, 1_000) == 10
    bucket.take(0, 1.0, 1_000)
    assert bucket.left(1.0, 60_000) == 11
