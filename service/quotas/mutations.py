"""Quota of changes to topics: a token bucket, and what one request may take of it (KIP-599). [P]

The bucket holds as many tokens as its rate gives in all windows, and a new one is full. A change takes a
token for each partition that it creates or deletes, and may take more than there are: then the bucket is
empty until the debt is paid.

>>> bucket = TokenBucket(burst_s=11)
>>> bucket.take(30, 2.0, 0), bucket.throttle_ms(2.0, 0), bucket.throttle_ms(2.0, 3_000)
(None, 4000, 1000)

Apache Kafka 4.3 ``TokenBucket``, ``StrictControllerMutationQuota``, ``PermissiveControllerMutationQuota``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.quotas.windows import LONGEST_THROTTLE_MS


class TokenBucket:
    """Tokens of one share. The rate, in tokens per second, may be another one at each call."""

    __slots__ = ("_at_ms", "_burst_s", "_rate", "_tokens")

    def __init__(self, burst_s: float) -> None:
        """`burst_s`: seconds that a full bucket takes to fill."""
        self._burst_s = burst_s
        self._tokens = math.inf
        self._rate = 0.0
        self._at_ms = 0

    def left(self, rate: float, now_ms: int) -> float:
        """Return the tokens that there are; negative for a debt."""
        filled = self._tokens + rate * ((now_ms - self._at_ms) / 1000)
        self._tokens = min(self._burst_s * rate, filled)
        self._rate, self._at_ms = rate, now_ms
        return self._tokens

    def take(self, tokens: float, rate: float, now_ms: int) -> None:
        """Take `tokens`, whether there are as many or not."""
        self._tokens = self.left(rate, now_ms) - tokens

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Return how long it takes to pay the debt; 0 without one."""
        left = self.left(rate, now_ms)
        if left >= 0:
            return 0
        throttle_ms = -left / rate * 1000 if rate > 0 else math.inf
        return math.floor(throttle_ms + 0.5) if throttle_ms < LONGEST_THROTTLE_MS else LONGEST_THROTTLE_MS

    def is_idle(self, now_ms: int) -> bool:
        """Return whether the bucket is full again."""
        return self._tokens + self._rate * ((now_ms - self._at_ms) / 1000) >= self._burst_s * self._rate


class MutationQuota:
    """Changes of one request. `throttle_ms` of its client, once all are recorded.

    Strict: a change is refused where the bucket has a debt, however many it takes. Else it is made, and the
    client is throttled.
    """

    __slots__ = ("_bucket", "_is_strict", "_now_ms", "_rate", "_throttle_ms", "_throttled_at_ms")

    def __init__(self, bucket: TokenBucket, rate: float, is_strict: bool, now_ms: Callable[[], int]) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self._now_ms = now_ms
        self._throttle_ms = 0
        self._throttled_at_ms = 0

    def record(self, partitions: int) -> None:
        """Count a change of so many partitions.

        Raises `RequestError` THROTTLING_QUOTA_EXCEEDED, and counts nothing then.
        """
        now_ms = self._now_ms()
        if self._is_strict:
            if self._bucket.left(self._rate, now_ms) < 0:
                self._note(now_ms)
                raise RequestError(
                    ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded."
                )
            self._bucket.take(partitions, self._rate, now_ms)
        else:
            self._bucket.take(partitions, self._rate, now_ms)
            self._note(now_ms)

    def _note(self, now_ms: int) -> None:
        throttle_ms = self._bucket.throttle_ms(self._rate, now_ms)
        if throttle_ms:
            self._throttle_ms, self._throttled_at_ms = throttle_ms, now_ms

    def throttle_ms(self) -> int:
        """Return how long the client is throttled from now on, 0 for not at all."""
        if not self._throttle_ms:
            return 0
        return max(0, self._throttle_ms - (self._now_ms() - self._throttled_at_ms))
