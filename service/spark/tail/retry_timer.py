"""Deadline and back-off of requests to brokers. [P]

The deadline counts from the last progress, not from the start: a task that makes progress may take any time.
Back-offs double with each consecutive failure and have jitter, so that tasks of a job that lost the same
broker do not return to it together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.base.backoff import backoff
from service.spark.errors import BrokerError
from service.spark.tail.options import TailOptions

_JITTER: Final = 0.2


class RetryTimer:
    """The deadline and back-off of one operation. `what` says in its error what is missing.

    `monotonic` is in seconds, `uniform` returns a number in [0, 1).
    """

    def __init__(
        self, tail: TailOptions, what: str, monotonic: Callable[[], float], uniform: Callable[[], float]
    ) -> None:
        self._what = what
        self._timeout_s = tail.timeout_ms / 1000
        self._first_s = tail.client.backoff_ms / 1000
        self._longest_s = max(tail.client.backoff_ms, tail.client.backoff_max_ms) / 1000
        self._monotonic = monotonic
        self._uniform = uniform
        self._failures = 0
        self._since = monotonic()
        self._final: object = None

    def progress(self, what: str) -> None:
        """Restart the deadline, as something came; `what` says what is missing from now on."""
        self._what = what
        self._failures = 0
        self._since = self._monotonic()
        self._final = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._since + self._timeout_s - self._monotonic())

    def failed(self, cause: object) -> float:
        """Return the seconds to wait after a failed attempt; past the deadline raise `BrokerError`."""
        self.check(cause)
        self._failures += 1
        wait_s = backoff(
            self._failures,
            first=self._first_s,
            longest=self._longest_s,
            jitter=_JITTER,
            uniform=self._uniform(),
        )
        if wait_s < self.left_s:
            return wait_s
        # The next attempt will time out, so this cause is kept for the error.
        self._final = cause
        return self.left_s

    def check(self, cause: object) -> None:
        """Raise `BrokerError` past the deadline."""
        if self.left_s <= 0:
            last = cause if self._final is None else self._final
            raise BrokerError(
                f"{self._what} came from the brokers within {self._timeout_s:g} s; last: {last}"
            )
