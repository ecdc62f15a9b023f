"""A circuit breaker: a store that does not serve is left alone for a while, and everybody knows why. [P]

Failures in a row, with no answer between them, open it. While it is open calls fail at once with its reason;
when its pause is over one call may try, and the answer to that one closes it or makes the next pause longer.
What fails of calls that began before it opened is of the same outage and counts for nothing.

An answer about an object, a refusal of it too, is an answer. What speaks of the account, the bucket or the
endpoint (`OF_THE_STORE`) counts each time; any other failure may be of one object alone, and counts once for
each.

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


class State(Enum):
    """CLOSED: calls go. OPEN: none goes. TRYING: one is under way, and its answer decides."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


MOVES: Final = {
    State.CLOSED: (State.OPEN,),
    State.OPEN: (State.TRYING, State.CLOSED),
    State.TRYING: (State.OPEN, State.CLOSED),
}
"""OPEN goes to CLOSED when a call that began before comes back with an answer after all."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`failures` in a row open it; pauses double up to the longest, as `backoff` says.

    A trial that has not ended after `trial_ms` is taken for lost, and the next call may try.
    """

    failures: int = 5
    first_pause_ms: int = 500
    longest_pause_ms: int = 30_000
    trial_ms: int = 10_000
    jitter: float = 0.3


class Breaker:
    """The breaker of one store as one room uses it. Not thread-safe: whoever owns it guards it.

    `wait_ms` is asked before each call, and then `answered` or `failed` is told of each.
    """

    def __init__(self, settings: BreakerSettings = BreakerSettings()) -> None:
        self._settings = settings
        self._state = State.CLOSED
        self._reason: str | None = None
        self._in_a_row = 0
        self._objects: set[Hashable] = set()
        """those of the failures in a row that may be of one object alone"""
        self._pauses = 0
        self._until_ms = 0
        self._opened_ms: int | None = None
        self.opened = 0
        """How often it has been opened; for the metrics."""

    @property
    def state(self) -> State:
        return self._state

    @property
    def reason(self) -> str | None:
        """Why calls fail at once; None while they go."""
        return self._reason if self._state is not State.CLOSED else None

    @property
    def pauses(self) -> int:
        """How often it was opened in this outage."""
        return self._pauses

    def refuses(self, now_ms: int) -> bool:
        """Whether a call would not go now; asking changes nothing."""
        return self._state is not State.CLOSED and now_ms < self._until_ms

    def wait_ms(self, now_ms: int) -> int:
        """0: a call may go; where the breaker was open it is the one that tries. Else how long to wait."""
        if self._state is State.CLOSED:
            return 0
        if now_ms < self._until_ms:
            return self._until_ms - now_ms
        if self._state is State.OPEN:
            self._move(State.TRYING)
        self._until_ms = now_ms + self._settings.trial_ms
        return 0

    def answered(self) -> bool:
        """A call ended with an answer, whatever it said of the object; True when that closed the breaker.

        An answer to a call that began before the breaker opened closes it, too: the store is there.
        """
        self._in_a_row = 0
        self._objects.clear()
        if self._state is State.CLOSED:
            return False
        self._move(State.CLOSED)
        self._reason = None
        self._pauses = 0
        return True

    def failed(
        self, error: StorageError, of: Hashable, *, began_ms: int, now_ms: int, uniform: float = 0.5
    ) -> bool:
        """A call that asked for the object `of` ended with an `error` that is a failure (`is_failure`); True
        when that opened the breaker, or opened it again. `uniform` lies in [0, 1].
        """
        if self._opened_ms is not None and began_ms < self._opened_ms:
            return False
        if self._state is State.CLOSED:
            if not isinstance(error, OF_THE_STORE):
                if of in self._objects:
                    return False
                self._objects.add(of)
            self._in_a_row += 1
            if self._in_a_row < self._settings.failures:
                return False
        elif self._state is State.OPEN:
            return False
        self._open(str(error), now_ms, uniform)
        return True

    def _open(self, reason: str, now_ms: int, uniform: float) -> None:
        settings = self._settings
        self._move(State.OPEN)
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

    def _move(self, state: State) -> None:
        if state not in MOVES[self._state]:
            raise AssertionError(f"a breaker goes from {self._state.value} to {state.value}")
        self._state = state


def is_failure(error: BaseException | None) -> TypeGuard[StorageError]:
    """Whether what a call raised says that the store may not serve: no answer, or one of the whole store."""
    return isinstance(error, (StoreUnavailable, *OF_THE_STORE))
