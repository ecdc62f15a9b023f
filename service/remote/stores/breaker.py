"""Circuit breaker: calls to a store that does not serve fail at once for a while, with the reason. [P]

Failures in a row, with no answer between them, open it. While it is open, calls fail at once with its reason;
when its pause is over one call may try, and its answer closes the breaker or lengthens the next pause. A
failure of a call that began before it opened belongs to the same outage and does not count.

An answer about an object, a refusal of it too, is an answer. An error of the account, the bucket or the
endpoint (`OF_THE_STORE`) counts each time; any other failure may concern one object alone, and counts once
per object.

>>> breaker = Breaker(BreakerSettings(failures=2, first_pause_ms=500, jitter=0.0))
>>> [breaker.failed(StoreUnavailable("no answer"), one, began_ms=0, now_ms=10) for one in ("a", "a", "b")]
[False, False, True]
>>> breaker.wait_ms(10), breaker.reason
(500, 'no answer')
>>> breaker.wait_ms(510), breaker.wait_ms(511) > 0
(0, True)
>>> breaker.answered(), breaker.wait_ms(530)
(True, 0)
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeGuard

from service.base.backoff import backoff
from service.base.errors import StorageError
from service.remote.stores.errors import OF_THE_STORE, StoreUnavailable


class BreakerState(Enum):
    """CLOSED: calls may go. OPEN: none may. TRYING: one is in flight, and its answer decides."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


MOVES: Final = {
    BreakerState.CLOSED: (BreakerState.OPEN,),
    BreakerState.OPEN: (BreakerState.TRYING, BreakerState.CLOSED),
    BreakerState.TRYING: (BreakerState.OPEN, BreakerState.CLOSED),
}
"""OPEN goes to CLOSED when a call that began before is answered after all."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`failures` in a row open it; pauses double up to the longest, by `backoff`.

    A trial that has not ended after `trial_ms` counts as lost, and the next call may try.
    """

    failures: int = 5
    first_pause_ms: int = 500
    longest_pause_ms: int = 30_000
    trial_ms: int = 10_000
    jitter: float = 0.3


class Breaker:
    """Breaker of one store, for one room. Not thread-safe: its owner guards it.

    Call `wait_ms` before each call of the store, and `answered` or `failed` after it.
    """

    def __init__(self, settings: BreakerSettings = BreakerSettings()) -> None:
        self._settings = settings
        self._state = BreakerState.CLOSED
        self._reason: str | None = None
        self._in_a_row = 0
        self._objects: set[Hashable] = set()
        """objects of those failures in a row that may concern one object alone"""
        self._pauses = 0
        self._until_ms = 0
        self._opened_ms: int | None = None
        self.opened = 0
        """How often it has opened; for the metrics."""

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def reason(self) -> str | None:
        """Reason for which calls fail at once; None while they may go."""
        return self._reason if self._state is not BreakerState.CLOSED else None

    @property
    def pauses(self) -> int:
        """Number of openings in this outage."""
        return self._pauses

    def refuses(self, now_ms: int) -> bool:
        """Return whether a call may not go now; changes nothing."""
        return self._state is not BreakerState.CLOSED and now_ms < self._until_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return 0 where a call may go (the trial, where the breaker was open); otherwise how long to
        wait."""
        if self._state is BreakerState.CLOSED:
            return 0
        if now_ms < self._until_ms:
            return self._until_ms - now_ms
        if self._state is BreakerState.OPEN:
            self._move(BreakerState.TRYING)
        self._until_ms = now_ms + self._settings.trial_ms
        return 0

    def answered(self) -> bool:
        """Record that a call was answered, whatever the answer; return True when that closed the breaker.

        An answer to a call that began before the breaker opened closes it, too: the store is reachable.
        """
        self._in_a_row = 0
        self._objects.clear()
        if self._state is BreakerState.CLOSED:
            return False
        self._move(BreakerState.CLOSED)
        self._reason = None
        self._pauses = 0
        return True

    def failed(
        self, error: StorageError, of: Hashable, *, began_ms: int, now_ms: int, uniform: float = 0.5
    ) -> bool:
        """Record a failure (`is_failure`) of a call for the object `of`; return True when that opened the
        breaker.

        That includes opening it again. `uniform` lies in [0, 1].
        """
        if self._opened_ms is not None and began_ms < self._opened_ms:
            return False
        if self._state is BreakerState.CLOSED:
            if not isinstance(error, OF_THE_STORE):
                if of in self._objects:
                    return False
                self._objects.add(of)
            self._in_a_row += 1
            if self._in_a_row < self._settings.failures:
                return False
        elif self._state is BreakerState.OPEN:
            return False
        self._open(str(error), now_ms, uniform)
        return True

    def _open(self, reason: str, now_ms: int, uniform: float) -> None:
        settings = self._settings
        self._move(BreakerState.OPEN)
        self._reason = reason
        self._pauses += 1
        pause_ms = backoff(
            self._pauses,
            first=settings.first_pause_ms,
            longest=settings.longest_pause_ms,
            jitter=settings.jitter,
            uniform=uniform,
        )
        self._until_ms = now_ms + round(pause_ms)
        self._opened_ms = now_ms
        self._in_a_row = 0
        self._objects.clear()
        self.opened += 1

    def _move(self, state: BreakerState) -> None:
        if state not in MOVES[self._state]:
            raise AssertionError(f"a breaker goes from {self._state.value} to {state.value}")
        self._state = state


def is_failure(error: BaseException | None) -> TypeGuard[StorageError]:
    """Return whether `error` says that the store may not serve: no answer, or an error of the whole store."""
    return isinstance(error, (StoreUnavailable, *OF_THE_STORE))
