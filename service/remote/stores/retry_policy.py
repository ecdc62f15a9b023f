"""Retry policy of calls to a store, and the request rate of a process whose store throttles. [P]

Time bounds the attempts, not their number: a refused connection fails at once, a hanging one after a minute,
and a store that is unavailable for a minute is so in both cases.

All threads of a process send less to a store that throttles: `RequestRate` is additive increase,
multiplicative decrease (AIMD) over requests a second, with a pause for all threads after each cut. Without
throttling it does nothing.

>>> policy = RetryPolicy(timeout_s=60)
>>> policy.pause_s(1, 0.0, 0.5), policy.pause_s(4, 10.0, 0.5), policy.pause_s(9, 55.0, 0.5)
(1.0, 8.0, 5.0)
>>> policy.pause_s(10, 60.0, 0.5) is None
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.base.backoff import backoff
from service.base.errors import ConfigError

LONGEST_TIMEOUT_S: Final = 24 * 3600.0
LEAST_RATE: Final = 1.0
"""Requests a second that a process may always send between pauses."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Time-out and pauses of a repeated call. Times in seconds.

    Pauses double from `first_pause_s` to `longest_pause_s`, each times a factor in 1 ± `jitter`. Missing
    credentials are retried for seconds only: the cause can at most be a metadata service that many clients
    ask at once.
    """

    timeout_s: float = 180.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 20.0
    jitter: float = 0.3
    missing_credentials_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_s <= LONGEST_TIMEOUT_S:
            raise ConfigError(
                f"the time-out of a store is 0 to {LONGEST_TIMEOUT_S:.0f} s, not {self.timeout_s:g} s"
            )

    def pause_s(
        self, failures: int, elapsed_s: float, uniform: float, *, timeout_s: float | None = None
    ) -> float | None:
        """Return how long to wait after the nth failure, `elapsed_s` after the first attempt began; None:
        stop.

        The last pause ends at the time-out, so that one more attempt is made then. `uniform` lies in [0, 1].
        """
        left = (self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)) - elapsed_s
        return min(self.backoff_s(failures, uniform), left) if left > 0 else None

    def backoff_s(self, failures: int, uniform: float) -> float:
        """Return the pause after the nth failure in a row, whatever time is left."""
        return backoff(
            failures,
            first=self.first_pause_s,
            longest=self.longest_pause_s,
            jitter=self.jitter,
            uniform=uniform,
        )


class RequestRate:
    """Requests a second of one process to one store. Not thread-safe; times are a monotonic clock's seconds.

    There is no limit at first. Each throttling answer halves the rate (the first one halves what was sent in
    the last second) and pauses all threads; answers to requests from before the last cut belong to the same
    burst and count as one. Each other answer raises it, back to the rate of the first cut in about ten
    seconds, and there the limit ends.
    """

    def __init__(self, patience: RetryPolicy) -> None:
        self._patience = patience
        self.rate: float | None = None
        self._peak = 0.0
        self._cuts = 0
        self._cut_at = self._not_before = self._next_slot = float("-inf")
        self._window = float("-inf")
        self._sent = self._sent_before = 0

    def wait_s(self, now: float) -> float:
        """Return 0 and count a request that may go now; otherwise return how long to wait before the next
        call."""
        at = self._not_before if self.rate is None else max(self._not_before, self._next_slot)
        if at > now:
            return at - now
        self._count(now)
        if self.rate is not None:
            self._next_slot = now + 1 / self.rate
        return 0.0

    def throttled(self, began: float, now: float, uniform: float) -> None:
        """Record that a request that began at `began` was throttled."""
        if began < self._cut_at:
            return
        if self.rate is None:
            self._count(now, 0)
            self._peak = self.rate = float(max(self._sent, self._sent_before, 2))
        self.rate = max(LEAST_RATE, self.rate / 2)
        self._cuts += 1
        self._cut_at = now
        self._not_before = now + self._patience.backoff_s(self._cuts, uniform)

    def answered(self, began: float) -> None:
        """Record that a request that began at `began` was answered otherwise."""
        if self.rate is None or began < self._cut_at:
            return
        self._cuts = 0
        self.rate += max(1.0, self._peak / 10) / self.rate
        if self.rate >= self._peak:
            self.rate = None

    def _count(self, now: float, requests: int = 1) -> None:
        """Count requests by the second: those of the current one and of the one before it."""
        if now - self._window >= 1:
            self._sent_before = self._sent if now - self._window < 2 else 0
            self._sent = 0
            self._window = now
        self._sent += requests
