"""How long brokers are waited for, and how long between two tries. [P]

Time counts from the last progress, not from the start: a task that gets on may take as long as it likes.
Waits double from one failure in a row to the next and are spread, so that the tasks of a job that lost the
same broker do not come back to it together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.base.backoff import backoff
from service.spark.errors import BrokerError
from service.spark.tail.options import TailOptions

_JITTER: Final = 0.2


class Patience:
    """`what` names what is waited for in the error; `monotonic` is in seconds, `uniform` gives [0, 1)."""

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
        """Something came: time counts from now, and `what` is waited for."""
        self._what = what
        self._failures = 0
        self._since = self._monotonic()
        self._final = None

    @property
    def left_s(self) -> float:
        """Seconds until patience is over."""
        return max(0.0, self._since + self._timeout_s - self._monotonic())

    def failed(self, cause: object) -> float:
        """How many seconds to wait after a try that failed. `BrokerError` names the cause when it is over."""
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
        # The next try will have no time: what it fails with says less than this.
        self._final = cause
        return self.left_s

    def check(self, cause: object) -> None:
        """`BrokerError` when it is over."""
        if self.left_s <= 0:
            last = cause if self._final is None else self._final
            raise BrokerError(
                f"{self._what} came from the brokers within {self._timeout_s:g} s; last: {last}"
            )
